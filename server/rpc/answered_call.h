#pragma once

// What every call has until it is answered, whether it came by itself or on a stream.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "engine/ledger/memory_ledger.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"
#include "server/identity/identity.h"
#include "server/rpc/audit_note.h"
#include "server/tracing/tracer.h"

namespace penstock {

// Who calls, what is held for the call, and that it is answered once.
//
// Owns:      until the answer: its place in the admission, the room for its message, and what a cancel does.
// Threads:   any method from any thread. The first answer counts, later ones are dropped: so a result, a timer and a
//            cancel may race.
// Lifecycle: a cancel runs what OnCancelled() was given, then fails the call.
class AnsweredCall {
 public:
  virtual ~AnsweredCall() = default;

  // Who calls, and which of its programs.
  const Identity& identity() const { return identity_; }
  const std::string& caller() const { return identity_.name; }
  const std::string& session() const { return session_; }
  // The trace of the call, or null if it is not traced.
  const std::shared_ptr<RequestTrace>& trace() const { return trace_; }
  // What the audit log will tell of it, or null if there is no such log.
  const std::shared_ptr<AuditNote>& note() const { return note_; }
  // Errors will name it.
  void set_request_id(std::string id) ABSL_LOCKS_EXCLUDED(mu_);
  // Its name among the caller's requests, which only an answer on a stream repeats.
  void set_client_id(std::string id) ABSL_LOCKS_EXCLUDED(mu_);
  std::string client_id() const ABSL_LOCKS_EXCLUDED(mu_);
  // What log lines of the call name.
  std::vector<std::pair<std::string, std::string>> LogFields() const ABSL_LOCKS_EXCLUDED(mu_);

  bool answered() const { return claimed_; }

  // Answers with an error; the request id, if it was set, goes with it.
  void Fail(const absl::Status& error) ABSL_LOCKS_EXCLUDED(mu_);
  // Answers with the bytes of a message. Where there is no room for them, with that, and what a cancel does is done: the
  // caller does not hear of the results.
  void ReplyBytes(grpc::ByteBuffer bytes) ABSL_LOCKS_EXCLUDED(mu_);

  // Runs `action` once if the call is cancelled before its answer. Several are run in their order.
  void OnCancelled(std::function<void()> action) ABSL_LOCKS_EXCLUDED(mu_);
  // Released just before the answer is sent, so that the caller's next call finds the place free.
  void Keep(std::shared_ptr<void> ticket) ABSL_LOCKS_EXCLUDED(mu_);
  // Room for the message, as it came and as it is parsed, until the call is answered. Only for messages that may be
  // large: a control message is always taken, so that handles can be released where memory is full.
  //
  // Fails:     HOST_MEMORY, CALLER_QUOTA.
  absl::Status HoldMessage(MemoryLedger* memory, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  // Nobody waits for the answer any more; `why` is what the call fails with.
  void Cancel(const char* why) ABSL_LOCKS_EXCLUDED(mu_);

 protected:
  // Once, before others know of the call.
  void SetCaller(Identity identity, std::string session, std::shared_ptr<RequestTrace> trace,
                 std::shared_ptr<AuditNote> note);
  // Whether nobody can answer any more and nobody has; a cancel answers by itself.
  bool Forgotten() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Makes ready to send the answer, which may be called for several of which one is sent. What it fails with becomes the
  // answer.
  virtual absl::Status Prepare(MemoryLedger* memory, grpc::ByteBuffer* answer) = 0;
  // Sends the answer: one of these, once.
  virtual void SendAnswer(grpc::ByteBuffer answer) = 0;
  virtual void SendError(const absl::Status& error, const grpc::Status& shown) = 0;

  bool Claim() { return !claimed_.exchange(true); }
  std::string request_id() const ABSL_LOCKS_EXCLUDED(mu_);
  void RunActions() ABSL_LOCKS_EXCLUDED(mu_);
  void DropKept() ABSL_LOCKS_EXCLUDED(mu_);  // once claimed

  Identity identity_;
  std::string session_;
  std::shared_ptr<RequestTrace> trace_;
  std::shared_ptr<AuditNote> note_;
  std::atomic<bool> claimed_ = false;

  mutable absl::Mutex mu_;
  std::string request_id_ ABSL_GUARDED_BY(mu_);
  std::string client_id_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::function<void()>> actions_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<void> ticket_ ABSL_GUARDED_BY(mu_);
  MemoryReservation message_ ABSL_GUARDED_BY(mu_);
  MemoryLedger* memory_ ABSL_GUARDED_BY(mu_) = nullptr;  // null: nothing is counted
};

}  // namespace penstock
