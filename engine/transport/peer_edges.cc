#include "engine/transport/peer_edges.h"

#include <algorithm>
#include <limits>
#include <list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/rank_message.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

absl::Status Lost(Rank peer, std::string_view what, const absl::Status& why) {
  const std::string text = absl::StrCat("rank ", peer.value(), " ", absl::string_view(what.data(), what.size()),
                                        why.ok() ? "" : ": ", why.message());
  return Error(absl::StatusCode::kUnavailable, "RANK_LOST", text).With("rank", absl::StrCat(peer.value()));
}

bool Fits(const EdgeCredit& under_way, int64_t bytes, const EdgeCredit& credit) {
  if (under_way.messages == 0) return credit.messages > 0;
  return under_way.messages < credit.messages && bytes <= credit.bytes - under_way.bytes;
}

bool IsOfChannel(FrameKind kind) {
  return kind == FrameKind::kMessage || kind == FrameKind::kTaken || kind == FrameKind::kRefused;
}

}  // namespace

// Threads:   `busy` counts handlers, and receipts that end, so that Close() can wait for them.
struct PeerEdges::Channel {
  struct Outgoing {
    EdgeCredit sent;  // and not yet taken by the peer
    std::list<Frame> waiting;
    int64_t moved_nanos = 0;  // when the peer last took something, or the first one began to wait
  };
  struct Incoming {
    EdgeCredit received;  // and not yet taken here
    EdgeCredit owed;      // taken here, which the peer has yet to be told
  };
  struct Peer {
    // Moves what has credit now from the waiting ones to `frames`. Takes no memory.
    void Release(Outgoing& stream, std::list<Frame>* frames) const {
      while (!stream.waiting.empty()) {
        const int64_t bytes = ByteSize(stream.waiting.front().payload);
        if (!Fits(stream.sent, bytes, credits.send)) return;
        frames->splice(frames->end(), stream.waiting, stream.waiting.begin());
        ++stream.sent.messages;
        stream.sent.bytes += bytes;
      }
    }

    EdgeCredits credits;
    std::map<StreamName, Outgoing> outgoing = {};
    std::map<StreamName, Incoming> incoming = {};
    absl::Status gone = {};  // OK: it is there
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
  bool Has(Rank peer) const ABSL_LOCKS_EXCLUDED(mu) {
    absl::MutexLock lock(&mu);
    return peers.contains(peer);
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
  UnderWay(PeerEdges* its_edges, std::shared_ptr<Channel> its_channel, Rank its_sender, StreamName its_stream,
           int64_t its_bytes)
      : edges(its_edges), channel(std::move(its_channel)), from(its_sender), stream(its_stream), bytes(its_bytes) {}
  UnderWay(UnderWay&&) = default;  // what was moved from ends without a word
  UnderWay& operator=(const UnderWay&) = delete;
  ~UnderWay() {
    if (channel == nullptr || !channel->Enter()) return;
    EdgeCredit taken = {.messages = 1, .bytes = bytes};
    {
      absl::MutexLock lock(&channel->mu);
      auto& streams = channel->peers[from].incoming;
      if (const auto found = streams.find(stream); found != streams.end()) {  // there was memory to count it
        Channel::Incoming& incoming = found->second;
        incoming.received.bytes -= bytes;
        --incoming.received.messages;
        taken.messages += incoming.owed.messages;
        taken.bytes += incoming.owed.bytes;
        incoming.owed = {};
      }
    }
    EndWord(taken, Guarded("a receipt", [&] { TellTaken(taken); }).ok());
    channel->Leave();
  }

  void TellTaken(const EdgeCredit& taken) const {
    FrameHeader header = edges->HeaderTo(from);
    header.kind = FrameKind::kTaken;
    header.channel = channel->name;
    header.stream = stream;
    header.messages = taken.messages;
    header.payload_bytes = taken.bytes;
    edges->carrier_->Send(from, {.header = EncodeFrameHeader(header)});
  }

  // Without memory for a word of its own, the next one of the stream says it.
  void EndWord(const EdgeCredit& taken, bool told) const {
    absl::MutexLock lock(&channel->mu);
    auto& streams = channel->peers[from].incoming;
    const auto found = streams.find(stream);
    if (found == streams.end()) return;
    Channel::Incoming& incoming = found->second;
    if (!told) {
      incoming.owed.messages += taken.messages;
      incoming.owed.bytes += taken.bytes;
    }
    if (incoming.received.messages == 0 && incoming.owed.messages == 0) streams.erase(found);
  }

  PeerEdges* const edges;
  std::shared_ptr<Channel> channel;
  const Rank from;
  const StreamName stream;
  const int64_t bytes;
};

PeerEdges::PeerEdges(Options options, std::unique_ptr<Carrier> carrier)
    : options_(std::move(options)), carrier_(std::move(carrier)) {}

PeerEdges::~PeerEdges() { Close(); }

absl::Status PeerEdges::Start(const std::map<Rank, std::string>& peers) {
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [peer, address] : peers) {
      peers_.emplace(peer, absl::OkStatus());
      losses_.emplace(peer, Lost(peer, "is lost", absl::OkStatus()));
      counts_.received.emplace(peer, LinkFigures());
    }
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
      Channel::Peer& one = channel->peers[peer];
      one.credits = both;
      one.gone = found->second;
    }
  }
  PENSTOCK_CHECK(channels_.emplace(channel->name, channel).second);
  return std::unique_ptr<PeerChannel>(new PeerChannel(this, std::move(channel)));
}

bool PeerEdges::IsMember(Rank rank) const {
  absl::MutexLock lock(&mu_);
  return rank == options_.self || peers_.contains(rank);
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

// Takes no memory that it needs: a peer that hears no goodbye finds the edge lost.
void PeerEdges::Close() {
  bool closed;
  {
    absl::MutexLock lock(&mu_);
    closed = std::exchange(closed_, true);
  }
  std::optional<Rank> peer = closed ? std::nullopt : NextThere(std::nullopt);
  for (; peer.has_value(); peer = NextThere(peer)) {
    Guarded("a goodbye", [&] { SendControl(*peer, FrameKind::kGoodbye, {}); }).IgnoreError();
  }
  carrier_->Close();
  probes_.EndAll(Guarded("the end of the edges", [] { return absl::CancelledError("the edges are closed"); }));
}

// The first peer that is there, or the first after that one.
std::optional<Rank> PeerEdges::NextThere(std::optional<Rank> after) const {
  absl::MutexLock lock(&mu_);
  auto next = after.has_value() ? peers_.upper_bound(*after) : peers_.begin();
  next = std::find_if(next, peers_.end(), [](const auto& peer) { return peer.second.ok(); });
  return next == peers_.end() ? std::nullopt : std::optional(next->first);
}

// --- Probes.

void PeerEdges::Probe(Rank peer, std::vector<Piece> payload, PeerProbes::OnEcho on_echo) {
  FrameHeader header = HeaderTo(peer);
  header.kind = FrameKind::kProbe;
  header.payload_bytes = ByteSize(payload);
  header.stream.number = probes_.Open(peer, std::move(on_echo));
  // Now: a loss that comes later ends it.
  absl::Status gone = StatusOf(peer);
  {
    absl::MutexLock lock(&mu_);
    if (closed_) gone = absl::CancelledError("the edges are closed");
  }
  if (!gone.ok()) return probes_.End(peer, header.stream.number, gone);
  carrier_->Send(peer, {.header = EncodeFrameHeader(header), .payload = std::move(payload)});
}

absl::StatusOr<Landing> PeerEdges::OnProbe(const FrameHeader& header, int64_t payload_bytes) {
  absl::StatusOr<Landing> landing =
      probes_.Read(header.from, payload_bytes, [this, from = header.from, stream = header.stream] {
        FrameHeader echo = HeaderTo(from);
        echo.kind = FrameKind::kEcho;
        echo.stream = stream;
        carrier_->Send(from, {.header = EncodeFrameHeader(echo)});
      });
  return landing.ok() ? std::move(landing) : TurnAway(&EdgeCounts::malformed, landing.status());
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
    const bool may_be_large = message || header->kind == FrameKind::kProbe;
    if (peer == peers_.end() || header->to != options_.self || (!may_be_large && payload_bytes != 0)) {
      ++counts_.malformed;
      return BadRankMessage("from", "must be a peer that writes to this rank", absl::StrCat(header->from.value()));
    }
    if (!peer->second.ok()) {
      ++counts_.stale;
      return peer->second;
    }
    if (IsOfChannel(header->kind)) {
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
      channel->Failed(header->from, Guarded("a refusal", [&] {
                        return WithPrefix(DecodeError(header->content),
                                          absl::StrCat("rank ", header->from.value(), " refused a message of rank ",
                                                       options_.self.value(), ": "));
                      }));
      return Landing{};
    case FrameKind::kTaken:
      OnTaken(*header, *channel);
      return Landing{};
    case FrameKind::kProbe:
      return OnProbe(*header, payload_bytes);
    case FrameKind::kEcho:
      probes_.End(header->from, header->stream.number, absl::OkStatus());
      return Landing{};
    case FrameKind::kMessage:
      break;
  }
  if (header->payload_bytes == payload_bytes) return OnMessage(*header, channel);
  const absl::Status lie = BadRankMessage("payload_bytes", absl::StrCat("must be ", payload_bytes, ", as have come"),
                                          absl::StrCat(header->payload_bytes));
  Refuse(*channel, header->from, lie);
  return lie;
}

// Of a run that has ended here nothing is counted any more.
void PeerEdges::OnTaken(const FrameHeader& header, Channel& channel) {
  std::list<Frame> frames;
  bool lie = true;
  {
    absl::MutexLock lock(&channel.mu);
    const auto peer = channel.peers.find(header.from);
    if (peer == channel.peers.end()) return;
    const auto found = peer->second.outgoing.find(header.stream);
    if (found == peer->second.outgoing.end()) return;
    Channel::Outgoing& stream = found->second;
    if (header.messages <= stream.sent.messages && header.payload_bytes <= stream.sent.bytes) {
      stream.sent.messages -= header.messages;
      stream.sent.bytes -= header.payload_bytes;
      stream.moved_nanos = options_.clock->NowNanos();
      peer->second.Release(stream, &frames);
      if (stream.sent.messages == 0) peer->second.outgoing.erase(found);
      lie = false;
    }
  }
  // They are counted, and their senders have gone on: nobody may wait for one that can't be sent.
  SendOrLose(channel, header.from, [&] {
    for (Frame& frame : frames) carrier_->Send(header.from, std::move(frame));
  });
  if (!lie) return;
  Refuse(channel, header.from,
         BadRankMessage("messages", "must be no more than were sent", absl::StrCat(header.messages)));
}

absl::StatusOr<Landing> PeerEdges::OnMessage(const FrameHeader& header, const std::shared_ptr<Channel>& channel) {
  const Rank from = header.from;
  const int64_t bytes = header.payload_bytes;
  if (bytes > options_.most_bytes) {
    const absl::Status lie = BadRankMessage(
        "payload_bytes", absl::StrCat("must be at most ", options_.most_bytes, ", this process's memory"),
        absl::StrCat(bytes));
    Refuse(*channel, from, lie);
    return lie;
  }
  bool beyond = true;
  const absl::Status counting = Guarded("a message between ranks", [&] {
    absl::MutexLock lock(&channel->mu);
    const auto peer = channel->peers.find(from);
    if (peer != channel->peers.end()) {
      const auto found = peer->second.incoming.find(header.stream);
      const EdgeCredit under_way = found == peer->second.incoming.end() ? EdgeCredit() : found->second.received;
      beyond = !Fits(under_way, bytes, peer->second.credits.receive);
      if (!beyond) {
        peer->second.incoming[header.stream].received = {.messages = under_way.messages + 1,
                                                         .bytes = under_way.bytes + bytes};
      }
    }
  });
  if (beyond) {
    const absl::Status lie =
        BadRankMessage("payload_bytes", "must be within the credit of the edge", absl::StrCat(bytes));
    Refuse(*channel, from, lie);
    return lie;
  }
  UnderWay counted(this, channel, from, header.stream, bytes);  // until it is a receipt
  if (!counting.ok()) {
    Refuse(*channel, from, counting);
    return counting;
  }
  if (!channel->Enter()) return TurnAway(&EdgeCounts::stale, absl::CancelledError("a channel that is closed"));
  absl::StatusOr<Landing> landing = Guarded("a message between ranks", [&]() -> absl::StatusOr<Landing> {
    auto receipt = std::make_shared<UnderWay>(std::move(counted));
    PENSTOCK_ASSIGN_OR_RETURN(
        Landing its, channel->handlers.on_message(from, header.stream, header.content, bytes, std::move(receipt)));
    its.on_ended = [channel, from, ended = std::move(its.on_ended)](absl::Status status) {
      if (!channel->Enter()) return;
      const absl::Status told = Guarded("a message between ranks", [&] { ended(std::move(status)); });
      channel->Leave();
      if (!told.ok()) channel->Failed(from, told);
    };
    return its;
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
    LinkFigures& traffic = counts_.received.at(from);
    ++traffic.messages;
    traffic.bytes += bytes;
  }
  return landing;
}

// Once for each peer: what it was first stays. Takes no memory that it needs.
void PeerEdges::OnGone(Rank peer, const absl::Status& why, bool lost) {
  absl::Status status;
  Guarded("the loss of a peer", [&] {
    status = Lost(peer, lost ? "is lost" : "has closed its edges", why);
  }).IgnoreError();
  {
    absl::MutexLock lock(&mu_);
    const auto found = peers_.find(peer);
    if (found == peers_.end() || !found->second.ok()) return;
    if (status.ok()) status = losses_.at(peer);
    found->second = status;
  }
  probes_.EndAllOf(peer, status);
  // All of them know of it before anybody is told.
  OnEachChannel([&](Channel& channel) {
    absl::MutexLock lock(&channel.mu);
    const auto found = channel.peers.find(peer);
    if (found == channel.peers.end()) return;
    found->second.gone = status;
    found->second.outgoing.clear();
  });
  if (!lost) return;
  OnEachChannel([&](Channel& channel) {
    if (channel.Has(peer)) channel.Failed(peer, status);
  });
  if (options_.on_lost) options_.on_lost(peer, status);
}

// Those that are open, also where some close meanwhile. Takes no memory.
void PeerEdges::OnEachChannel(absl::FunctionRef<void(Channel&)> work) {
  std::shared_ptr<Channel> channel;
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      const auto next = channel == nullptr ? channels_.begin() : channels_.upper_bound(channel->name);
      if (next == channels_.end()) return;
      channel = next->second;
    }
    work(*channel);
  }
}

// This side first, which takes no memory that it needs.
void PeerEdges::Refuse(Channel& channel, Rank peer, const absl::Status& why) {
  channel.Failed(peer, Guarded("a refusal", [&] {
                   return WithPrefix(why, absl::StrCat("rank ", options_.self.value(), " refused a message of rank ",
                                                       peer.value(), ": "));
                 }));
  SendOrLose(channel, peer, [&] { SendControl(peer, FrameKind::kRefused, channel.name, EncodeError(why)); });
}

// A peer that can't be told what it waits for is given up; where even that takes memory that is not there, this side
// fails by itself.
void PeerEdges::SendOrLose(Channel& channel, Rank peer, absl::FunctionRef<void()> send) {
  absl::Status sent = Guarded("what a peer waits for", send);
  if (sent.ok()) return;
  const absl::Status lost = Guarded("the loss of an edge", [&] { carrier_->Disconnect(peer, sent); });
  if (!lost.ok()) channel.Failed(peer, lost);
}

void PeerEdges::SendControl(Rank to, FrameKind kind, const ChannelName& channel, std::string_view content) {
  FrameHeader header = HeaderTo(to);
  header.kind = kind;
  header.channel = channel;
  header.content = content;
  carrier_->Send(to, {.header = EncodeFrameHeader(header)});
}

// --- PeerChannel

PeerChannel::~PeerChannel() { Close(); }

absl::Status PeerChannel::Send(Rank to, const StreamName& stream, std::string_view content, std::vector<Piece> payload,
                               int64_t patience_nanos, std::string_view what) {
  PeerEdges::Channel& channel = *channel_;
  const int64_t now = edges_->options_.clock->NowNanos();
  FrameHeader header = edges_->HeaderTo(to);
  header.channel = channel.name;
  header.stream = stream;
  header.payload_bytes = ByteSize(payload);
  header.content = content;
  std::list<Frame> own(1);
  Frame& frame = own.front();
  frame = {.header = EncodeFrameHeader(header), .payload = std::move(payload)};
  const absl::string_view name(what.data(), what.size());
  if (static_cast<int64_t>(frame.header.size()) > kMaximumFrameHeaderBytes) {
    return Error(absl::StatusCode::kResourceExhausted, "TENSOR_TOO_LARGE",
                 absl::StrCat(name, ": must have a header of at most ", kMaximumFrameHeaderBytes, " bytes, got ",
                              frame.header.size()))
        .With("rank", absl::StrCat(to.value()));
  }
  std::list<Frame> frames;
  {
    absl::MutexLock lock(&channel.mu);
    if (channel.closed) return absl::CancelledError("the channel is closed");
    const auto found = channel.peers.find(to);
    if (found == channel.peers.end()) return Lost(to, "is not in this channel", absl::OkStatus());
    PeerEdges::Channel::Peer& peer = found->second;
    if (!peer.gone.ok()) return peer.gone;
    PeerEdges::Channel::Outgoing& outgoing = peer.outgoing[stream];
    if (outgoing.waiting.empty()) {
      outgoing.moved_nanos = now;
    } else if (now - outgoing.moved_nanos > patience_nanos) {
      return Error(absl::StatusCode::kDeadlineExceeded, "EDGE_STALLED",
                   absl::StrCat(name, ": rank ", to.value(), " takes nothing from rank ", edges_->options_.self.value(),
                                ": ", outgoing.sent.messages, " messages and ", outgoing.sent.bytes,
                                " bytes are under way, and ", outgoing.waiting.size(), " messages wait for credit"))
          .With("rank", absl::StrCat(to.value()));
    }
    outgoing.waiting.splice(outgoing.waiting.end(), own);
    peer.Release(outgoing, &frames);
  }
  for (Frame& one : frames) edges_->carrier_->Send(to, std::move(one));
  return absl::OkStatus();
}

void PeerChannel::DropRun(int64_t run) {
  std::vector<PeerEdges::Channel::Outgoing> dropped;  // declared before the lock, so freed after it
  absl::MutexLock lock(&channel_->mu);
  for (auto& [rank, peer] : channel_->peers) {
    auto stream = peer.outgoing.lower_bound({.run = run, .number = std::numeric_limits<int64_t>::min()});
    while (stream != peer.outgoing.end() && stream->first.run == run) {
      dropped.push_back(std::move(stream->second));
      stream = peer.outgoing.erase(stream);
    }
  }
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
