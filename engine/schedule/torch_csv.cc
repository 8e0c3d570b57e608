#include "engine/schedule/torch_csv.h"

#include <array>
#include <cctype>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/csv.h"

namespace penstock {
namespace {

constexpr std::array<absl::string_view, 3> kDropped = {"UNSHARD", "RESHARD", "REDUCE_GRAD"};

// The dropped kind that the cell names, as in "2UNSHARD"; "" if it names none.
absl::string_view DroppedKind(absl::string_view cell) {
  size_t digits = 0;
  while (digits < cell.size() && std::isdigit(static_cast<unsigned char>(cell[digits]))) ++digits;
  if (digits == 0) return "";
  for (const absl::string_view kind : kDropped) {
    if (cell.substr(digits) == kind) return kind;
  }
  return "";
}

// The cells that stand for `cell`: two for an overlapped pair, else itself.
std::vector<absl::string_view> Expand(absl::string_view cell) {
  absl::string_view pair = cell;
  if (absl::ConsumePrefix(&pair, "(") && absl::ConsumeSuffix(&pair, ")OVERLAP_F_B")) {
    std::vector<absl::string_view> halves = absl::StrSplit(pair, ';');
    if (halves.size() == 2) return halves;
  }
  return {cell};
}

}  // namespace

absl::StatusOr<TorchImport> ImportTorchCsv(std::string_view text, std::string_view kind) {
  std::map<absl::string_view, int> dropped;
  const auto read = [&](std::string_view std_cell, std::vector<Action>* list) -> absl::Status {
    const absl::string_view cell(std_cell.data(), std_cell.size());
    if (const absl::string_view dropped_kind = DroppedKind(cell); !dropped_kind.empty()) {
      ++dropped[dropped_kind];
      return absl::OkStatus();
    }
    for (const absl::string_view part : Expand(cell)) {
      PENSTOCK_ASSIGN_OR_RETURN(const Action action, ParseAction({part.data(), part.size()}));
      list->push_back(action);
    }
    return absl::OkStatus();
  };
  TorchImport result;
  PENSTOCK_ASSIGN_OR_RETURN(result.schedule, ReadCsv(text, kind, read));
  for (const auto& [name, count] : dropped) {
    result.notices.push_back(absl::StrCat("dropped ", count, " ", name, ": parameters are not sharded here"));
  }
  return result;
}

absl::StatusOr<TorchImport> ReadSchedule(std::string_view text) {
  if (!text.starts_with("schedule ")) return ImportTorchCsv(text);
  TorchImport result;
  PENSTOCK_ASSIGN_OR_RETURN(result.schedule, ParseText(text));
  return result;
}

absl::StatusOr<std::string> ExportTorchCsv(const Schedule& schedule) {
  for (const auto& list : schedule.lanes) {
    for (const Action& action : list) {
      if (action.kind == ActionKind::kRecompute || action.kind == ActionKind::kOptimizer) {
        return InvalidField("schedule", "must hold no recomputation and no optimizer step for PyTorch",
                            ToString(action));
      }
      if (action.peer >= 0) {
        return InvalidField("schedule", "must hold no skip message, which names its peer, for PyTorch",
                            ToString(action));
      }
    }
  }
  return ToCsv(schedule);
}

}  // namespace penstock
