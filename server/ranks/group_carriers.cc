#include "server/ranks/group_carriers.h"

#include <utility>

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/ucx/ucx_carrier.h"
#include "server/peer/grpc_carrier.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<Carrier>> GroupCarriers::Open(const GroupIdentity& group) const {
  if (options_.transport == PeerTransport::kUcx) {
    return UcxCarrier::Create({.transfer_timeout_nanos = absl::ToInt64Nanoseconds(options_.transfer_timeout),
                               .silence_nanos = absl::ToInt64Nanoseconds(options_.peer_timeout),
                               .clock = options_.clock});
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string host, options_.host());
  GrpcCarrier::Options grpc = {
      .self = options_.self, .key = std::string(group.key.data(), group.key.size()), .listen = host + ":0"};
  PENSTOCK_ASSIGN_OR_RETURN(grpc.server_credentials, PeerServerCredentials(options_.credentials));
  PENSTOCK_ASSIGN_OR_RETURN(grpc.channel_credentials, PeerChannelCredentials(options_.credentials));
  grpc.send_timeout_nanos = absl::ToInt64Nanoseconds(options_.transfer_timeout);
  grpc.keepalive_nanos = absl::ToInt64Nanoseconds(options_.peer_timeout / 2);
  grpc.timers = options_.timers;
  grpc.clock = options_.clock;
  return GrpcCarrier::Create(std::move(grpc));
}

absl::StatusOr<std::string> GroupCarriers::Prepare(const GroupIdentity& group) {
  LetGo();
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<Carrier> carrier, Open(group));
  PeerEdges::Options edges_options = {.group = group, .self = options_.self, .clock = options_.clock};
  edges_options.on_lost = [this, group](Rank, const absl::Status& why) {
    if (options_.on_lost) options_.on_lost(group, why);
  };
  auto edges = Counted(std::make_unique<PeerEdges>(std::move(edges_options), std::move(carrier)));
  std::string address = edges->address();
  absl::MutexLock lock(&mu_);
  group_ = group;
  std::erase_if(all_, [](const std::weak_ptr<PeerEdges>& one) { return one.expired(); });
  all_.push_back(edges);
  edges_ = std::move(edges);
  return address;
}

namespace {

void Add(const EdgeCounts& counts, PeerFigures* to) {
  for (const auto& [peer, traffic] : counts.received) {
    LinkFigures& link = to->from[peer];
    link.messages += traffic.messages;
    link.bytes += traffic.bytes;
  }
  to->dropped[static_cast<size_t>(PeerDrop::kMalformed)] += counts.malformed;
  to->dropped[static_cast<size_t>(PeerDrop::kStranger)] += counts.strangers;
  to->dropped[static_cast<size_t>(PeerDrop::kStale)] += counts.stale;
  to->dropped[static_cast<size_t>(PeerDrop::kUnwanted)] += counts.unwanted;
}

}  // namespace

std::shared_ptr<PeerEdges> GroupCarriers::Counted(std::unique_ptr<PeerEdges> edges) {
  {
    absl::MutexLock lock(&received_->mu);
    received_->edges.insert(edges.get());
  }
  return std::shared_ptr<PeerEdges>(edges.release(), [received = received_](PeerEdges* gone) {
    {
      absl::MutexLock lock(&received->mu);
      Add(gone->counts(), &received->gone);
      received->edges.erase(gone);
    }
    delete gone;
  });
}

GroupIdentity GroupCarriers::identity() const {
  absl::MutexLock lock(&mu_);
  return group_;
}

PeerFigures GroupCarriers::received() const {
  absl::MutexLock lock(&received_->mu);
  PeerFigures figures = received_->gone;
  for (const PeerEdges* edges : received_->edges) Add(edges->counts(), &figures);
  return figures;
}

absl::Status GroupCarriers::Form(const Group& group) {
  std::shared_ptr<PeerEdges> edges;
  {
    absl::MutexLock lock(&mu_);
    if (group.identity == group_) edges = edges_;
  }
  if (edges == nullptr) return Error(absl::StatusCode::kUnavailable, "RANK_LOST", "the generation is over");
  std::map<Rank, std::string> peers = group.carrier_addresses;
  peers.erase(options_.self);
  PENSTOCK_RETURN_IF_ERROR(edges->Start(peers));
  absl::MutexLock lock(&mu_);
  formed_ = group.identity == group_;
  return absl::OkStatus();
}

void GroupCarriers::Dissolve(Rank cause, const absl::Status& why) {
  std::vector<std::weak_ptr<PeerEdges>> all;
  {
    absl::MutexLock lock(&mu_);
    all = all_;
  }
  for (const std::weak_ptr<PeerEdges>& one : all) {
    const std::shared_ptr<PeerEdges> edges = one.lock();
    if (edges != nullptr && cause != options_.self && cause != kNobody) edges->Lose(cause, why);
  }
  LetGo();
}

void GroupCarriers::LetGo() {
  std::shared_ptr<PeerEdges> over;  // goes without the lock
  absl::MutexLock lock(&mu_);
  over = std::move(edges_);
  edges_ = nullptr;
  formed_ = false;
}

std::shared_ptr<PeerEdges> GroupCarriers::Of(uint32_t generation) const {
  absl::MutexLock lock(&mu_);
  return formed_ && group_.generation == generation ? edges_ : nullptr;
}

GroupFigures FiguresOf(const GroupCarriers& carriers) {
  const GroupIdentity identity = carriers.identity();
  GroupFigures figures;
  figures.epoch = identity.epoch.value();
  figures.generation = identity.generation;
  figures.received[static_cast<size_t>(carriers.kind())] = carriers.received();
  return figures;
}

}  // namespace penstock
