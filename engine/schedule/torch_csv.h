#pragma once

// Schedules in the CSV that PyTorch's torch.distributed.pipelining writes and reads (compute_only and compute_comms
// alike). It is ours but for a few actions.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/schedule/schedule.h"

namespace penstock {

struct TorchImport {
  Schedule schedule;
  std::vector<std::string> notices;  // one sentence per kind of action that was dropped, for people
};

// Reads it: ParseCsv, and besides
// - an overlapped pair, `(0F5;7B2)OVERLAP_F_B`, becomes its two actions in order: the overlap is lost, the order holds;
// - UNSHARD, RESHARD and REDUCE_GRAD, which concern sharded parameters, are dropped with a notice.
absl::StatusOr<TorchImport> ImportTorchCsv(std::string_view text, std::string_view kind = "imported");

// Reads a schedule from a file of either form: what ToText writes, which begins with "schedule ", or CSV. Fails as
// ParseText and ImportTorchCsv; what it returns is not verified.
absl::StatusOr<TorchImport> ReadSchedule(std::string_view text);

// Writes it. INVALID_ARGUMENT / FIELD_INVALID, with the action, for R, OPT and messages with a peer (skip values),
// which PyTorch does not know.
absl::StatusOr<std::string> ExportTorchCsv(const Schedule& schedule);

}  // namespace penstock
