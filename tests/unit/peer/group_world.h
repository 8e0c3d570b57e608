#pragma once

// Leaders and ranks as processes of a small world, over real streams on the loopback and a clock that stands still.

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/base/timer_queue.h"
#include "server/identity/authenticator.h"
#include "server/peer/group_service.h"
#include "server/peer/leader_link.h"
#include "server/peer/membership.h"
#include "tests/support/fake_clock.h"

namespace penstock::testing {

inline constexpr absl::Duration kPatience =
    absl::Seconds(20);  // of tests, on the machine's clock; no test needs to wait so long

// What has happened, in words, for those who wait for it.
class Events {
 public:
  void Add(std::string event) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    events_.push_back(std::move(event));
  }
  // Waits until an event has happened; it is told once.
  bool Await(const std::string& event, absl::Duration patience = kPatience) ABSL_LOCKS_EXCLUDED(mu_) {
    const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return std::find(events_.begin(), events_.end(), event) != events_.end();
    };
    absl::MutexLock lock(&mu_);
    if (!mu_.AwaitWithTimeout(absl::Condition(&there), patience)) return false;
    events_.erase(std::find(events_.begin(), events_.end(), event));
    return true;
  }
  std::vector<std::string> Take() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return std::exchange(events_, {});
  }

 private:
  absl::Mutex mu_;
  std::vector<std::string> events_ ABSL_GUARDED_BY(mu_);
};

struct World {
  // Longer than any test advances the clock, but where it is about silence.
  absl::Duration peer_timeout = absl::Hours(1000);
  int size = 3;
  FakeClock clock = FakeClock();
  TimerQueue timers = TimerQueue(&clock);
  Events events = Events();

  // Waits for what needs another try of somebody, which the clock brings about.
  bool AwaitTries(const std::function<bool(absl::Duration patience)>& happens) {
    for (int i = 0; i < 1000; ++i) {
      if (happens(absl::Milliseconds(20))) return true;
      clock.Advance(absl::Seconds(2));
      timers.SettleForTest();
    }
    return false;
  }
  bool AwaitTries(const std::string& event) {
    return AwaitTries([&](absl::Duration patience) { return events.Await(event, patience); });
  }
};

inline RankDescription Describe(const World& world, int rank, int followed = 0) {
  return {.build = "1.0",
          .rank = Rank(rank),
          .world_size = world.size,
          .instance = RandomKey(),
          .followed = Epoch(followed)};
}

// A leader's process.
class Leader : public MembershipListener {
 public:
  Leader(World* world, int epoch, int port = 0, Role role = Role::kAdmin)
      : world_(world),
        authenticator_({.role = role}, &world->clock),
        membership_({.epoch = Epoch(epoch),
                     .world_size = world->size,
                     .build = "1.0",
                     .peer_timeout = world->peer_timeout,
                     .clock = &world->clock},
                    this),
        service_(&authenticator_, &membership_, &world->timers, &world->clock) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    service_.Start();
  }
  ~Leader() override {
    membership_.Close();
    server_->Shutdown();
    service_.Close();
  }

  void OnFormed(const Group& group, const std::map<Rank, FormedRank>& ranks) override {
    world_->events.Add(
        absl::StrCat("formed ", group.identity.epoch.value(), ".", group.identity.generation, " of ", ranks.size()));
  }
  void OnLost(Rank rank, const absl::Status& why) override {
    world_->events.Add(absl::StrCat("lost ", rank.value(), " ", ReasonOf(why)));
  }
  void OnFailed(Rank rank, const GroupIdentity&, const absl::Status& why) override {
    world_->events.Add(absl::StrCat("failed ", rank.value(), " ", ReasonOf(why)));
  }
  absl::Status OnTold(Rank rank, MessagePart part) override {
    world_->events.Add(absl::StrCat("told by ", rank.value(), ": ", part.data));
    return absl::OkStatus();
  }

  int port() const { return port_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  int64_t refused() const { return membership_.refused(); }
  GroupView view() const { return membership_.view(); }

 private:
  World* const world_;
  const Authenticator authenticator_;
  Membership membership_;
  GroupServiceImpl service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// Another rank's process, which does what its leader says.
class RankProcess : public RankHandler {
 public:
  RankProcess(World* world, int rank, const std::string& leader, int followed = 0)
      : world_(world),
        rank_(rank),
        link_({.self = Describe(*world, rank, followed),
               .leader = leader,
               .credentials = grpc::InsecureChannelCredentials,
               .peer_timeout = world->peer_timeout,
               .clock = &world->clock},
              &world->timers, this) {
    link_.Start();
  }
  ~RankProcess() override { link_.Close(); }

  void OnPrepare(const GroupIdentity& group) override {
    link_.Prepared(group, absl::StrCat(rank_, " in ", group.generation));
  }
  void OnForm(const Group& group) override {
    {
      absl::MutexLock lock(&mu_);
      group_ = group;
    }
    link_.Formed(group.identity);
  }
  void OnDissolve(const GroupIdentity& group, Rank cause, const absl::Status& why) override {
    Tell(absl::StrCat("dissolve ", group.generation, " for ", cause.value(), ": ", std::string(why.message())));
  }
  void OnDraining(bool draining) override { Tell(draining ? "leader drains" : "leader goes on"); }
  absl::Status OnTold(MessagePart part) override {
    Tell(absl::StrCat("told: ", part.data));
    return absl::OkStatus();
  }
  std::map<Rank, LinkFigures> Received() const override { return {{Rank(0), {.messages = 2, .bytes = 100 + rank_}}}; }
  void OnLeaderLost(const absl::Status& why) override { Tell("leader lost " + ReasonOf(why)); }

  Group group() const {
    absl::MutexLock lock(&mu_);
    return group_;
  }
  LeaderLink& link() { return link_; }
  // Waits until its link has ended with this reason.
  bool AwaitEnd(const std::string& reason) {
    return world_->AwaitTries([&](absl::Duration patience) {
      return ReasonOf(link_.status()) == reason || (world_->events.Await("never", patience), false);
    });
  }

 private:
  void Tell(const std::string& event) { world_->events.Add(absl::StrCat(rank_, " ", event)); }

  World* const world_;
  const int rank_;
  mutable absl::Mutex mu_;
  Group group_ ABSL_GUARDED_BY(mu_);
  LeaderLink link_;
};

}  // namespace penstock::testing
