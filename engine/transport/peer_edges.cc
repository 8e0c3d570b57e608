#include "engine/transport/peer_edges.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/transport/packed_bytes.h"

namespace penstock {
namespace {

absl::Status Lost(Rank peer, std::string_view what, const absl::Status& why) {
  const std::string text = absl::StrCat("rank ", peer.value(), " ", absl::string_view(what.data(), what.size()),
                                        why.ok() ? "" : ": ", why.message());
  return Error(absl::StatusCode::kUnavailable, "RANK_LOST", text).With("rank", absl::StrCat(peer.value()));
}

}  // namespace

// Threads:   `busy` counts handlers, and receipts that end, so that Close() can wait for them.
struct PeerEdges::Channel {
  struct Peer {
    EdgeCredits credits;
    EdgeCredit sent;      // and not yet taken by the peer
    EdgeCredit received;  // and not yet taken here
    absl::Status gone;    // OK: it is there
  };

  Channel(ChannelName channel_name, ChannelHandlers its_handlers)
      : name(std::move(channel_name)), handlers(std::move(its_handlers)) {}

  // Whether a handler may run; then Leave() must follow.
  bool Enter() ABSL_LOCKS_EXCLUDED(mu) {
    absl::MutexLock lock(&mu);
    if (!closed) ++busy;
    return !closed;
  }
  void Leave() ABSL_LOCKS_EXCLUDED(mu) {
    absl::MutexLock lock(&mu);
    --busy;
  }
  void Failed(Rank peer, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu) {
    if (!Enter()) return;
    Guarded("a channel that fails", [&] { handlers.on_failed(peer, why); }).IgnoreError();
    Leave();
  }

  const ChannelName name;
  const ChannelHandlers handlers;
  mutable absl::Mutex mu;
  std::map<Rank, Peer> peers ABSL_GUARDED_BY(mu);
  int busy ABSL_GUARDED_BY(mu) = 0;
  bool closed ABSL_GUARDED_BY(mu) = false;
};

// One message that has come and has not been taken yet: the content of a receipt.
struct PeerEdges::UnderWay {
  UnderWay(PeerEdges* its_edges, std::shared_ptr<Channel> its_channel, Rank its_sender, int64_t its_bytes)
      : edges(its_edges), channel(std::move(its_channel)), from(its_sender), bytes(its_bytes) {}
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;
  ~UnderWay() {
    if (!channel->Enter()) return;
    {
      absl::MutexLock lock(&channel->mu);
      EdgeCredit& received = channel->peers[from].received;
      --received.messages;
      received.bytes -= bytes;
    }
    edges->SendControl(from, FrameKind::kTaken, channel->name, 1, bytes, {});
    channel->Leave();
  }

  PeerEdges* const edges;
  const std::shared_ptr<Channel> channel;
  const Rank from;
  const int64_t bytes;
};

PeerEdges::PeerEdges(Options options, std::unique_ptr<Carrier> carrier)
    : options_(std::move(options)), carrier_(std::move(carrier)) {}

PeerEdges::~PeerEdges() { Close(); }

absl::Status PeerEdges::Start(const std::map<Rank, std::string>& peers) {
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [peer, address] : peers) peers_.emplace(peer, absl::OkStatus());
  }
  return carrier_->Start(
      peers, {.on_header = [this](auto header,
                                  auto bytes) { return Guarded("a frame", [&] { return OnHeader(header, bytes); }); },
              .on_lost =
                  [this](Rank peer, const absl::Status& why) {
                    Guarded("a lost peer", [&] { OnGone(peer, why, /*lost=*/true); }).IgnoreError();
                  }});
}

std::unique_ptr<PeerChannel> PeerEdges::OpenChannel(ChannelName name, std::map<Rank, EdgeCredits> credits,
                                                    ChannelHandlers handlers) {
  auto channel = std::make_shared<Channel>(std::move(name), std::move(handlers));
  absl::MutexLock lock(&mu_);
  {
    absl::MutexLock channel_lock(&channel->mu);
    for (const auto& [peer, both] : credits) {
      const auto found = peers_.find(peer);
      PENSTOCK_CHECK(found != peers_.end());
      channel->peers[peer] = {.credits = both, .gone = found->second};
    }
  }
  PENSTOCK_CHECK(channels_.emplace(channel->name, channel).second);
  return std::unique_ptr<PeerChannel>(new PeerChannel(this, std::move(channel)));
}

absl::Status PeerEdges::StatusOf(Rank peer) const {
  absl::MutexLock lock(&mu_);
  const auto found = peers_.find(peer);
  return found == peers_.end() ? Lost(peer, "is not in this group", absl::OkStatus()) : found->second;
}

EdgeCounts PeerEdges::counts() const {
  absl::MutexLock lock(&mu_);
  return counts_;
}

void PeerEdges::Close() {
  std::vector<Rank> there;
  {
    absl::MutexLock lock(&mu_);
    if (!std::exchange(closed_, true)) {
      for (const auto& [peer, status] : peers_) {
        if (status.ok()) there.push_back(peer);
      }
    }
  }
  for (const Rank peer : there) SendControl(peer, FrameKind::kGoodbye, {}, 0, 0, {});
  carrier_->Close();
}

absl::Status PeerEdges::TurnAway(int64_t EdgeCounts::*count, absl::Status why) {
  absl::MutexLock lock(&mu_);
  ++(counts_.*count);
  return why;
}

absl::StatusOr<Landing> PeerEdges::OnHeader(std::string_view bytes, int64_t payload_bytes) {
  absl::StatusOr<FrameHeader> header = DecodeFrameHeader(bytes);
  if (!header.ok()) return TurnAway(&EdgeCounts::malformed, header.status());
  if (header->group.key != options_.group.key) {
    return TurnAway(&EdgeCounts::strangers, absl::PermissionDeniedError("another group's key"));
  }
  if (header->group != options_.group) return TurnAway(&EdgeCounts::stale, absl::CancelledError("another forming"));
  std::shared_ptr<Channel> channel;
  {
    absl::MutexLock lock(&mu_);
    const auto peer = peers_.find(header->from);
    const bool message = header->kind == FrameKind::kMessage;
    if (peer == peers_.end() || header->to != options_.self || (!message && payload_bytes != 0)) {
      ++counts_.malformed;
      return BadRankMessage("from", "must be a peer that writes to this rank", absl::StrCat(header->from.value()));
    }
    if (!peer->second.ok()) {
      ++counts_.stale;
      return peer->second;
    }
    if (header->kind != FrameKind::kGoodbye) {
      const auto found = channels_.find(header->channel);
      if (found == channels_.end()) {
        counts_.stale += message ? 1 : 0;
        return absl::CancelledError("a channel that is closed");
      }
      channel = found->second;
    }
  }
  switch (header->kind) {
    case FrameKind::kGoodbye:
      OnGone(header->from, absl::OkStatus(), /*lost=*/false);
      return Landing{};
    case FrameKind::kRefused:
      channel->Failed(header->from,
                      WithPrefix(DecodeError(header->content),
                                 absl::StrCat("rank ", header->from.value(), " refused a message of rank ",
                                              options_.self.value(), ": ")));
      return Landing{};
    case FrameKind::kTaken: {
      bool lie = false;
      {
        absl::MutexLock lock(&channel->mu);
        EdgeCredit& sent = channel->peers[header->from].sent;
        lie = header->messages > sent.messages || header->payload_bytes > sent.bytes;
        if (!lie) {
          sent.messages -= header->messages;
          sent.bytes -= header->payload_bytes;
        }
      }
      if (lie) {
        Refuse(*channel, header->from,
               BadRankMessage("messages", "must be no more than were sent", absl::StrCat(header->messages)));
      }
      return Landing{};
    }
    case FrameKind::kMessage:
      break;
  }
  if (header->payload_bytes == payload_bytes) return OnMessage(*header, channel);
  const absl::Status lie = BadRankMessage("payload_bytes", absl::StrCat("must be ", payload_bytes, ", as have come"),
                                          absl::StrCat(header->payload_bytes));
  Refuse(*channel, header->from, lie);
  return lie;
}

absl::StatusOr<Landing> PeerEdges::OnMessage(const FrameHeader& header, const std::shared_ptr<Channel>& channel) {
  const Rank from = header.from;
  const int64_t bytes = header.payload_bytes;
  bool beyond = false;
  {
    absl::MutexLock lock(&channel->mu);
    Channel::Peer& peer = channel->peers[from];
    const EdgeCredit& credit = peer.credits.receive;
    beyond = peer.received.messages >= credit.messages || bytes > credit.bytes - peer.received.bytes;
    if (!beyond) {
      ++peer.received.messages;
      peer.received.bytes += bytes;
    }
  }
  if (beyond) {
    const absl::Status lie =
        BadRankMessage("payload_bytes", "must be within the credit of the edge", absl::StrCat(bytes));
    Refuse(*channel, from, lie);
    return lie;
  }
  Receipt receipt = std::make_shared<UnderWay>(this, channel, from, bytes);
  if (!channel->Enter()) return TurnAway(&EdgeCounts::stale, absl::CancelledError("a channel that is closed"));
  absl::StatusOr<Landing> landing = Guarded("a message between ranks", [&] {
    return channel->handlers.on_message(from, header.content, bytes, std::move(receipt));
  });
  channel->Leave();
  if (absl::IsCancelled(landing.status())) return TurnAway(&EdgeCounts::unwanted, landing.status());
  if (landing.ok() && ByteSize(landing->places) != bytes) {
    landing = BadRankMessage("payload_bytes", absl::StrCat("must be ", ByteSize(landing->places)), absl::StrCat(bytes));
  }
  if (!landing.ok()) {
    Refuse(*channel, from, landing.status());
    return landing.status();
  }
  {
    absl::MutexLock lock(&mu_);
    ++counts_.received;
    counts_.received_bytes += bytes;
  }
  landing->on_ended = [channel, from, ended = std::move(landing->on_ended)](absl::Status status) {
    if (!channel->Enter()) return;
    const absl::Status told = Guarded("a message between ranks", [&] { ended(std::move(status)); });
    channel->Leave();
    if (!told.ok()) channel->Failed(from, told);
  };
  return landing;
}

// Once for each peer: what it was first stays.
void PeerEdges::OnGone(Rank peer, const absl::Status& why, bool lost) {
  const absl::Status status = Lost(peer, lost ? "is lost" : "has closed its edges", why);
  std::vector<std::shared_ptr<Channel>> channels;
  {
    absl::MutexLock lock(&mu_);
    const auto found = peers_.find(peer);
    if (found == peers_.end() || !found->second.ok()) return;
    found->second = status;
    for (const auto& [name, channel] : channels_) channels.push_back(channel);
  }
  std::vector<std::shared_ptr<Channel>> concerned;
  for (const auto& channel : channels) {
    absl::MutexLock lock(&channel->mu);
    const auto found = channel->peers.find(peer);
    if (found == channel->peers.end()) continue;
    found->second.gone = status;
    concerned.push_back(channel);
  }
  if (!lost) return;
  for (const auto& channel : concerned) channel->Failed(peer, status);
  if (options_.on_lost) options_.on_lost(peer, status);
}

void PeerEdges::Refuse(Channel& channel, Rank peer, const absl::Status& why) {
  SendControl(peer, FrameKind::kRefused, channel.name, 0, 0, EncodeError(why));
  channel.Failed(peer, WithPrefix(why, absl::StrCat("rank ", options_.self.value(), " refused a message of rank ",
                                                    peer.value(), ": ")));
}

void PeerEdges::SendControl(Rank to, FrameKind kind, const ChannelName& channel, int64_t messages, int64_t bytes,
                            std::string_view content) {
  FrameHeader header = HeaderTo(to);
  header.kind = kind;
  header.channel = channel;
  header.messages = messages;
  header.payload_bytes = bytes;
  header.content = content;
  carrier_->Send(to, {.header = EncodeFrameHeader(header)});
}

// --- PeerChannel

PeerChannel::~PeerChannel() { Close(); }

absl::Status PeerChannel::Send(Rank to, std::string_view content, std::vector<Piece> payload, int64_t deadline_nanos,
                               std::string_view what) {
  PeerEdges::Channel& channel = *channel_;
  const int64_t bytes = ByteSize(payload);
  FrameHeader header = edges_->HeaderTo(to);
  header.channel = channel.name;
  header.payload_bytes = bytes;
  header.content = content;
  Frame frame{.header = EncodeFrameHeader(header), .payload = std::move(payload)};
  const absl::string_view name(what.data(), what.size());
  {
    absl::MutexLock lock(&channel.mu);
    const auto found = channel.peers.find(to);
    if (found == channel.peers.end()) return Lost(to, "is not in this channel", absl::OkStatus());
    PeerEdges::Channel::Peer& peer = found->second;
    const EdgeCredit& credit = peer.credits.send;
    const auto header_bytes = static_cast<int64_t>(frame.header.size());
    if (bytes > credit.bytes || header_bytes > kMaximumFrameHeaderBytes) {
      return Error(absl::StatusCode::kResourceExhausted, "TENSOR_TOO_LARGE",
                   absl::StrCat(name, ": must have at most ", credit.bytes, " bytes, as the edge to rank ", to.value(),
                                " may carry, and a header of ", kMaximumFrameHeaderBytes, ", got ", bytes, " and ",
                                header_bytes))
          .With("rank", absl::StrCat(to.value()));
    }
    const auto ready = [&] {
      channel.mu.AssertReaderHeld();
      if (channel.closed || !peer.gone.ok()) return true;
      return peer.sent.messages < credit.messages && bytes <= credit.bytes - peer.sent.bytes;
    };
    const bool in_time = edges_->options_.clock->AwaitUntil(&channel.mu, absl::Condition(&ready), deadline_nanos);
    if (channel.closed) return absl::CancelledError("the channel is closed");
    if (!peer.gone.ok()) return peer.gone;
    if (!in_time) {
      return Error(absl::StatusCode::kDeadlineExceeded, "EDGE_STALLED",
                   absl::StrCat(name, ": rank ", to.value(), " takes nothing from rank ", edges_->options_.self.value(),
                                ": ", peer.sent.messages, " of ", credit.messages, " messages and ", peer.sent.bytes,
                                " of ", credit.bytes, " bytes are under way"))
          .With("rank", absl::StrCat(to.value()));
    }
    ++peer.sent.messages;
    peer.sent.bytes += bytes;
  }
  edges_->carrier_->Send(to, std::move(frame));
  return absl::OkStatus();
}

void PeerChannel::Refuse(Rank from, const absl::Status& why) { edges_->Refuse(*channel_, from, why); }

void PeerChannel::Close() {
  {
    absl::MutexLock lock(&edges_->mu_);
    const auto found = edges_->channels_.find(channel_->name);
    if (found != edges_->channels_.end() && found->second == channel_) edges_->channels_.erase(found);
  }
  absl::MutexLock lock(&channel_->mu);
  channel_->closed = true;
  const auto idle = [this] {
    channel_->mu.AssertReaderHeld();
    return channel_->busy == 0;
  };
  channel_->mu.Await(absl::Condition(&idle));
}

}  // namespace penstock
