#pragma once

// Streams on which a client asks many things at once.

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "engine/ledger/memory_ledger.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/identity/identity.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/streams/stall_guard.h"
#include "server/rpc/streams/stream_slots.h"

namespace penstock {

class RequestStreams;
class StreamedRequest;

// Reads messages, writes the answers of the requests among them, and ends. What a message means is the derived class's.
//
// Model:     Messages are taken one after the other. A request is open from Open() until its answer is there; the answer
//            waits until it has been written. Once kMostWaiting requests have no answer that has left, no more is read,
//            unless the derived class bounds them itself. The client's end is answered when all has left; so is Close(),
//            after which nothing more is read, and incomplete requests fail. A cancel, a client that is to act and does not for `patience`, and a
//            message that can't be taken end the stream at once, and what still runs is cancelled.
// Owns:      itself, from Begin() until gRPC is done with it; its requests hold shares.
// Threads:   any method from any thread; one at a time decides what gRPC does next.
// Fails:     Begin(): as MethodGate; STREAM_LIMIT, CALLER_QUOTA.
class RequestStream : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                      public std::enable_shared_from_this<RequestStream> {
 public:
  void Begin() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the stream when all that was asked is answered.
  void Close(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  // What waits for the client to take it, and the room that it has.
  struct Outgoing {
    grpc::ByteBuffer bytes = {};
    MemoryReservation held = {};
  };
  // A request's answer, once. One that could not be made ends the stream.
  void Answer(uint64_t number, Outgoing answer) ABSL_LOCKS_EXCLUDED(mu_);

  // The message of the stream that has a request's response, or its error.
  virtual grpc::ByteBuffer AnswerOf(const StreamedRequest& request, const grpc::ByteBuffer& response) const = 0;
  virtual grpc::ByteBuffer ErrorOf(const StreamedRequest& request, const grpc::Status& error) const = 0;

 protected:
  struct Options {
    bool ordered = false;     // answers leave in the order of their requests
    size_t most_waiting = 0;  // 0: the derived class bounds them
    absl::Duration patience = StallGuard::kPatience;
  };
  RequestStream(RequestStreams* streams, const MethodGate& gate, const ServiceEnvironment& environment,
                grpc::CallbackServerContext* context, Options options);

  // The caller is let in; the first thing that the stream does.
  virtual absl::Status Opened(const Identity& identity) = 0;
  // Takes a message; what it fails with ends the stream.
  virtual absl::Status Take(const grpc::ByteBuffer& message) = 0;
  // The client has closed its side: no Take() is to come, and the incomplete requests have failed.
  virtual void ReadEnded() {}
  // gRPC is done: what the derived class holds may go.
  virtual void Ended() {}

  // Makes a request known, which Answer() and a break will find by its number; false if it is known already. Where the
  // stream is broken, it is cancelled.
  bool Open(const std::shared_ptr<StreamedRequest>& request) ABSL_LOCKS_EXCLUDED(mu_);
  bool Knows(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);
  // One that has no answer yet, or null.
  std::shared_ptr<StreamedRequest> Find(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);
  // Requests whose answers have not left.
  size_t Waiting() ABSL_LOCKS_EXCLUDED(mu_);
  // Writes a message that is no answer, before answers that wait.
  void Tell(grpc::ByteBuffer bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the client is to send more of something. Then only that buys it time: guard().Moved().
  void Expect(bool more) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether nothing more is read.
  bool Closed() ABSL_LOCKS_EXCLUDED(mu_);

  const MethodGate& gate() const { return gate_; }
  grpc::CallbackServerContext* context() const { return context_; }
  StallGuard& guard() { return *guard_; }

 private:
  friend class RequestStreams;
  struct Entry {
    uint64_t number = 0;
    std::weak_ptr<StreamedRequest> request = {};
    std::optional<Outgoing> answer = {};
  };
  struct Step {
    bool read = false;
    bool write = false;
    bool more = false;  // to write: they leave together
    std::optional<absl::Status> finish = {};
    bool client_acts = false;  // it is to take or to send something
  };

  void OnReadDone(bool ok) final ABSL_LOCKS_EXCLUDED(mu_);
  void OnWriteDone(bool ok) final ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() final ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone() final;

  // Of requests of which nothing more can come.
  void FailIncomplete(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the stream at once, and what still runs on it.
  void Break(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Starts whatever may be started.
  void GoOn() ABSL_LOCKS_EXCLUDED(mu_);
  Step Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  RequestStreams* const streams_;
  const MethodGate& gate_;
  grpc::CallbackServerContext* const context_;
  const Options options_;
  const std::shared_ptr<StallGuard> guard_;
  std::shared_ptr<RequestStream> self_;
  StreamSlots::Slot slot_;    // among streams_, which set it
  grpc::ByteBuffer read_;     // while reading_
  Outgoing written_;          // while writing_
  bool client_acts_ = false;  // as the guard knows; of whoever is in GoOn()

  absl::Mutex mu_;
  // In places that are made when a request comes, so that an answer needs no memory.
  std::list<Entry> open_ ABSL_GUARDED_BY(mu_);      // without an answer; in order, also with one that is not its turn's
  std::list<Entry> answered_ ABSL_GUARDED_BY(mu_);  // in the order in which they leave
  std::map<uint64_t, std::list<Entry>::iterator> by_number_ ABSL_GUARDED_BY(mu_);  // without an answer
  std::list<Outgoing> told_ ABSL_GUARDED_BY(mu_);
  bool expecting_ ABSL_GUARDED_BY(mu_) = false;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;  // until what was read is taken
  bool taking_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;  // nothing more is read
  bool broken_ ABSL_GUARDED_BY(mu_) = false;  // nothing more is written, either
  absl::Status end_ ABSL_GUARDED_BY(mu_);
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  bool going_ ABSL_GUARDED_BY(mu_) = false;  // somebody is in GoOn()
  bool again_ ABSL_GUARDED_BY(mu_) = false;  // who must look once more
};

// The streams of a service.
//
// Threads:   any method from any thread.
// Lifecycle: Shutdown() closes them, and those that come later, so that the server can end.
class RequestStreams {
 public:
  static constexpr int kMaxStreams = 256;

  // `kind` names them in errors: "inference_streams".
  explicit RequestStreams(std::string kind) : slots_(std::move(kind), kMaxStreams) {}

  // Fails: STREAM_LIMIT, CALLER_QUOTA; DRAINING.
  absl::Status Enter(const std::shared_ptr<RequestStream>& stream, const std::string& caller) ABSL_LOCKS_EXCLUDED(mu_);
  void Leave(const std::shared_ptr<RequestStream>& stream) ABSL_LOCKS_EXCLUDED(mu_);
  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  StreamSlots slots_;

  absl::Mutex mu_;
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  std::set<std::shared_ptr<RequestStream>> open_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
