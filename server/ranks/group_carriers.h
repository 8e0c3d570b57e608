#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "engine/base/timer_queue.h"
#include "engine/observe/group_figures.h"
#include "engine/transport/peer_edges.h"
#include "server/peer/group.h"
#include "server/ranks/peer_credentials.h"

namespace penstock {

enum class PeerTransport { kUcx, kGrpc };

// The carrier of each generation of the group, and the edges that stand on it.
//
// Model:     One generation at a time is open. When another one begins, or this one is over, its edges stay for as long
//            as somebody has a share: pipelines that have lost nobody go on with them.
// Owns:      a share of the edges of the present generation. Timers and clock outlive all shares.
// Threads:   Prepare, Form and Dissolve from one thread, for they block; the others from any.
// Fails:     as `host`, UcxCarrier and GrpcCarrier; FAILED_PRECONDITION / FIELD_INVALID of a credential's file; UNAVAILABLE /
//            RANK_LOST where the generation is over.
class GroupCarriers {
 public:
  struct Options {
    Rank self;
    PeerTransport transport = PeerTransport::kUcx;
    // Where the others reach this process, for gRPC. Asked for each generation; may block.
    std::function<absl::StatusOr<std::string>()> host;
    PeerFiles credentials;  // for gRPC
    // An edge of the generation that is formed has failed. On any thread; must not block.
    std::function<void(const GroupIdentity&, const absl::Status& why)> on_lost = {};
    absl::Duration peer_timeout = absl::Seconds(5);
    absl::Duration transfer_timeout = absl::Seconds(60);
    TimerQueue* timers = nullptr;
    Clock* clock = nullptr;
  };
  explicit GroupCarriers(Options options) : options_(std::move(options)) {}

  Rank self() const { return options_.self; }

  // Opens a carrier for a generation; returns where it is reached.
  absl::StatusOr<std::string> Prepare(const GroupIdentity& group) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Form(const Group& group) ABSL_LOCKS_EXCLUDED(mu_);
  // The generation is over, because of that rank, which its edges and those of earlier ones give up.
  void Dissolve(Rank cause, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // The edges of a generation that is formed; null where it is over.
  std::shared_ptr<PeerEdges> Of(uint32_t generation) const ABSL_LOCKS_EXCLUDED(mu_);

  // The generation that was prepared last; all zero: none was.
  GroupIdentity identity() const ABSL_LOCKS_EXCLUDED(mu_);
  // What has come by the carriers of all generations; it never falls.
  PeerFigures received() const ABSL_LOCKS_EXCLUDED(mu_);
  CarrierKind kind() const {
    return options_.transport == PeerTransport::kUcx ? CarrierKind::kUcx : CarrierKind::kGrpc;
  }

 private:
  absl::StatusOr<std::unique_ptr<Carrier>> Open(const GroupIdentity& group) const;
  void LetGo() ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<PeerEdges> Counted(std::unique_ptr<PeerEdges> edges) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;

  mutable absl::Mutex mu_;
  GroupIdentity group_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<PeerEdges> edges_ ABSL_GUARDED_BY(mu_);  // null: none is open
  bool formed_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::weak_ptr<PeerEdges>> all_ ABSL_GUARDED_BY(mu_);  // that somebody may have a share of
  // What counts of edges that somebody has a share of, and what those that have gone had counted. It outlives them all.
  struct Received {
    absl::Mutex mu;
    std::set<const PeerEdges*> edges ABSL_GUARDED_BY(mu);
    PeerFigures gone ABSL_GUARDED_BY(mu);
  };
  const std::shared_ptr<Received> received_ = std::make_shared<Received>();
};

// What a rank knows of its group by its carriers.
GroupFigures FiguresOf(const GroupCarriers& carriers);

}  // namespace penstock
