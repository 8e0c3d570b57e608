#include "engine/program/operator_call.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/device/torch_status.h"

namespace penstock {

at::Tensor WrappedNumber(const c10::IValue& number) {
  at::Tensor tensor = at::scalar_to_tensor(number.toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

bool OperatorCall::random() const {
  return kind_ == OperatorKind::kRandom || kind_ == OperatorKind::kDropout || kind_ == OperatorKind::kFeatureDropout ||
         (kind_ == OperatorKind::kAttention && trains_);
}

size_t OperatorCall::Position(const char* argument) const {
  return static_cast<size_t>(std::find(argument_names_.begin(), argument_names_.end(), argument) -
                             argument_names_.begin());
}

ProgramValueIndex OperatorCall::ValueOf(const char* argument) const {
  const size_t position = Position(argument);
  for (const Filled& one : filled_) {
    if (one.position == position) return one.value;
  }
  return kNoValue;
}

OperatorCall::BatchNormArguments OperatorCall::batch_norm_arguments() const {
  return {.weight = ValueOf("weight"),
          .bias = ValueOf("bias"),
          .running_mean = ValueOf("running_mean"),
          .running_var = ValueOf("running_var"),
          .momentum = literals_[Position("momentum")].toDouble(),
          .eps = literals_[Position("eps")].toDouble()};
}

void OperatorCall::Renumber(const std::vector<ProgramValueIndex>& numbers) {
  const auto renumber = [&](ProgramValueIndex& value) {
    if (value != kNoValue) value = numbers[value];
  };
  for (Filled& one : filled_) renumber(one.value);
  for (FilledList& list : filled_lists_) {
    for (ProgramItem& item : list.items) renumber(item.value);
  }
  for (std::vector<ProgramValueIndex>* values : {&results_, &inputs_, &made_, &viewed_}) {
    for (ProgramValueIndex& value : *values) renumber(value);
  }
  renumber(changes_);
}

c10::IValue OperatorCall::MakeList(const FilledList& list, const std::vector<c10::IValue>& values) {
  const auto fill = [&](auto made, const auto& read) -> c10::IValue {
    made.reserve(list.items.size());
    for (const ProgramItem& item : list.items)
      made.push_back(read(item.is_value() ? values[item.value] : item.literal));
    return made;
  };
  switch (list.of) {
    case ListOf::kTensors:
      return fill(c10::List<at::Tensor>(), [](const c10::IValue& item) { return item.toTensor(); });
    case ListOf::kOptionalTensors:
      return fill(c10::List<std::optional<at::Tensor>>(), [](const c10::IValue& item) {
        return item.isNone() ? std::optional<at::Tensor>() : std::optional<at::Tensor>(item.toTensor());
      });
    case ListOf::kInts:
      return fill(c10::List<int64_t>(), [](const c10::IValue& item) { return item.toInt(); });
    case ListOf::kDoubles:
      return fill(c10::List<double>(), [](const c10::IValue& item) { return item.toScalar().toDouble(); });
    case ListOf::kBools:
      return fill(c10::List<bool>(), [](const c10::IValue& item) { return item.toBool(); });
  }
  return {};
}

std::vector<c10::IValue> OperatorCall::Stack(const std::vector<c10::IValue>& values, c10::Device device) const {
  std::vector<c10::IValue> stack = literals_;
  for (const Filled& one : filled_) {
    c10::IValue value = values[one.value];
    if (one.as_tensor && IsNumber(value)) value = WrappedNumber(value);
    if (one.as_double && value.isInt()) value = static_cast<double>(value.toInt());
    stack[one.position] = std::move(value);
  }
  for (const size_t position : devices_) stack[position] = device;
  for (const FilledList& list : filled_lists_) stack[list.position] = MakeList(list, values);
  return stack;
}

void OperatorCall::Keep(std::vector<c10::IValue> results, std::vector<c10::IValue>& values) const {
  if (results_are_list_) {
    const std::vector<at::Tensor> tensors = results.at(0).toTensorVector();
    if (tensors.size() != results_.size()) {
      ThrowStatus(Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
                        absl::StrCat("node ", name_, ": must give ", results_.size(), " tensors, got ", tensors.size()))
                      .With("field", name_)
                      .With("value", absl::StrCat(tensors.size())));
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (results_[i] != kNoValue) values[results_[i]] = tensors[i];
    }
    return;
  }
  for (size_t i = 0; i < results_.size(); ++i) {
    if (results_[i] != kNoValue) values[results_[i]] = std::move(results.at(i));
  }
}

void OperatorCall::Dispatch(std::vector<c10::IValue> stack, std::vector<c10::IValue>& values) const {
  operator_->callBoxed(stack);
  if (fills_) stack.at(0).toTensor().zero_();
  Keep(std::move(stack), values);
}

void OperatorCall::Run(std::vector<c10::IValue>& values, const OperatorPass& pass, BatchNorm* batch_norm) const {
  std::vector<c10::IValue> stack = Stack(values, pass.device);
  if (bounds_ != nullptr) {
    const at::NoGradGuard no_graph;
    bounds_({argument_names_, stack});
  }
  switch (kind_) {
    case OperatorKind::kSymbol:
      return RunSymbol(stack, values);
    case OperatorKind::kAssertion:
      return RunAssertion(stack);
    case OperatorKind::kBatchNorm:
      return RunBatchNorm(std::move(stack), values, pass, batch_norm);
    case OperatorKind::kDropout:
    case OperatorKind::kFeatureDropout:
      return RunDropout(std::move(stack), values, pass);
    case OperatorKind::kAttention:
      return RunAttention(std::move(stack), values, pass);
    case OperatorKind::kRandom:
      return RunRandom(std::move(stack), values, pass);
    case OperatorKind::kRecurrent:
      stack[Position("train")] = pass.train_literals.value_or(trains_);
      return Dispatch(std::move(stack), values);
    default:
      return Dispatch(std::move(stack), values);
  }
}

}  // namespace penstock
