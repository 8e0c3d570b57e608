#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/ids.h"
#include "engine/transport/mailboxes.h"
#include "engine/transport/peer_edges.h"
#include "engine/transport/tensor_message.h"
#include "engine/transport/transport.h"

namespace penstock {

// The messages that share a credit with one.
StreamName StreamOf(const MessageKey& key);

// The transport of one rank of a group: between its own stages as LocalTransport, to and from others over their edges.
//
// Model:     Sends to other ranks are on their way or wait for credit when Send() returns, which nobody waits for; the
//            host has their elements, a device none of them any more. What arrives waits in the same mailboxes, on its
//            stage's device. It counts as under way until it is taken. Each run has a credit of its own for each kind of
//            message, sender and receiver, so that what is not taken of one holds nothing else up. A receiver takes each
//            of these streams in the order in which it was sent, or has credit for all that may come before.
//            So a peer makes this rank hold what the credit allows of each run that is open, and of a thousand that are
//            not open yet.
// Owns:      a channel of `edges`, which outlives it.
// Threads:   any method from any thread. `on_arrival` and `on_failed` run on the sender's thread, for what comes from
//            another rank on its carrier's, without a lock held; they must not block.
// Lifecycle: Open(run) on this rank before its lanes begin. Other ranks may begin earlier. The destructor waits for
//            handlers; pending messages are dropped.
// Fails:     Send: as PeerChannel::Send and EncodeTensorMessage; a key sent twice in a run, INTERNAL / BUG.
//            `on_failed` has what concerns every open run: a peer that is lost, a message that was not what it must be.
class GroupTransport : public Transport {
 public:
  struct Options {
    Rank self;
    std::vector<Rank> rank_of_stage;
    std::vector<DeviceStreams*> streams;  // by stage; null for those of other ranks
    Rank leader = {};                     // gives inputs and targets, and takes outputs
    ChannelName channel;
    std::map<Rank, EdgeCredits> credits;  // of each stream, with the ranks that share a message with this one
    int64_t send_timeout_nanos = 0;       // how long a stream may wait for credit
    std::function<const std::vector<TensorForm>*(const MessageKey&)> expected = {};  // may be empty; null: any
    std::function<void(const MessageKey&)> on_arrival = {};                          // may be empty
    std::function<void(Rank peer, const absl::Status&)> on_failed = {};              // may be empty
  };
  GroupTransport(PeerEdges* edges, Options options);
  ~GroupTransport() override;

  void Open(int64_t run) override ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Send(const MessageKey& key, Batch values) override ABSL_LOCKS_EXCLUDED(mu_);
  std::optional<ValuesInFlight> TryReceive(const MessageKey& key) override { return mailboxes_.Take(key); }
  void Close(int64_t run) override ABSL_LOCKS_EXCLUDED(mu_);

  // Messages that have not been received yet.
  int64_t waiting() const { return mailboxes_.waiting(); }

 private:
  Rank ReceiverOf(const MessageKey& key) const;
  DeviceStreams& StreamsOfSender(const MessageKey& key) const;
  DeviceStreams& StreamsOfReceiver(const MessageKey& key) const;
  absl::Status SendLocally(const MessageKey& key, Batch values);
  absl::Status SendToRank(Rank to, const MessageKey& key, Batch values);
  absl::StatusOr<Landing> OnMessage(Rank from, const StreamName& stream, std::string_view content,
                                    int64_t payload_bytes, Receipt receipt);
  absl::StatusOr<const std::vector<TensorForm>*> Admit(Rank from, const StreamName& stream, const MessageKey& key)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Deliver(const MessageKey& key, Batch values, Receipt receipt);

  const Options options_;

  // Safe by itself.
  Mailboxes mailboxes_;

  absl::Mutex mu_;
  absl::flat_hash_map<int64_t, absl::flat_hash_set<MessageKey>> sent_ ABSL_GUARDED_BY(mu_);  // to others, by open run
  absl::flat_hash_set<int64_t> early_ ABSL_GUARDED_BY(mu_);  // runs of which something has come, and that are not open

  std::unique_ptr<PeerChannel> channel_;  // last: its handlers use all of the above
};

}  // namespace penstock
