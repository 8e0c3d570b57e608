#include "engine/serve/parameter_reader.h"

#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/exec/pipeline.h"
#include "engine/ledger/memory_ledger.h"
#include "engine/plan/layer_names.h"
#include "engine/serve/saved_state.h"

namespace penstock {

absl::StatusOr<std::shared_ptr<const ParameterSnapshot>> ParameterReader::Take(const ReadCall& read,
                                                                               const std::string& caller,
                                                                               int64_t version) const {
  // A copy of an earlier step may still be read, but nothing is served of a pipeline between two steps.
  if (absl::Status broken = pipeline_->health(); !broken.ok()) {
    return WithValue(std::move(broken), "pipeline", name_);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<const ParameterSnapshot> all,
                            snapshots_.Take(version, read.content, [&] { return Copy(read.content, caller); }));
  if (read.names.empty()) return all;
  // Keeps the whole copy, so that it is counted as long as a part of it is read.
  std::shared_ptr<ParameterSnapshot> chosen(new ParameterSnapshot{.step = all->step},
                                            [all](const ParameterSnapshot* part) { delete part; });
  Index index;
  for (const NamedTensor& tensor : all->tensors) index.emplace(tensor.name, &tensor);
  if (read.content == ReadContent::kGradients) {  // what has none is known, and left out
    for (const NamedTensor& tensor : pipeline_->StateShapes()) {
      if (!IsOptimizerSlot(tensor.name)) index.emplace(tensor.name, nullptr);
    }
  }
  std::unordered_set<std::string> taken;
  for (size_t i = 0; i < read.names.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(const Index::value_type* const found, Find(index, read.names[i]));
    if (!taken.insert(found->first).second) {
      return InvalidField(absl::StrCat("names[", i, "]"), "must not name a parameter again", Shortened(read.names[i]));
    }
    if (found->second != nullptr) chosen->tensors.push_back(*found->second);
  }
  return std::shared_ptr<const ParameterSnapshot>(std::move(chosen));
}

absl::StatusOr<ParameterSnapshot> ParameterReader::Copy(ReadContent content, const std::string& caller) const {
  const bool with_optimizer = content == ReadContent::kWithOptimizer;
  ParameterSnapshot copy{.step = pipeline_->step()};
  int64_t bytes = 0;
  for (const NamedTensor& tensor : pipeline_->StateShapes()) {
    if (with_optimizer || !IsOptimizerSlot(tensor.name)) bytes += static_cast<int64_t>(tensor.tensor.nbytes());
  }
  PENSTOCK_ASSIGN_OR_RETURN(MemoryReservation held,
                            TakeMemory(memory_, {MemoryClass::kSnapshots, caller, name_}, bytes));
  copy.held = std::make_shared<MemoryReservation>(std::move(held));
  PENSTOCK_ASSIGN_OR_RETURN(copy.tensors, content == ReadContent::kGradients ? pipeline_->ExportGradients()
                                                                             : pipeline_->ExportState(with_optimizer));
  return copy;
}

// By its own name, or by the one that it has counted within its stage.
absl::StatusOr<const ParameterReader::Index::value_type*> ParameterReader::Find(const Index& all,
                                                                                const std::string& name) const {
  if (const auto found = all.find(name); found != all.end()) return &*found;
  PENSTOCK_ASSIGN_OR_RETURN(const std::string alias, FromPartitionName(pipeline_->plan(), name));
  if (const auto found = all.find(alias); found != all.end()) return &*found;
  return Error(absl::StatusCode::kNotFound, "PARAMETER_NOT_FOUND",
               "the pipeline has no such parameter, got " + Shortened(name))
      .With("field", "names")
      .With("value", Shortened(name));
}

}  // namespace penstock
