#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/clock.h"
#include "engine/base/timer_queue.h"
#include "engine/transport/carrier.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "server/peer/transfer_server.h"

namespace penstock::peer::v1 {
class TransferHello;
}

namespace penstock {

class IncomingEdge;
class OutgoingEdge;

// Moves frames by gRPC, for links that must be encrypted.
//
// Model:     A listener of its own, and one stream for each edge, which the sending rank opens. The receiver tells what
//            it has taken, which ends the deadline of a frame. A peer is lost when the stream to it fails, and when the
//            one from it breaks off.
// Owns:      listener, connections and streams. Timers and clock outlive it.
// Threads:   as Carrier says; on_header and on_ended run on gRPC's callback threads, one at a time for each stream from
//            a peer, on_lost on the timers'. Owners of payloads may go on gRPC's threads. Close() not from one of
//            those.
// Lifecycle: listens from Create() on; streams of peers wait until Start(). Close() may take another keepalive where
//            bytes are stuck on the way to a peer that is frozen.
// Units:     a frame that its peer has not taken within `send_timeout_nanos` costs the peer. One that does not answer
//            is lost after twice `keepalive_nanos`, also while nothing is sent to it.
// Fails:     Create: as TransferServer. Streams of strangers, and messages out of place, are refused and logged;
//            nothing else notices.
class GrpcCarrier : public Carrier {
 public:
  struct Options {
    Rank self;
    std::string key;                                                     // of the group; its ranks alone know it
    std::string listen = "127.0.0.1:0";                                  // HOST:PORT as peers reach it
    std::shared_ptr<grpc::ServerCredentials> server_credentials = {};    // null: plaintext
    std::shared_ptr<grpc::ChannelCredentials> channel_credentials = {};  // null: plaintext
    int64_t send_timeout_nanos = int64_t{60} * 1'000'000'000;
    int64_t keepalive_nanos = int64_t{20} * 1'000'000'000;
    TimerQueue* timers = nullptr;
    Clock* clock = RealClock();  // of the timers
  };
  static absl::StatusOr<std::unique_ptr<GrpcCarrier>> Create(Options options);
  ~GrpcCarrier() override;

  std::string address() const override { return server_->address(); }
  absl::Status Start(const std::map<Rank, std::string>& peers, Handlers handlers) override ABSL_LOCKS_EXCLUDED(mu_);
  void Send(Rank to, Frame frame) override ABSL_LOCKS_EXCLUDED(mu_);
  void Disconnect(Rank peer, const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);
  void Close() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit GrpcCarrier(Options options) : options_(std::move(options)) {}
  std::shared_ptr<OutgoingEdge> EdgeTo(Rank peer) ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<OutgoingEdge> Open(Rank peer, const std::string& address);
  TransferServer::Stream* Take(grpc::CallbackServerContext* context) ABSL_LOCKS_EXCLUDED(mu_);
  // Lets a stream in by its hello.
  absl::Status Join(const peer::v1::TransferHello& hello, const std::shared_ptr<IncomingEdge>& edge)
      ABSL_LOCKS_EXCLUDED(mu_);
  void TellLost(Rank peer, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  void OutgoingOver() ABSL_LOCKS_EXCLUDED(mu_);
  void OnIncomingOver(const IncomingEdge* edge, bool in_order) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;
  Handlers handlers_;  // set before any edge begins

  absl::Mutex mu_;
  std::map<Rank, std::shared_ptr<OutgoingEdge>> outgoing_ ABSL_GUARDED_BY(mu_);
  std::map<Rank, std::shared_ptr<IncomingEdge>> incoming_ ABSL_GUARDED_BY(mu_);  // those with a good hello
  int outgoing_left_ ABSL_GUARDED_BY(mu_) = 0;  // streams that are not over, losses that are not told
  int incoming_left_ ABSL_GUARDED_BY(mu_) = 0;  // streams that are not over
  bool started_ ABSL_GUARDED_BY(mu_) = false;

  std::unique_ptr<TransferServer> server_;  // last: its streams use all of the above
};

}  // namespace penstock
