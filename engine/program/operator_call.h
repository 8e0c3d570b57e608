#pragma once

// One operator call of an exported program, found in LibTorch's dispatcher once and called many times.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/batch_norm.h"
#include "engine/model/layer.h"
#include "engine/program/exported_program.h"
#include "engine/program/operator_bounds.h"
#include "engine/program/operator_table.h"

namespace penstock {

// Of a literal or a size.
inline bool IsNumber(const c10::IValue& value) { return value.isInt() || value.isDouble() || value.isBool(); }
// A Python number where the schema wants a tensor: it takes part in type promotion as the number that it is.
at::Tensor WrappedNumber(const c10::IValue& number);

// What holds for the calls of one pass.
struct OperatorPass {
  const LayerContext& layer;
  c10::Device device = at::kCPU;            // what a device in the file becomes
  std::optional<bool> train_literals = {};  // instead of what the file says of dropout and normalisation
};

// A node with its schema.
//
// Model:     a stack of arguments in which the literals stand already; the others are numbers of values.
// Threads:   Run from any thread, each with values of its own.
// Fails:     Run throws (RunTorch) what LibTorch throws; INVALID_ARGUMENT / TENSOR_SIGNATURE for an assertion that does
//            not hold and an index that lies outside (operator_bounds.h); FAILED_PRECONDITION / SPEC_INVALID for random
//            numbers in evaluation.
class OperatorCall {
 public:
  // Fails: SPEC_INVALID for an operator that LibTorch does not have, and arguments that do not fit its schema.
  static absl::StatusOr<OperatorCall> Resolve(const ProgramNode& node);

  // Reads and writes `values`, by their numbers. A batch norm that trains uses `batch_norm`.
  void Run(std::vector<c10::IValue>& values, const OperatorPass& pass, BatchNorm* batch_norm) const;

  OperatorKind kind() const { return kind_; }
  // Values that the call takes, each once, and gives; no kNoValue among them.
  const std::vector<ProgramValueIndex>& inputs() const { return inputs_; }
  const std::vector<ProgramValueIndex>& outputs() const { return made_; }
  // The value that it changes in place, or kNoValue; its outputs are that value, then.
  ProgramValueIndex changes() const { return changes_; }
  // Values whose elements its outputs may share.
  const std::vector<ProgramValueIndex>& viewed() const { return viewed_; }
  // Whether the file says that this operator trains: of dropout and normalisation.
  bool trains() const { return trains_; }
  // Whether it draws random numbers in training.
  bool random() const;

  // Of a batch norm: its values, kNoValue for None, and its numbers.
  struct BatchNormArguments {
    ProgramValueIndex weight = kNoValue;
    ProgramValueIndex bias = kNoValue;
    ProgramValueIndex running_mean = kNoValue;
    ProgramValueIndex running_var = kNoValue;
    double momentum = 0;
    double eps = 0;
  };
  BatchNormArguments batch_norm_arguments() const;

  // Gives every value another number.
  void Renumber(const std::vector<ProgramValueIndex>& numbers);

 private:
  enum class ListOf { kTensors, kOptionalTensors, kInts, kDoubles, kBools };
  // An argument that is a value of the graph.
  struct Filled {
    size_t position = 0;
    ProgramValueIndex value = kNoValue;
    bool as_tensor = false;  // a number becomes a tensor
    bool as_double = false;
  };
  struct FilledList {
    size_t position = 0;
    ListOf of = ListOf::kTensors;
    std::vector<ProgramItem> items;  // a value among them
  };

  OperatorCall() = default;
  absl::Status ResolveSchema(const ProgramNode& node);
  absl::Status ResolveArgument(const ProgramNode& node, const c10::Argument& wanted, const ProgramArgument* given);
  absl::Status ResolveLiteral(const ProgramNode& node, const c10::Argument& wanted, const c10::TypePtr& type,
                              const c10::IValue& literal);
  absl::Status ResolveList(const ProgramNode& node, const c10::Argument& wanted, const c10::TypePtr& element,
                           std::vector<ProgramItem> items);
  absl::Status CheckArguments(const ProgramNode& node) const;
  void FindAliases();
  void KeepEachInputOnce();

  static c10::IValue MakeList(const FilledList& list, const std::vector<c10::IValue>& values);
  std::vector<c10::IValue> Stack(const std::vector<c10::IValue>& values, c10::Device device) const;
  void Keep(std::vector<c10::IValue> results, std::vector<c10::IValue>& values) const;
  void Dispatch(std::vector<c10::IValue> stack, std::vector<c10::IValue>& values) const;
  void RunDropout(std::vector<c10::IValue> stack, std::vector<c10::IValue>& values, const OperatorPass& pass) const;
  void RunAttention(std::vector<c10::IValue> stack, std::vector<c10::IValue>& values, const OperatorPass& pass) const;
  void RunRandom(std::vector<c10::IValue> stack, std::vector<c10::IValue>& values, const OperatorPass& pass) const;
  void RunBatchNorm(std::vector<c10::IValue> stack, std::vector<c10::IValue>& values, const OperatorPass& pass,
                    BatchNorm* batch_norm) const;
  void RunSymbol(const std::vector<c10::IValue>& arguments, std::vector<c10::IValue>& values) const;
  void RunAssertion(const std::vector<c10::IValue>& arguments) const;
  size_t Position(const char* argument) const;
  ProgramValueIndex ValueOf(const char* argument) const;

  std::string name_;
  std::string target_;
  OperatorKind kind_ = OperatorKind::kUnknown;
  std::optional<c10::OperatorHandle> operator_;  // none for symbols and assertions
  std::vector<c10::IValue> literals_;
  std::vector<std::string> argument_names_;
  std::vector<Filled> filled_;
  std::vector<FilledList> filled_lists_;
  std::vector<size_t> devices_;
  std::vector<ProgramValueIndex> results_;  // kNoValue for None
  bool results_are_list_ = false;
  std::vector<ProgramValueIndex> inputs_;
  std::vector<ProgramValueIndex> made_;
  std::vector<ProgramValueIndex> viewed_;
  ProgramValueIndex changes_ = kNoValue;
  bool trains_ = false;
  BoundsCheck bounds_ = nullptr;
  bool fills_ = false;  // with zeros what LibTorch leaves uninitialised, so that no old memory is seen
};

}  // namespace penstock
