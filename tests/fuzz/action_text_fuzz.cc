// Feeds foreign text to the readers of actions and schedules. What they take must be what the writers write.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/schedule/action.h"
#include "engine/schedule/torch_csv.h"
#include "tests/fuzz/fuzz_checks.h"

namespace {

using penstock::testing::Demand;
using penstock::testing::DemandReason;

void CheckAction(std::string_view text) {
  const auto action = penstock::ParseAction(text);
  DemandReason(action.status());
  if (action.ok()) Demand(penstock::ToString(*action) == text, "an action is not written as it was read");
}

void CheckSchedule(std::string_view text) {
  const auto read = penstock::ReadSchedule(text);
  DemandReason(read.status());
  if (!read.ok()) return;
  const penstock::Schedule& schedule = read->schedule;
  const auto again = penstock::ParseText(penstock::ToText(schedule));
  Demand(again.ok() && *again == schedule, "a schedule's text does not give it back");
  const auto csv = penstock::ParseCsv(penstock::ToCsv(schedule), schedule.kind);
  Demand(csv.ok() && csv->lanes == schedule.lanes, "a schedule's CSV does not give it back");
  const auto exported = penstock::ExportTorchCsv(schedule);
  DemandReason(exported.status());
  if (!exported.ok()) return;
  const auto imported = penstock::ImportTorchCsv(*exported, schedule.kind);
  Demand(imported.ok() && imported->schedule.lanes == schedule.lanes, "PyTorch's CSV does not give a schedule back");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  CheckAction(text);
  CheckSchedule(text);
  return 0;
}
