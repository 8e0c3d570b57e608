#include "server/ranks/following_rank.h"

#include <utility>

namespace penstock {

FollowingRank::FollowingRank(Options options, TimerQueue* timers)
    : member_(std::move(options.carriers),
              {.prepared = [this](const GroupIdentity& group,
                                  const std::string& address) { link_.Prepared(group, address); },
               .formed = [this](const GroupIdentity& group) { link_.Formed(group); },
               .failed = [this](const GroupIdentity& group, const absl::Status& why) { link_.Failed(group, why); }}),
      stages_([this, stages = std::move(options.stages)]() mutable {
        stages.edges = [this](uint32_t generation) { return member_.carriers().Of(generation); };
        stages.tell = [this](std::vector<MessagePart> parts) { link_.Tell(std::move(parts)); };
        return std::move(stages);
      }()),
      link_(std::move(options.link), timers, this) {}

// Its edges go before its stages are taken down, so that no lane waits for a message.
void FollowingRank::OnLeaderLost(const absl::Status& why) {
  leader_drains_ = false;
  member_.Dissolve(Rank(0), why);
  stages_.DropAll();
}

std::map<Rank, LinkFigures> FollowingRank::Received() const { return member_.carriers().received().from; }

void FollowingRank::Close() {
  link_.Close();
  member_.Dissolve(Rank(0), absl::CancelledError("this rank is stopping"));
  stages_.Close();
  member_.Close();
}

}  // namespace penstock
