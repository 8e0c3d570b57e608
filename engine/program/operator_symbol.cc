#include <ATen/core/Tensor.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/device/torch_status.h"
#include "engine/program/operator_call.h"

// Arithmetic on sizes, with the meaning that Python gives it, and the exporter's assertions.

namespace penstock {
namespace {

bool IsWhole(const c10::IValue& value) { return value.isInt() || value.isBool(); }
int64_t Whole(const c10::IValue& value) {
  return value.isBool() ? static_cast<int64_t>(value.toBool()) : value.toInt();
}
double Real(const c10::IValue& value) { return value.toScalar().toDouble(); }

template <typename Number>
std::optional<bool> Compare(std::string_view name, Number left, Number right) {
  if (name == "eq") return left == right;
  if (name == "ne") return left != right;
  if (name == "lt") return left < right;
  if (name == "le") return left <= right;
  if (name == "gt") return left > right;
  if (name == "ge") return left >= right;
  return std::nullopt;
}

// Python rounds a quotient down.
int64_t FloorDivide(int64_t left, int64_t right) {
  const int64_t quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1 : quotient;
}

// Nothing for an overflow, a division by zero, or a function that whole numbers do not have.
std::optional<c10::IValue> OnWholeNumbers(std::string_view name, int64_t left, int64_t right) {
  int64_t result = 0;
  const bool least = left == std::numeric_limits<int64_t>::min() && right == -1;
  if (name == "add" && !__builtin_add_overflow(left, right, &result)) return c10::IValue(result);
  if (name == "sub" && !__builtin_sub_overflow(left, right, &result)) return c10::IValue(result);
  if (name == "mul" && !__builtin_mul_overflow(left, right, &result)) return c10::IValue(result);
  if (name == "floordiv" && right != 0 && !least) return c10::IValue(FloorDivide(left, right));
  if (name == "mod" && right != 0 && !least) return c10::IValue(left - FloorDivide(left, right) * right);
  if (name == "truediv" && right != 0) return c10::IValue(static_cast<double>(left) / static_cast<double>(right));
  if (name == "sym_max") return c10::IValue(std::max(left, right));
  if (name == "sym_min") return c10::IValue(std::min(left, right));
  if (name == "and_") return c10::IValue(left != 0 && right != 0);
  if (name == "or_") return c10::IValue(left != 0 || right != 0);
  if (name == "pow" && right >= 0 && right <= 64) {
    result = 1;
    for (int64_t i = 0; i < right; ++i) {
      if (__builtin_mul_overflow(result, left, &result)) return std::nullopt;
    }
    return c10::IValue(result);
  }
  if (const std::optional<bool> answer = Compare(name, left, right)) return c10::IValue(*answer);
  return std::nullopt;
}

std::optional<c10::IValue> OnRealNumbers(std::string_view name, double left, double right) {
  if (name == "add") return c10::IValue(left + right);
  if (name == "sub") return c10::IValue(left - right);
  if (name == "mul") return c10::IValue(left * right);
  if (name == "truediv" && right != 0) return c10::IValue(left / right);
  if (name == "floordiv" && right != 0) return c10::IValue(std::floor(left / right));
  if (name == "pow") return c10::IValue(std::pow(left, right));
  if (name == "sym_max") return c10::IValue(std::max(left, right));
  if (name == "sym_min") return c10::IValue(std::min(left, right));
  if (const std::optional<bool> answer = Compare(name, left, right)) return c10::IValue(*answer);
  return std::nullopt;
}

std::optional<c10::IValue> Rounded(double value) {
  if (!(std::abs(value) < 9e18)) return std::nullopt;
  return c10::IValue(static_cast<int64_t>(value));
}

std::optional<c10::IValue> RoundedBy(double (*round)(double), const c10::IValue& value) {
  if (IsWhole(value)) return c10::IValue(Whole(value));
  return Rounded(round(Real(value)));
}

std::optional<c10::IValue> OnOne(std::string_view name, const c10::IValue& value) {
  if (name == "neg" && IsWhole(value) && Whole(value) != std::numeric_limits<int64_t>::min()) {
    return c10::IValue(-Whole(value));
  }
  if (name == "neg" && value.isDouble()) return c10::IValue(-value.toDouble());
  if (name == "pos") return value;
  if (name == "not_" || name == "sym_not") return c10::IValue(Real(value) == 0);
  if (name == "sym_float") return c10::IValue(Real(value));
  if (name == "sym_int" || name == "trunc") return RoundedBy(std::trunc, value);
  if (name == "floor") return RoundedBy(std::floor, value);
  if (name == "ceil") return RoundedBy(std::ceil, value);
  return std::nullopt;
}

std::optional<c10::IValue> Computed(std::string_view target, const std::vector<c10::IValue>& arguments) {
  if (target == "torch.ops.aten.sym_size.int" && arguments.size() == 2) {
    const at::Tensor& tensor = arguments[0].toTensor();
    return c10::IValue(tensor.size(c10::maybe_wrap_dim(arguments[1].toInt(), tensor.dim(), /*wrap_scalar=*/false)));
  }
  if (target == "torch.ops.aten.sym_numel.default" && arguments.size() == 1) {
    return c10::IValue(arguments[0].toTensor().numel());
  }
  const std::string_view name = target.substr(target.rfind('.') + 1);
  for (const c10::IValue& argument : arguments) {
    if (!IsWhole(argument) && !argument.isDouble()) return std::nullopt;
  }
  if (name == "sym_ite" && arguments.size() == 3) return Real(arguments[0]) != 0 ? arguments[1] : arguments[2];
  if (arguments.size() == 1) return OnOne(name, arguments[0]);
  if (arguments.size() != 2) return std::nullopt;
  if (IsWhole(arguments[0]) && IsWhole(arguments[1])) {
    return OnWholeNumbers(name, Whole(arguments[0]), Whole(arguments[1]));
  }
  return OnRealNumbers(name, Real(arguments[0]), Real(arguments[1]));
}

}  // namespace

void OperatorCall::RunSymbol(const std::vector<c10::IValue>& arguments, std::vector<c10::IValue>& values) const {
  std::optional<c10::IValue> result = Computed(target_, arguments);
  if (!result.has_value()) {
    ThrowStatus(Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
                      absl::StrCat("exported program node ", name_, ": has no result for these sizes, got ", target_))
                    .With("field", name_)
                    .With("value", target_));
  }
  values[results_[0]] = *std::move(result);
}

void OperatorCall::RunAssertion(const std::vector<c10::IValue>& arguments) const {
  const auto fail = [&](const std::string& what, const std::string& value) {
    ThrowStatus(Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
                      absl::StrCat("exported program node ", name_, ": ", what, ", got ", value))
                    .With("field", name_)
                    .With("value", value));
  };
  const auto argument = [&](const char* name) {
    const size_t position = Position(name);
    return position < arguments.size() ? arguments[position] : c10::IValue();
  };
  const auto message = [&] {
    const c10::IValue text = argument("assert_msg");
    return text.isString() && !text.toStringRef().empty() ? CleanFirstLine(text.toStringRef())
                                                          : std::string("an assertion of the model does not hold");
  };
  const OperatorNames names = NamesOfOperator(target_);
  if (arguments.empty()) return;
  if (names.name == "aten::_assert_tensor_metadata") {
    const c10::IValue type = argument("dtype");
    const at::Tensor& tensor = arguments[0].toTensor();
    if (type.isInt() && tensor.scalar_type() != static_cast<at::ScalarType>(type.toInt())) {
      fail(absl::StrCat("must be of the type that was exported, ",
                        c10::toString(static_cast<at::ScalarType>(type.toInt()))),
           c10::toString(tensor.scalar_type()));
    }
  } else if (names.name == "aten::_assert_scalar") {
    if (Real(arguments[0]) == 0) fail(message(), "false");
  } else if (names.name == "aten::_assert_async") {
    if (!arguments[0].toTensor().is_nonzero()) fail(message(), "false");
  } else {
    const double value = Real(arguments[0]);
    const c10::IValue least = argument("min");
    const c10::IValue most = argument("max");
    if ((!least.isNone() && value < Real(least)) || (!most.isNone() && value > Real(most))) {
      fail("must lie within the exported bounds", absl::StrCat(value));
    }
  }
}

}  // namespace penstock
