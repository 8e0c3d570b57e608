#include "engine/serve/checkpoint_reader.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/cancel_token.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "engine/ledger/memory_ledger.h"
#include "engine/serve/call.h"
#include "engine/serve/saved_state.h"

namespace penstock {
namespace {

int64_t BytesOf(const NamedTensors& tensors) {
  int64_t bytes = 0;
  for (const NamedTensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.tensor.nbytes());
  return bytes;
}

// Those of these names, in their order.
absl::StatusOr<NamedTensors> Choose(const NamedTensors& all, const std::vector<std::string>& names) {
  std::map<std::string, const NamedTensor*> by_name;
  for (const NamedTensor& tensor : all) by_name.emplace(tensor.name, &tensor);
  NamedTensors chosen;
  for (const std::string& name : names) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      return Error(absl::StatusCode::kNotFound, "PARAMETER_NOT_FOUND",
                   "the checkpoint has no such parameter, got " + Shortened(name))
          .With("field", "names")
          .With("value", Shortened(name));
    }
    chosen.push_back(*found->second);
  }
  return chosen;
}

}  // namespace

void CheckpointReader::Read(std::shared_ptr<CheckpointFolder> folder, std::string id, std::string caller, ReadCall read,
                            std::shared_ptr<const CancelToken> cancel) {
  jobs_.Post([this, folder = std::move(folder), id = std::move(id), caller = std::move(caller), read = std::move(read),
              cancel = std::move(cancel)]() mutable {
    auto loaded =
        Guarded("the read of a checkpoint", [&]() -> absl::StatusOr<std::shared_ptr<const ParameterSnapshot>> {
          if (cancel->cancelled()) return CancelledCall();
          return Load(*folder, id, caller, read);
        });
    read.done(std::move(loaded));
  });
}

absl::StatusOr<std::shared_ptr<const ParameterSnapshot>> CheckpointReader::Load(CheckpointFolder& folder,
                                                                                const std::string& id,
                                                                                const std::string& caller,
                                                                                const ReadCall& read) const {
  PENSTOCK_ASSIGN_OR_RETURN(const CheckpointInfo info, folder.Find(id));
  PENSTOCK_ASSIGN_OR_RETURN(MemoryReservation held,
                            TakeMemory(memory_, {MemoryClass::kSnapshots, caller, info.pipeline}, 2 * info.bytes));
  absl::StatusOr<LoadedCheckpoint> loaded = folder.Load(id);
  if (!loaded.ok()) return WithValue(loaded.status(), "pipeline", info.pipeline);
  if (read.content != ReadContent::kWithOptimizer) {
    std::erase_if(loaded->state, [](const NamedTensor& tensor) { return IsOptimizerSlot(tensor.name); });
  }
  if (!read.names.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(loaded->state, Choose(loaded->state, read.names));
  }
  auto snapshot = std::make_shared<ParameterSnapshot>();
  snapshot->step = loaded->info.step;
  snapshot->tensors = std::move(loaded->state);
  PENSTOCK_RETURN_IF_ERROR(held.Resize(BytesOf(snapshot->tensors)));
  snapshot->held = std::make_shared<MemoryReservation>(std::move(held));
  return std::shared_ptr<const ParameterSnapshot>(std::move(snapshot));
}

}  // namespace penstock
