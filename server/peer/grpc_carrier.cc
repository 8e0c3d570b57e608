#include "server/peer/grpc_carrier.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "grpcpp/create_channel.h"
#include "penstock/peer/v1/transfer.pb.h"
#include "server/peer/incoming_edge.h"
#include "server/peer/outgoing_edge.h"
#include "server/peer/transfer_messages.h"

namespace penstock {
namespace {

constexpr int64_t kHelloNanos = int64_t{10} * 1'000'000'000;

absl::Status NotInGroup(Rank rank) {
  return absl::PermissionDeniedError(absl::StrCat("rank ", rank.value(), " is not in this group"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcCarrier>> GrpcCarrier::Create(Options options) {
  std::unique_ptr<GrpcCarrier> carrier(new GrpcCarrier(std::move(options)));
  const Options& own = carrier->options_;
  PENSTOCK_ASSIGN_OR_RETURN(carrier->server_,
                            TransferServer::Create(own.listen, own.server_credentials, own.keepalive_nanos,
                                                   [made = carrier.get()](grpc::CallbackServerContext* context) {
                                                     return made->Take(context);
                                                   }));
  return carrier;
}

GrpcCarrier::~GrpcCarrier() { Close(); }

absl::Status GrpcCarrier::Start(const std::map<Rank, std::string>& peers, Handlers handlers) {
  handlers_ = std::move(handlers);
  std::vector<std::shared_ptr<OutgoingEdge>> edges;
  std::vector<std::shared_ptr<IncomingEdge>> waiting, strangers;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [peer, address] : peers) edges.push_back(outgoing_[peer] = Open(peer, address));
    outgoing_left_ = static_cast<int>(edges.size());
    for (const auto& [rank, edge] : incoming_) (outgoing_.contains(rank) ? waiting : strangers).push_back(edge);
    started_ = true;
  }
  for (const auto& edge : edges) edge->Start(MakeHello(options_.self, options_.key));
  for (const auto& edge : waiting) edge->Begin();
  for (const auto& edge : strangers) edge->End(absl::PermissionDeniedError("its rank is not in this group"));
  return absl::OkStatus();
}

std::shared_ptr<OutgoingEdge> GrpcCarrier::Open(Rank peer, const std::string& address) {
  auto credentials = options_.channel_credentials;
  if (credentials == nullptr) credentials = grpc::InsecureChannelCredentials();
  return std::make_shared<OutgoingEdge>(
      OutgoingEdge::Options{.send_timeout_nanos = options_.send_timeout_nanos,
                            .timers = options_.timers,
                            .clock = options_.clock,
                            .on_lost = [this, peer](const absl::Status& why) { TellLost(peer, why); },
                            .on_over = [this] { OutgoingOver(); }},
      grpc::CreateCustomChannel(address, credentials, TransferChannelArguments(options_.keepalive_nanos)));
}

std::shared_ptr<OutgoingEdge> GrpcCarrier::EdgeTo(Rank peer) {
  absl::MutexLock lock(&mu_);
  const auto found = outgoing_.find(peer);
  return found == outgoing_.end() ? nullptr : found->second;
}

void GrpcCarrier::Send(Rank to, Frame frame) {
  PENSTOCK_CHECK(static_cast<int64_t>(frame.header.size()) <= kMaximumFrameHeaderBytes);
  if (const auto edge = EdgeTo(to)) edge->Send(std::move(frame));
}

void GrpcCarrier::Disconnect(Rank peer, const absl::Status& why) {
  if (const auto edge = EdgeTo(peer)) edge->GiveUp(why);
}

// Whoever has found the loss may hold locks that the handler takes.
void GrpcCarrier::TellLost(Rank peer, const absl::Status& why) {
  {
    absl::MutexLock lock(&mu_);
    ++outgoing_left_;
  }
  options_.timers->Add(0, [this, peer, why] {
    Guarded("a lost rank", [&] { handlers_.on_lost(peer, why); }).IgnoreError();
    OutgoingOver();
  });
}

void GrpcCarrier::OutgoingOver() {
  absl::MutexLock lock(&mu_);
  --outgoing_left_;
}

// --- Streams of others.

TransferServer::Stream* GrpcCarrier::Take(grpc::CallbackServerContext* context) {
  auto edge = std::make_shared<IncomingEdge>(
      IncomingEdge::Options{
          .on_hello = [this](const auto& hello, const auto& from) { return Join(hello, from); },
          .on_header = [this](auto header, auto bytes) { return handlers_.on_header(header, bytes); },
          .on_over = [this](const IncomingEdge* ended, bool in_order) { OnIncomingOver(ended, in_order); },
          .timers = options_.timers,
          .hello_deadline_nanos = options_.clock->NowNanos() + kHelloNanos},
      context);
  {
    absl::MutexLock lock(&mu_);
    ++incoming_left_;
  }
  edge->Start();
  return edge.get();
}

absl::Status GrpcCarrier::Join(const peer::v1::TransferHello& hello, const std::shared_ptr<IncomingEdge>& edge) {
  const Rank rank(hello.rank());
  if (hello.key() != options_.key) return absl::UnauthenticatedError("another group's key");
  bool begin = false;
  {
    absl::MutexLock lock(&mu_);
    if (started_ && !outgoing_.contains(rank)) return NotInGroup(rank);
    if (!incoming_.emplace(rank, edge).second) {
      return absl::AlreadyExistsError(absl::StrCat("rank ", rank.value(), " has a stream"));
    }
    begin = started_;
  }
  if (begin) edge->Begin();
  return absl::OkStatus();
}

void GrpcCarrier::OnIncomingOver(const IncomingEdge* edge, bool in_order) {
  std::shared_ptr<OutgoingEdge> lost;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [rank, known] : incoming_) {
      if (known.get() != edge) continue;
      const auto found = outgoing_.find(rank);
      if (!in_order && found != outgoing_.end()) lost = found->second;
      incoming_.erase(rank);
      break;
    }
  }
  if (lost != nullptr) {
    lost->GiveUp(Error(absl::StatusCode::kUnavailable, "RANK_LOST", "its edge to this rank has broken off"));
    lost.reset();
  }
  absl::MutexLock lock(&mu_);
  --incoming_left_;
}

void GrpcCarrier::Close() {
  std::map<Rank, std::shared_ptr<OutgoingEdge>> edges;
  {
    absl::MutexLock lock(&mu_);
    edges = outgoing_;
  }
  for (const auto& [rank, edge] : edges) edge->Close();
  const auto sent = [this] {
    mu_.AssertReaderHeld();
    return outgoing_left_ == 0;
  };
  const auto ended = [this] {
    mu_.AssertReaderHeld();
    return incoming_left_ == 0;
  };
  mu_.LockWhen(absl::Condition(&sent));
  mu_.Unlock();
  if (server_ != nullptr) server_->Shutdown();
  {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&ended));
    outgoing_.clear();
  }
}

}  // namespace penstock
