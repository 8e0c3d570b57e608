#pragma once

// Which operators an exported program may use.

#include <string>
#include <string_view>
#include <vector>

#include "engine/program/exported_program.h"

namespace penstock {

// How an operator is run.
enum class OperatorKind {
  kUnknown,    // not allowed
  kPlain,      // by LibTorch's dispatcher, as it is
  kSymbol,     // arithmetic on sizes
  kAssertion,  // what the exporter knew of values; an error if it does not hold
  kBatchNorm,  // engine/model/batch_norm: statistics change with the step
  kDropout,    // from the keyed generator, and so are the next three
  kFeatureDropout,
  kAttention,
  kRandom,
  kRecurrent,  // plain, but without a dropout of its own
};

// The kind of a target: torch.ops.aten.linear.default, _operator.mul.
OperatorKind KindOfOperator(std::string_view target);

// aten::linear and its overload (empty for `default`) of torch.ops.aten.linear.default; empty names for other targets.
struct OperatorNames {
  std::string name;
  std::string overload;
};
OperatorNames NamesOfOperator(std::string_view target);

// Targets of a graph that are not allowed, sorted, each once.
std::vector<std::string> UnknownOperators(const ProgramGraph& graph);

}  // namespace penstock
