#include "engine/exec/schedule_book.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/base/status_macros.h"

namespace penstock {
namespace {

Checkpointed CheckpointedBy(const Schedule& schedule) {
  Checkpointed checkpointed(schedule.stages, std::vector<bool>(schedule.micro_batches));
  for (const auto& list : schedule.lanes) {
    for (const Action& action : list) {
      if (action.kind == ActionKind::kRecompute) checkpointed[action.stage][action.micro_batch] = true;
    }
  }
  return checkpointed;
}

}  // namespace

absl::StatusOr<ListsOfRun> ScheduleBook::Find(SchedulePurpose purpose, int micro_batches) {
  const std::pair key(purpose, micro_batches);
  {
    absl::MutexLock lock(&mu_);
    if (const ListsOfRun* known = Use(key)) return *known;
  }
  PENSTOCK_ASSIGN_OR_RETURN(ListsOfRun built, Build(purpose, micro_batches));
  std::list<Entry> dropped;  // destroyed outside of the lock
  absl::MutexLock lock(&mu_);
  if (const ListsOfRun* known = Use(key)) return *known;  // another caller was first
  entries_.push_front({key, built});
  if (entries_.size() > kMaxLists) dropped.splice(dropped.begin(), entries_, std::prev(entries_.end()));
  return built;
}

size_t ScheduleBook::size() const {
  absl::MutexLock lock(&mu_);
  return entries_.size();
}

const ListsOfRun* ScheduleBook::Use(const std::pair<SchedulePurpose, int>& key) {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.key == key; });
  if (found == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found);
  return &entries_.front().lists;
}

absl::StatusOr<ListsOfRun> ScheduleBook::Build(SchedulePurpose purpose, int micro_batches) const {
  BuildRequest request = request_;
  request.purpose = purpose;
  request.micro_batches = micro_batches;
  PENSTOCK_ASSIGN_OR_RETURN(Schedule schedule, BuildSchedule(request));
  if (edit_) edit_(schedule);
  auto checkpointed = std::make_shared<const Checkpointed>(CheckpointedBy(schedule));
  return ListsOfRun{std::make_shared<const Schedule>(std::move(schedule)), std::move(checkpointed)};
}

}  // namespace penstock
