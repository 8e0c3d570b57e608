#include <ATen/core/jit_type.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/program/operator_call.h"
#include "engine/program/program_archive.h"

// How a node finds its operator: arguments against the schema, before anything runs.

namespace penstock {
namespace {

c10::TypePtr WithoutOptional(const c10::TypePtr& type, bool& optional) {
  optional = type->kind() == c10::TypeKind::OptionalType;
  return optional ? type->castRaw<c10::OptionalType>()->getElementType() : type;
}

absl::Status NodeError(const ProgramNode& node, std::string_view problem, const std::string& value) {
  return ProgramError(absl::StrCat("node ", node.name, " (", node.target, ")"), problem, value);
}

}  // namespace

absl::StatusOr<OperatorCall> OperatorCall::Resolve(const ProgramNode& node) {
  OperatorCall call;
  call.name_ = node.name;
  call.target_ = node.target;
  call.kind_ = KindOfOperator(node.target);
  call.results_ = node.outputs;
  call.results_are_list_ = node.outputs_are_list;
  for (const ProgramValueIndex output : node.outputs) {
    if (output != kNoValue) call.made_.push_back(output);
  }
  if (call.kind_ == OperatorKind::kUnknown) return NodeError(node, "operator is not supported", node.target);
  if (call.kind_ == OperatorKind::kSymbol || call.kind_ == OperatorKind::kAssertion) {
    for (const ProgramArgument& argument : node.arguments) {
      call.argument_names_.push_back(argument.name);
      call.literals_.emplace_back();
      if (argument.kind != ProgramArgument::Kind::kItem)
        continue;  // of assertions: sizes that an operator checks anyway
      call.literals_.back() = argument.items[0].literal;
      if (!argument.items[0].is_value()) continue;
      call.filled_.push_back({.position = call.literals_.size() - 1, .value = argument.items[0].value});
      call.inputs_.push_back(argument.items[0].value);
    }
    call.KeepEachInputOnce();
    const bool gives = call.kind_ == OperatorKind::kSymbol;
    if (node.outputs.size() != (gives ? 1 : 0) || (gives && node.outputs[0] == kNoValue) || node.outputs_are_list) {
      return NodeError(node, "must give one result if it computes, none if it checks",
                       absl::StrCat(node.outputs.size()));
    }
    return call;
  }
  PENSTOCK_RETURN_IF_ERROR(call.ResolveSchema(node));
  call.KeepEachInputOnce();
  return call;
}

absl::Status OperatorCall::ResolveSchema(const ProgramNode& node) {
  OperatorNames names = NamesOfOperator(node.target);
  operator_ = c10::Dispatcher::singleton().findSchema({names.name, names.overload});
  if (!operator_.has_value()) return NodeError(node, "is not an operator of this LibTorch", node.target);
  if (kind_ == OperatorKind::kRandom) {
    // Some take a generator in an overload of their own.
    const auto takes_generator = [](const c10::Argument& argument) { return argument.name() == "generator"; };
    const std::vector<c10::Argument>& arguments = operator_->schema().arguments();
    if (std::none_of(arguments.begin(), arguments.end(), takes_generator)) {
      names.overload = names.overload.empty() ? "generator" : names.overload + "_generator";
      operator_ = c10::Dispatcher::singleton().findSchema({names.name, names.overload});
      if (!operator_.has_value()) return NodeError(node, "draws from no generator of ours", node.target);
    }
  }
  const c10::FunctionSchema& schema = operator_->schema();
  for (const ProgramArgument& argument : node.arguments) {
    const auto is_it = [&](const c10::Argument& wanted) { return wanted.name() == argument.name; };
    if (std::count_if(schema.arguments().begin(), schema.arguments().end(), is_it) == 0) {
      return NodeError(node, "has an argument that the operator does not take", argument.name);
    }
  }
  for (const c10::Argument& wanted : schema.arguments()) {
    const auto is_it = [&](const ProgramArgument& argument) { return argument.name == wanted.name(); };
    const auto given = std::find_if(node.arguments.begin(), node.arguments.end(), is_it);
    argument_names_.push_back(wanted.name());
    literals_.emplace_back();
    PENSTOCK_RETURN_IF_ERROR(ResolveArgument(node, wanted, given == node.arguments.end() ? nullptr : &*given));
  }
  const bool list = schema.returns().size() == 1 && schema.returns()[0].type()->kind() == c10::TypeKind::ListType;
  if (list != results_are_list_ || (!list && schema.returns().size() != results_.size())) {
    return NodeError(node, absl::StrCat("gives ", schema.returns().size(), " results"), absl::StrCat(results_.size()));
  }
  FindAliases();
  bounds_ = BoundsOfOperator(schema.name());
  const std::string_view fresh[] = {"aten::empty", "aten::empty_like", "aten::empty_permuted", "aten::new_empty"};
  fills_ = std::count(std::begin(fresh), std::end(fresh), std::string_view(schema.name())) != 0;
  PENSTOCK_RETURN_IF_ERROR(CheckArguments(node));
  const char* const train =
      kind_ == OperatorKind::kBatchNorm ? "training"
      : kind_ == OperatorKind::kDropout || kind_ == OperatorKind::kFeatureDropout || kind_ == OperatorKind::kRecurrent
          ? "train"
          : nullptr;
  if (train != nullptr) {
    const c10::IValue literal = Position(train) < literals_.size() ? literals_[Position(train)] : c10::IValue();
    if (!literal.isBool()) return NodeError(node, "must be told whether it trains", train);
    trains_ = literal.toBool();
  }
  if (kind_ == OperatorKind::kAttention) trains_ = literals_[Position("dropout_p")].toDouble() > 0;
  return absl::OkStatus();
}

absl::Status OperatorCall::ResolveArgument(const ProgramNode& node, const c10::Argument& wanted,
                                           const ProgramArgument* given) {
  // Where a stage's memory lies is the stage's matter.
  if (given == nullptr || wanted.name() == "pin_memory") {
    const bool generator = wanted.name() == "generator";
    if (!wanted.default_value().has_value() && !generator) return NodeError(node, "lacks an argument", wanted.name());
    if (wanted.default_value().has_value()) literals_.back() = *wanted.default_value();
    return absl::OkStatus();
  }
  if (given->kind == ProgramArgument::Kind::kDevice) {
    devices_.push_back(literals_.size() - 1);
    return absl::OkStatus();
  }
  bool optional = false;
  const c10::TypePtr type = WithoutOptional(wanted.type(), optional);
  if (given->kind == ProgramArgument::Kind::kItem && !given->items[0].is_value() && given->items[0].literal.isNone()) {
    if (!optional) return NodeError(node, "must not be None", wanted.name());
    return absl::OkStatus();
  }
  if (type->kind() == c10::TypeKind::ListType) {
    std::vector<ProgramItem> items = given->items;
    // One number for a list of a fixed length stands for all.
    if (given->kind == ProgramArgument::Kind::kItem) items.resize(wanted.N().value_or(1), given->items[0]);
    return ResolveList(node, wanted, type->castRaw<c10::ListType>()->getElementType(), std::move(items));
  }
  if (given->kind != ProgramArgument::Kind::kItem) return NodeError(node, "must not be a list", wanted.name());
  const ProgramItem& item = given->items[0];
  if (!item.is_value()) return ResolveLiteral(node, wanted, type, item.literal);
  filled_.push_back({.position = literals_.size() - 1,
                     .value = item.value,
                     .as_tensor = type->kind() == c10::TypeKind::TensorType,
                     .as_double = type->kind() == c10::TypeKind::FloatType});
  inputs_.push_back(item.value);
  return absl::OkStatus();
}

absl::Status OperatorCall::ResolveLiteral(const ProgramNode& node, const c10::Argument& wanted,
                                          const c10::TypePtr& type, const c10::IValue& literal) {
  bool fits = false;
  c10::IValue& slot = literals_.back();
  slot = literal;
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      fits = IsNumber(literal);
      if (fits) slot = WrappedNumber(literal);
      break;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      fits = literal.isInt() || literal.isBool();
      if (literal.isBool()) slot = static_cast<int64_t>(literal.toBool());
      break;
    case c10::TypeKind::FloatType:
      fits = IsNumber(literal);
      if (fits) slot = literal.toScalar().toDouble();
      break;
    case c10::TypeKind::NumberType:
      fits = IsNumber(literal);
      break;
    case c10::TypeKind::BoolType:
      fits = literal.isBool();
      break;
    case c10::TypeKind::StringType:
      fits = literal.isString();
      break;
    default:
      break;
  }
  return fits ? absl::OkStatus() : NodeError(node, "has an argument of another type", wanted.name());
}

absl::Status OperatorCall::ResolveList(const ProgramNode& node, const c10::Argument& wanted,
                                       const c10::TypePtr& element, std::vector<ProgramItem> items) {
  FilledList list{.position = literals_.size() - 1, .of = ListOf::kTensors, .items = std::move(items)};
  bool optional = false;
  const c10::TypeKind kind = WithoutOptional(element, optional)->kind();
  if (kind == c10::TypeKind::TensorType) {
    list.of = optional ? ListOf::kOptionalTensors : ListOf::kTensors;
  } else if (kind == c10::TypeKind::IntType || kind == c10::TypeKind::SymIntType) {
    list.of = ListOf::kInts;
  } else if (kind == c10::TypeKind::FloatType) {
    list.of = ListOf::kDoubles;
  } else if (kind == c10::TypeKind::BoolType) {
    list.of = ListOf::kBools;
  } else {
    return NodeError(node, "has an argument of another type", wanted.name());
  }
  for (const ProgramItem& item : list.items) {
    if (item.is_value()) {
      inputs_.push_back(item.value);
      continue;
    }
    const bool fits = list.of == ListOf::kOptionalTensors ? item.literal.isNone()
                      : list.of == ListOf::kInts          ? item.literal.isInt()
                      : list.of == ListOf::kDoubles       ? item.literal.isDouble() || item.literal.isInt()
                      : list.of == ListOf::kBools         ? item.literal.isBool()
                                                          : false;
    if (!fits) return NodeError(node, "has a list with an item of another type", wanted.name());
  }
  const bool filled =
      std::any_of(list.items.begin(), list.items.end(), [](const auto& item) { return item.is_value(); });
  if (filled) {
    filled_lists_.push_back(std::move(list));
  } else {
    literals_.back() = MakeList(list, {});  // shared by all calls: no operator changes a list of its arguments
  }
  return absl::OkStatus();
}

// Numbers that are needed before a run must be literals. And what no schema says.
absl::Status OperatorCall::CheckArguments(const ProgramNode& node) const {
  std::vector<const char*> needed;
  if (kind_ == OperatorKind::kBatchNorm) needed = {"momentum", "eps"};
  if (kind_ == OperatorKind::kAttention) needed = {"dropout_p"};
  if (kind_ == OperatorKind::kRecurrent) needed = {"dropout"};
  for (const char* name : needed) {
    const size_t position = Position(name);
    if (position >= literals_.size() || !literals_[position].isDouble()) {
      return NodeError(node, "must have a number that the file names", name);
    }
  }
  if (kind_ == OperatorKind::kRecurrent && literals_[Position("dropout")].toDouble() != 0) {
    return NodeError(node, "must have no dropout of its own: put one between recurrent layers", "some");
  }
  // It moves running statistics without saying so in its schema.
  if (operator_->schema().name() == "aten::instance_norm" && ValueOf("running_mean") != kNoValue) {
    return NodeError(node, "must have no running statistics", "running_mean");
  }
  return absl::OkStatus();
}

void OperatorCall::KeepEachInputOnce() {
  std::sort(inputs_.begin(), inputs_.end());
  inputs_.erase(std::unique(inputs_.begin(), inputs_.end()), inputs_.end());
}

// Which results are changed arguments, and which may be views of arguments. Some composite operators give their
// argument back although their schema does not say so.
void OperatorCall::FindAliases() {
  static constexpr std::string_view kSilent[] = {"aten::atleast_1d", "aten::atleast_2d",      "aten::atleast_3d",
                                                 "aten::dropout",    "aten::feature_dropout", "aten::broadcast_tensors",
                                                 "aten::meshgrid",   "aten::type_as",         "aten::lift_fresh"};
  const c10::FunctionSchema& schema = operator_->schema();
  const bool silent = std::count(std::begin(kSilent), std::end(kSilent), std::string_view(schema.name())) != 0;
  const auto values_at = [&](size_t position) {
    std::vector<ProgramValueIndex> values;
    for (const Filled& one : filled_) {
      if (one.position == position) values.push_back(one.value);
    }
    for (const FilledList& list : filled_lists_) {
      if (list.position != position || (list.of != ListOf::kTensors && list.of != ListOf::kOptionalTensors)) continue;
      for (const ProgramItem& item : list.items) {
        if (item.is_value()) values.push_back(item.value);
      }
    }
    return values;
  };
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    const std::vector<ProgramValueIndex> values = values_at(i);
    if (alias != nullptr && alias->isWrite() && values.size() == 1) {
      changes_ = values[0];
    } else if ((alias != nullptr || silent) && !values.empty()) {
      viewed_.insert(viewed_.end(), values.begin(), values.end());
    }
  }
}

}  // namespace penstock
