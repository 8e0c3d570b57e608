#pragma once

// The edges of one rank to the others of its group: who may send, how much may be under way, and who is lost. Carriers
// move the bytes.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/clock.h"
#include "engine/base/ids.h"
#include "engine/base/memory_bound.h"
#include "engine/observe/group_figures.h"
#include "engine/transport/carrier.h"
#include "engine/transport/frame_header.h"
#include "engine/transport/peer_probes.h"

namespace penstock {

class PeerChannel;

// How much of one stream may be under way on one edge: sent, and not yet taken by the receiver. One message may always,
// whatever its size.
struct EdgeCredit {
  int64_t messages = 0;
  int64_t bytes = 0;  // of payloads
};

// Both directions of a pair of ranks, as seen from one of them. The other one must be told the same.
struct EdgeCredits {
  EdgeCredit send;
  EdgeCredit receive;
};

// Held by the receiver of a message for as long as it counts as under way.
using Receipt = std::shared_ptr<const void>;

// Frames that were turned away without a word, by reason, and messages that came through.
struct EdgeCounts {
  std::map<Rank, LinkFigures> received;  // by sender; of all peers
  int64_t malformed = 0;                 // no header of ours, or one that lies about whom it is for
  int64_t strangers = 0;                 // another key
  int64_t stale = 0;                     // another forming of this group, a channel that is closed, a peer that is lost
  int64_t unwanted = 0;                  // of runs that have ended
};

// Owns the carrier of a rank, and shares it among the channels of the pipelines.
//
// Model:     A peer is there until it is lost or says goodbye; it never comes back: a new group is a new object. What
//            arrives is compared with the group before anything else is believed.
// Owns:      the carrier. Channels must be closed before it goes. The Clock outlives it.
// Threads:   any method from any thread; handlers run on the carrier's threads.
// Lifecycle: Start(), OpenChannel() at will, Close(), which tells the peers. A channel is open on every rank before any
//            sends on it: messages of one that is not open are dropped.
// Fails:     a lost peer is told to `on_lost` once and to each open channel once, as UNAVAILABLE / RANK_LOST. So is one to
//            which something can't be sent that it waits for.
class PeerEdges {
 public:
  struct Options {
    GroupIdentity group;
    Rank self;
    std::function<void(Rank, const absl::Status&)> on_lost = {};  // may be empty
    int64_t most_bytes = MemoryBoundBytes();                      // of a payload: what has no room is refused unread
    Clock* clock = RealClock();                                   // usually only tests set this
  };

  PeerEdges(Options options, std::unique_ptr<Carrier> carrier);
  ~PeerEdges();

  std::string address() const { return carrier_->address(); }
  absl::Status Start(const std::map<Rank, std::string>& peers);

  // Handlers of a channel. None may block. What one throws is an error of its message, and told to `on_failed`.
  struct ChannelHandlers {
    // Judges a message by its stream and content before memory is taken for its payload. The receipt gives the sender's
    // credit back when its last copy goes. An error is told to both sides, except CANCELLED: nobody wants it any more.
    std::function<absl::StatusOr<Landing>(Rank from, const StreamName& stream, std::string_view content,
                                          int64_t payload_bytes, Receipt receipt)>
        on_message;
    // A peer is lost; or a message was not what it must be, whichever side found that.
    std::function<void(Rank peer, const absl::Status& why)> on_failed;
  };
  // `credits` by peer, each a member; ranks without credit can neither send nor receive. The name must not be open.
  std::unique_ptr<PeerChannel> OpenChannel(ChannelName name, std::map<Rank, EdgeCredits> credits,
                                           ChannelHandlers handlers) ABSL_LOCKS_EXCLUDED(mu_);

  // Has a peer echo a message of at most kMaximumProbeBytes, which it reads and drops. `on_echo` is called once, on any
  // thread, and must not block: when the echo is there, or with UNAVAILABLE / RANK_LOST, or CANCELLED by Close(). A peer
  // answers one at a time: while it reads one, it drops another.
  void Probe(Rank peer, std::vector<Piece> payload, PeerProbes::OnEcho on_echo) ABSL_LOCKS_EXCLUDED(mu_);

  // Gives a peer up, as a heartbeat that stayed out says.
  void Lose(Rank peer, const absl::Status& why) { carrier_->Disconnect(peer, why); }
  // Whether it is of the group, this one too, though it may be lost.
  bool IsMember(Rank rank) const ABSL_LOCKS_EXCLUDED(mu_);
  // OK, or why nothing can be sent to it any more.
  absl::Status StatusOf(Rank peer) const ABSL_LOCKS_EXCLUDED(mu_);
  EdgeCounts counts() const ABSL_LOCKS_EXCLUDED(mu_);
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class PeerChannel;
  struct Channel;  // what a PeerChannel and the frames of it share
  struct UnderWay;

  absl::StatusOr<Landing> OnHeader(std::string_view bytes, int64_t payload_bytes) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Landing> OnMessage(const FrameHeader& header, const std::shared_ptr<Channel>& channel)
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnGone(Rank peer, const absl::Status& why, bool lost) ABSL_LOCKS_EXCLUDED(mu_);
  void OnEachChannel(absl::FunctionRef<void(Channel&)> work) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status TurnAway(int64_t EdgeCounts::*count, absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  std::optional<Rank> NextThere(std::optional<Rank> after) const ABSL_LOCKS_EXCLUDED(mu_);
  void Refuse(Channel& channel, Rank peer, const absl::Status& why);
  void SendOrLose(Channel& channel, Rank peer, absl::FunctionRef<void()> send);
  void SendControl(Rank to, FrameKind kind, const ChannelName& channel, std::string_view content = {});
  absl::StatusOr<Landing> OnProbe(const FrameHeader& header, int64_t payload_bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void OnTaken(const FrameHeader& header, Channel& channel);
  FrameHeader HeaderTo(Rank to) const { return {.group = options_.group, .from = options_.self, .to = to}; }

  const Options options_;
  const std::unique_ptr<Carrier> carrier_;
  PeerProbes probes_;  // by the number of their stream

  mutable absl::Mutex mu_;
  std::map<Rank, absl::Status> peers_ ABSL_GUARDED_BY(mu_);   // not OK: lost or gone
  std::map<Rank, absl::Status> losses_ ABSL_GUARDED_BY(mu_);  // said where there is no memory to say why
  std::map<ChannelName, std::shared_ptr<Channel>> channels_ ABSL_GUARDED_BY(mu_);
  EdgeCounts counts_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

// The messages of one pipeline, as it was built once, between this rank and the others.
//
// Model:     A message whose stream has no credit waits here, and nobody waits with it: streams hold each other up in
//            nothing, and a receiver that takes a stream in order gets all of it, whatever the credit.
// Threads:   any method from any thread; Close() and the destructor not from a handler.
// Lifecycle: DropRun() when a run has ended. Close() drops what has not landed, and waits for handlers that run; receipts
//            are void afterwards.
// Units:     nanoseconds of patience.
// Fails:     Send: UNAVAILABLE / RANK_LOST for a peer that is gone; DEADLINE_EXCEEDED / EDGE_STALLED where messages wait
//            and the receiver has taken nothing of the stream for as long as the patience; RESOURCE_EXHAUSTED /
//            TENSOR_TOO_LARGE for a header beyond what a carrier takes; CANCELLED after Close(). What happens to the
//            message later is told to `on_failed`.
class PeerChannel {
 public:
  ~PeerChannel();

  // `what` names the message in errors: "activation for stage 1, micro-batch 3".
  absl::Status Send(Rank to, const StreamName& stream, std::string_view content, std::vector<Piece> payload,
                    int64_t patience_nanos, std::string_view what);
  // What still waits of a run is not sent any more.
  void DropRun(int64_t run);
  // A message whose payload has arrived is not what it must be: tells both sides.
  void Refuse(Rank from, const absl::Status& why);
  void Close();

 private:
  friend class PeerEdges;
  PeerChannel(PeerEdges* edges, std::shared_ptr<PeerEdges::Channel> channel)
      : edges_(edges), channel_(std::move(channel)) {}

  PeerEdges* const edges_;
  const std::shared_ptr<PeerEdges::Channel> channel_;
};

}  // namespace penstock
