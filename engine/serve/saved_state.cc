#include "engine/serve/saved_state.h"

#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/shape_text.h"
#include "engine/base/status_macros.h"
#include "engine/exec/pipeline.h"

namespace penstock {
namespace {

constexpr std::string_view kOptimizer = "optimizer/";  // of the names optimizer/PARAMETER/SLOT

// What stands behind the blank in the digest of a specification.
std::string ProgramDigest(const std::string& spec_digest) {
  const size_t blank = spec_digest.find(' ');
  return blank == std::string::npos ? "" : spec_digest.substr(blank + 1);
}

std::map<std::string, const at::Tensor*> ByName(const NamedTensors& tensors) {
  std::map<std::string, const at::Tensor*> by_name;
  for (const NamedTensor& tensor : tensors) by_name.emplace(tensor.name, &tensor.tensor);
  return by_name;
}

bool Alike(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
}

std::string TypeText(const at::Tensor& tensor) {
  return absl::StrCat(ShapeText(tensor.sizes()), " of ", c10::toString(tensor.scalar_type()));
}

absl::Status Mismatch(const std::string& name, const std::string& problem, const std::string& value) {
  return Error(absl::StatusCode::kFailedPrecondition, "MODEL_MISMATCH",
               absl::StrCat(name, ": ", problem, ", got ", value))
      .With("field", name)
      .With("value", value);
}

// The parameter of an optimizer's slot; empty for what is none.
std::string ParameterOf(const std::string& name) {
  return IsOptimizerSlot(name) ? name.substr(0, name.rfind('/')) : "";
}

}  // namespace

bool IsOptimizerSlot(const std::string& name) { return name.starts_with(kOptimizer); }

absl::Status CheckProgram(const CheckpointInfo& info, const std::string& spec_digest) {
  const std::string saved = ProgramDigest(info.spec_digest);
  const std::string here = ProgramDigest(spec_digest);
  if (!info.damage.empty() || saved == here) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "MODEL_MISMATCH",
               absl::StrCat("the checkpoint was saved from another model file, ", saved.empty() ? "none" : saved,
                            ", got ", here.empty() ? "none" : here))
      .With("field", "spec.model.program_digest")
      .With("value", here)
      .With("checkpoint", info.id);
}

absl::Status CheckState(const NamedTensors& state, const NamedTensors& shapes) {
  std::map<std::string, const at::Tensor*> left = ByName(state);
  for (const NamedTensor& wanted : shapes) {
    const auto found = left.find(wanted.name);
    if (found == left.end()) return Mismatch(wanted.name, "is missing", "nothing");
    if (!Alike(*found->second, wanted.tensor)) {
      return Mismatch(wanted.name, "must be " + TypeText(wanted.tensor), TypeText(*found->second));
    }
    left.erase(found);
  }
  if (left.empty()) return absl::OkStatus();
  return Mismatch(left.begin()->first, "is not part of this pipeline's state", "a tensor");
}

absl::StatusOr<NamedTensors> FitState(NamedTensors saved, const Pipeline& pipeline) {
  const NamedTensors shapes = pipeline.StateShapes();
  const std::map<std::string, const at::Tensor*> by_name = ByName(saved);
  std::set<std::string> fresh;  // parameters whose optimizer state starts anew
  for (const NamedTensor& wanted : shapes) {
    const std::string parameter = ParameterOf(wanted.name);
    const auto found = by_name.find(wanted.name);
    if (!parameter.empty() && (found == by_name.end() || !Alike(*found->second, wanted.tensor)))
      fresh.insert(parameter);
  }
  NamedTensors initial;
  if (!fresh.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(initial, pipeline.ExportState(/*with_optimizer=*/true));
    LogInfo("the optimizer's state starts anew where the checkpoint's does not fit",
            {{"parameters", std::to_string(fresh.size())}});
  }
  std::set<std::string> slots;
  for (const NamedTensor& wanted : shapes) {
    if (const std::string parameter = ParameterOf(wanted.name); !parameter.empty() && !fresh.contains(parameter))
      slots.insert(wanted.name);
  }
  std::erase_if(saved, [&](const NamedTensor& tensor) {
    return !ParameterOf(tensor.name).empty() && !slots.contains(tensor.name);
  });
  for (NamedTensor& tensor : initial) {
    if (fresh.contains(ParameterOf(tensor.name))) saved.push_back(std::move(tensor));
  }
  return saved;
}

}  // namespace penstock
