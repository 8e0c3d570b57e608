#pragma once

// One unary call from its bytes to its answer, which may come later and from any thread.

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/guard.h"
#include "engine/base/log_scope.h"
#include "engine/ledger/memory_ledger.h"
#include "google/protobuf/message.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/answered_call.h"
#include "server/rpc/call_followers.h"
#include "server/rpc/convert/message_limits.h"
#include "server/rpc/convert/wire_reader.h"
#include "server/rpc/method_gate.h"

namespace penstock {

// Parses a message after checking its size and what it would grow to: nothing is allocated for one that is too large.
//
// Fails:     RESOURCE_EXHAUSTED / MESSAGE_TOO_LARGE; INVALID_ARGUMENT / FIELD_INVALID for bytes that
//            are not such a message, and as CheckMessageEntries().
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, int64_t max_bytes, google::protobuf::Message* message);

// The checks of its size and of what it would grow to alone, and the error for bytes that are no such message.
absl::Status CheckMessage(const Pieces& bytes, int64_t max_bytes, const google::protobuf::Message& message);
absl::Status NoSuchMessage(int64_t bytes);

// The message as bytes to send.
grpc::ByteBuffer SerializeMessage(const google::protobuf::MessageLite& message);

// The part of a unary call that does not depend on its messages.
//
// Owns:      itself, until gRPC has sent the answer; closures that answer later hold a share of what RunUnary() gave.
//            The last of them replies with BUG if none has: a callback that threw or was dropped leaves no caller
//            waiting.
// Lifecycle: a cancel by the caller, or its deadline, is the call's Cancel().
class UnaryCallBase : public grpc::ServerUnaryReactor,
                      public AnsweredCall,
                      public std::enable_shared_from_this<UnaryCallBase> {
 public:
  // The gate is the method's, and outlives the server's calls.
  UnaryCallBase(const MethodGate& gate, grpc::CallbackServerContext* context, grpc::ByteBuffer* answer)
      : gate_(gate), context_(context), answer_(answer) {}

  const MethodGate& gate() const { return gate_; }
  grpc::CallbackServerContext& context() { return *context_; }

  // Lets the caller in; on failure the call is answered and false is returned. The call keeps itself
  // alive from here on.
  bool Start();

  // The last closure that could reply is gone: the call fails with BUG if it has no reply yet.
  void Abandon();

  void OnDone() override;
  void OnCancel() override;

 private:
  absl::Status Prepare(MemoryLedger* memory, grpc::ByteBuffer* answer) override;
  void SendAnswer(grpc::ByteBuffer answer) override;
  void SendError(const absl::Status& error, const grpc::Status& shown) override;

  const MethodGate& gate_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const answer_;  // good until Finish()
  std::shared_ptr<UnaryCallBase> self_;
};

// A unary call with its messages.
template <typename Request, typename Response>
class UnaryCall final : public UnaryCallBase {
 public:
  using UnaryCallBase::UnaryCallBase;

  Request& request() { return request_; }
  void Reply(const Response& response) { ReplyBytes(SerializeMessage(response)); }
  // Replies with the value or the error.
  void Answer(const absl::StatusOr<Response>& response) {
    if (response.ok()) {
      Reply(*response);
    } else {
      Fail(response.status());
    }
  }

 private:
  Request request_;
};

template <typename Request, typename Response>
using UnaryCallPtr = std::shared_ptr<UnaryCall<Request, Response>>;

// Runs a unary method: the gate, then `handler(call)`, which replies now or later; what it throws is the call's error.
// All closures that may reply share what `handler` is given.
template <typename Call, typename Handler>
grpc::ServerUnaryReactor* RunUnary(const std::shared_ptr<Call>& call, Handler&& handler) {
  struct Answering {  // destroyed with the last closure that could reply
    explicit Answering(std::shared_ptr<Call> answered) : call(std::move(answered)) {}
    ~Answering() { call->Abandon(); }
    const std::shared_ptr<Call> call;
  };
  std::shared_ptr<Answering> answering;  // until a failure was told
  const absl::Status ran = Guarded("the call", [&] {
    if (!call->Start()) return;
    const LogScope scope(call->LogFields());
    answering = std::make_shared<Answering>(call);
    handler(std::shared_ptr<Call>(answering, call.get()));
  });
  if (!ran.ok()) call->Fail(ran);
  return call.get();
}

// The same with messages: the gate, size, room in `memory` (null: for none), parse, then `handler(call)`, which replies
// now or later.
template <typename Request, typename Response, typename Handler>
grpc::ServerUnaryReactor* ServeUnary(const MethodGate& gate, grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* response, int64_t max_bytes,
                                     Handler&& handler, MemoryLedger* memory = nullptr) {
  return RunUnary(std::make_shared<UnaryCall<Request, Response>>(gate, context, response),
                  [&](const UnaryCallPtr<Request, Response>& call) {
                    const auto size = std::min(static_cast<int64_t>(request->Length()), max_bytes);
                    const absl::Status held = call->HoldMessage(memory, size);
                    if (!held.ok()) return call->Fail(held);
                    const absl::Status parsed = ParseMessage(*request, max_bytes, &call->request());
                    if (!parsed.ok()) return call->Fail(parsed);
                    NoteTarget(*context, call->request());
                    handler(call);
                  });
}

}  // namespace penstock
