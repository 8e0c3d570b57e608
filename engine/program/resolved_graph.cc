#include "engine/program/resolved_graph.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/program/program_archive.h"

namespace penstock {
namespace {

// What helps against operators that are not known.
std::string HintAgainst(const std::vector<std::string>& unknown) {
  const auto grouped = [](const std::string& name) { return absl::StrContains(name, "grouped_mm"); };
  if (std::none_of(unknown.begin(), unknown.end(), grouped)) return "";
  // Transformers' default for mixtures of experts; of its other ways, this one is made of known operators.
  return "; experts of transformers work if the model is exported after model.set_experts_implementation('batched_mm')";
}

absl::Status CheckOperatorsKnown(const ProgramGraph& graph) {
  const std::vector<std::string> unknown = UnknownOperators(graph);
  if (unknown.empty()) return absl::OkStatus();
  const std::string names = absl::StrJoin(unknown, ", ");
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
               absl::StrCat("exported program operators: are not supported, got ", names, HintAgainst(unknown)))
      .With("field", "operators")
      .With("value", names);
}

// Values that may share elements, as union-find: the smallest number of a class is its root.
class ValueClasses {
 public:
  explicit ValueClasses(std::vector<ProgramValueIndex> numbers) : parent_(std::move(numbers)) {}

  void Join(ProgramValueIndex left, ProgramValueIndex right) {
    const auto [small, large] = std::minmax({Root(left), Root(right)});
    parent_[large] = small;
  }

  // The root of each value.
  std::vector<ProgramValueIndex> Names() && {
    for (size_t v = 0; v < parent_.size(); ++v) parent_[v] = Root(static_cast<ProgramValueIndex>(v));
    return std::move(parent_);
  }

 private:
  ProgramValueIndex Root(ProgramValueIndex value) {
    while (parent_[value] != value) value = parent_[value] = parent_[parent_[value]];
    return value;
  }

  std::vector<ProgramValueIndex> parent_;
};

// Notes the tensors that count the batches of the graph's batch norms.
void FindCounters(ResolvedGraph& resolved) {
  for (const OperatorCall& call : resolved.calls) {
    if (call.kind() != OperatorKind::kBatchNorm) continue;
    const ProgramValueIndex mean = call.batch_norm_arguments().running_mean;
    if (mean == kNoValue || resolved.TensorOf(mean) < 0) continue;
    if (const int counter = CounterBeside(*resolved.program, resolved.TensorOf(mean)); counter >= 0) {
      resolved.counters.insert(counter);
    }
  }
}

absl::Status CheckParametersStay(const ResolvedGraph& resolved) {
  for (const auto& [value, tensor] : resolved.graph->tensors) {
    const auto changed = resolved.changes.find(resolved.classes[value]);
    if (changed == resolved.changes.end()) continue;
    if (resolved.program->tensors[tensor].kind == ProgramTensor::Kind::kParameter) {
      return ProgramError(absl::StrCat("node ", resolved.graph->nodes[changed->second[0]].name),
                          "must not change a parameter in place", resolved.program->tensors[tensor].name);
    }
  }
  return absl::OkStatus();
}

}  // namespace

int CounterBeside(const ExportedProgram& program, int running_mean) {
  const std::string& name = program.tensors[running_mean].name;
  if (!absl::EndsWith(name, "running_mean")) return -1;
  const std::string counter = absl::StrCat(absl::StripSuffix(name, "running_mean"), "num_batches_tracked");
  for (size_t t = 0; t < program.tensors.size(); ++t) {
    if (program.tensors[t].name == counter) return static_cast<int>(t);
  }
  return -1;
}

int ResolvedGraph::TensorOf(ProgramValueIndex number) const {
  const auto found = graph->tensors.find(number);
  return found == graph->tensors.end() ? -1 : found->second;
}

bool ResolvedGraph::CountsBatches(int call) const {
  const ProgramValueIndex changed = calls[call].changes();
  if (changed == kNoValue) return false;
  return counters.count(TensorOf(changed)) != 0 && graph->nodes[call].target == "torch.ops.aten.add_.Tensor";
}

absl::StatusOr<ResolvedGraph> ResolveGraph(const ExportedProgram& program, const ProgramGraph& graph) {
  PENSTOCK_RETURN_IF_ERROR(CheckOperatorsKnown(graph));
  ResolvedGraph resolved;
  resolved.program = &program;
  resolved.graph = &graph;
  resolved.numbers.resize(graph.values.size());
  std::iota(resolved.numbers.begin(), resolved.numbers.end(), 0);
  ValueClasses classes(resolved.numbers);
  for (const ProgramNode& node : graph.nodes) {
    PENSTOCK_ASSIGN_OR_RETURN(OperatorCall call, OperatorCall::Resolve(node));
    resolved.trains = resolved.trains || call.trains();
    call.Renumber(resolved.numbers);
    if (call.changes() != kNoValue) {
      for (const ProgramValueIndex output : call.outputs()) {
        resolved.numbers[output] = call.changes();
        classes.Join(output, call.changes());
      }
      call.Renumber(resolved.numbers);
    }
    for (const ProgramValueIndex output : call.outputs()) {
      for (const ProgramValueIndex viewed : call.viewed()) classes.Join(output, viewed);
    }
    resolved.calls.push_back(std::move(call));
  }
  resolved.classes = std::move(classes).Names();
  FindCounters(resolved);
  for (size_t c = 0; c < resolved.calls.size(); ++c) {
    const ProgramValueIndex changed = resolved.calls[c].changes();
    if (changed != kNoValue) resolved.changes[resolved.classes[changed]].push_back(static_cast<int>(c));
  }
  PENSTOCK_RETURN_IF_ERROR(CheckParametersStay(resolved));
  return resolved;
}

}  // namespace penstock
