#pragma once

// StreamWork: all work of one client on one stream.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "engine/handles/handle_name.h"
#include "engine/ledger/memory_ledger.h"
#include "google/protobuf/message.h"
#include "penstock/v1/work.pb.h"
#include "server/rpc/convert/wire_reader.h"
#include "server/rpc/streams/request_stream.h"
#include "server/rpc/streams/streamed_request.h"
#include "server/rpc/streams/tensor_uploads.h"
#include "server/rpc/unary_call.h"

namespace penstock {

// A request on such a stream, with the place of its answer in StreamWorkResponse.
class StreamedWorkBase : public StreamedRequest {
 public:
  StreamedWorkBase(std::shared_ptr<RequestStream> stream, uint64_t tag, int answer_field, Identity identity,
                   std::string session, std::shared_ptr<AuditNote> note)
      : StreamedRequest(std::move(stream), tag, std::move(identity), std::move(session), std::move(note)),
        answer_field_(answer_field) {}

  int answer_field() const { return answer_field_; }

 private:
  const int answer_field_;
};

// The same with its messages: what a UnaryCall is for a call of its own.
template <typename Request, typename Response>
class StreamedWork final : public StreamedWorkBase {
 public:
  using StreamedWorkBase::StreamedWorkBase;

  Request& request() { return request_; }
  void Reply(const Response& response) { ReplyBytes(SerializeMessage(response)); }

 private:
  Request request_;
};

// Serves one stream.
//
// Model:     The stream speaks first, and says how many requests may be open; who opens more breaks it. Messages are taken
//            as they come, so that no window of the connection stays closed. Requests are handed over in the order in
//            which they come. A put is a request whose answer is its handle; it is complete before a request that names
//            it comes, for the client sends that later.
// Owns:      the puts; one that is incomplete at the end of the stream is given up.
// Threads:   Take() is gRPC's; one at a time.
// Fails:     the stream: RESOURCE_EXHAUSTED / CREDIT_EXCEEDED; STREAM_PROTOCOL, FIELD_INVALID for
//            what is no such message; UNAUTHENTICATED. A request: all else.
class WorkStream final : public RequestStream {
 public:
  static constexpr size_t kMostOpen = 256;  // the daemon's default for the calls of a caller
  static constexpr size_t kMostPuts = 4;
  static constexpr size_t kPutsKept = 256;

  // What the service does for its streams.
  struct Handler {
    // Makes a request of the message in the field, knows it by Open(), and answers it now or later. OK also if it has
    // failed; else the stream ends.
    std::function<absl::Status(WorkStream&, uint64_t tag, int field, const Pieces& message)> request = {};
    std::shared_ptr<TensorUploads> uploads = {};
    const MethodGate* put_gate = nullptr;
  };

  WorkStream(RequestStreams* streams, const MethodGate& gate, const ServiceEnvironment& environment,
             grpc::CallbackServerContext* context, Handler handler);

  // Lets a request in by its method's gate, takes room for its message and parses it. Null: it was answered with why not.
  //
  // Fails:     as Take(): the stream must end.
  template <typename Request, typename Response>
  absl::StatusOr<std::shared_ptr<StreamedWork<Request, Response>>> BeginRequest(const MethodGate& method, uint64_t tag,
                                                                                int answer_field, const Pieces& message,
                                                                                int64_t max_bytes = kWorkMessageBytes) {
    PENSTOCK_RETURN_IF_ERROR(CheckRoom(tag));
    PENSTOCK_ASSIGN_OR_RETURN(Entered entered, Enter(method));
    const auto call = std::make_shared<StreamedWork<Request, Response>>(
        shared_from_this(), tag, answer_field, std::move(entered.identity), session_, std::move(entered.note));
    if (!Open(call)) return Bug("the stream", "a tag is taken");  // CheckRoom() has found it free
    const absl::Status parsed =
        entered.refused.ok() ? Parse(*call, message, max_bytes, &call->request()) : entered.refused;
    if (!parsed.ok()) call->Fail(parsed);
    return call->answered() ? nullptr : call;  // the stream may have broken meanwhile
  }

  grpc::ByteBuffer AnswerOf(const StreamedRequest& request, const grpc::ByteBuffer& response) const override;
  grpc::ByteBuffer ErrorOf(const StreamedRequest& request, const grpc::Status& error) const override;

 private:
  struct Entered {
    Identity identity;
    std::shared_ptr<AuditNote> note;
    absl::Status refused;  // the caller is known, but may not
  };
  struct Put {
    std::shared_ptr<StreamedWork<v1::PutStart, v1::Handle>> call;
    TensorUploads::Hold hold;
    MemoryReservation chunk;  // for the one in hand
  };

  absl::Status Opened(const Identity& identity) override;
  absl::Status Take(const grpc::ByteBuffer& message) override;
  void ReadEnded() override;
  void Ended() override;

  absl::StatusOr<Entered> Enter(const MethodGate& method);
  absl::Status CheckRoom(uint64_t tag);
  absl::Status Parse(StreamedRequest& call, const Pieces& bytes, int64_t max_bytes, google::protobuf::Message* message);
  // Gives the names of their handles to inputs that name complete puts; others are left to the checks of inputs.
  void NamePuts(google::protobuf::Message* message) const;
  absl::Status BeginPut(uint64_t tag, const Pieces& message);
  // The put has its place among `puts_`.
  absl::Status Attach(StreamedWork<v1::PutStart, v1::Handle>& call, Put* put);
  absl::Status TakeChunk(uint64_t tag, const Pieces& message);
  // Answers the put if it is complete or has failed.
  void Settle(uint64_t tag, const absl::StatusOr<TensorUploads::Position>& position);
  void Forget(uint64_t tag);
  // Tells the guard until when the client must send what.
  void ExpectPuts();

  const ServiceEnvironment environment_;
  const Handler handler_;
  Identity identity_;
  std::string session_;
  std::map<uint64_t, Put> puts_;                            // incomplete ones
  std::deque<std::pair<uint64_t, HandleName>> named_puts_;  // the last complete ones
};

}  // namespace penstock
