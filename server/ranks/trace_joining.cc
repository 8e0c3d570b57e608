#include "server/ranks/trace_joining.h"

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/guard.h"
#include "engine/base/log.h"

namespace penstock {

TraceJoining::TraceJoining(TraceCapture own, std::map<Rank, RankClock> ranks, Done done)
    : own_(std::move(own)), ranks_(std::move(ranks)), done_(std::move(done)) {}

std::pair<int64_t, int64_t> TraceJoining::SpanOf(Rank rank) const {
  const RankClock& clock = ranks_.at(rank);
  return {own_.begin_nanos + clock.ahead_nanos - clock.uncertainty_nanos,
          own_.end_nanos + clock.ahead_nanos + clock.uncertainty_nanos};
}

void TraceJoining::GiveUp(const absl::Status& why) {
  std::vector<Rank> missing;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [rank, clock] : ranks_) {
      if (!done_called_ && !parts_.contains(rank)) missing.push_back(rank);
    }
  }
  for (const Rank rank : missing) Give(rank, why);
}

void TraceJoining::Give(Rank rank, absl::StatusOr<RankTrace> trace) {
  RankPart part{.clock = ranks_.at(rank)};
  absl::Status checked = trace.status();
  if (checked.ok()) {
    const auto [begin, end] = SpanOf(rank);
    checked = CheckRankTrace(*trace, rank, own_, begin, end);
  }
  if (checked.ok()) {
    part.trace = *std::move(trace);
  } else {
    LogWarning("a trace is without the lanes of a rank",
               {{"rank", ToString(rank)}, {"problem", std::string(checked.message())}});
    part.clock.missing = true;
  }
  std::map<Rank, RankPart> parts;
  {
    absl::MutexLock lock(&mu_);
    if (done_called_) return;
    parts_.try_emplace(rank, std::move(part));
    if (parts_.size() < ranks_.size()) return;
    done_called_ = true;
    parts.swap(parts_);
  }
  TraceCapture joint;
  joint.incomplete = true;  // where there is no memory for it, it is empty
  Guarded("a joint trace", [&] { joint = JoinTraces(own_, std::move(parts)); }).IgnoreError();
  done_(std::move(joint));
}

}  // namespace penstock
