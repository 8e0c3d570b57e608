#include "server/rpc/streams/work_stream.h"

#include <algorithm>
#include <limits>
#include <new>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/handles/handle_store.h"
#include "engine/serve/pipeline_table.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/zero_copy_stream_impl.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "server/rpc/admission.h"
#include "server/rpc/call_context.h"
#include "server/rpc/call_followers.h"
#include "server/rpc/convert/proto_convert.h"
#include "server/rpc/convert/status_to_grpc.h"
#include "server/rpc/streams/receive_stream.h"

namespace penstock {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// The names of handles in a message, wherever they stand.
template <typename Visit>
void ForEachHandle(Message* message, const Visit& visit) {
  if (message->GetDescriptor() == v1::HandleTensor::descriptor()) {
    visit(static_cast<v1::HandleTensor*>(message));
    return;
  }
  const Reflection& reflection = *message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      ForEachHandle(reflection.MutableMessage(message, field), visit);
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(*message, field); ++i) {
      ForEachHandle(reflection.MutableRepeatedMessage(message, field, i), visit);
    }
  }
}

}  // namespace

WorkStream::WorkStream(RequestStreams* streams, const MethodGate& gate, const ServiceEnvironment& environment,
                       grpc::CallbackServerContext* context, Handler handler)
    : RequestStream(streams, gate, environment, context, {}), environment_(environment), handler_(std::move(handler)) {}

absl::Status WorkStream::Opened(const Identity& identity) {
  identity_ = identity;
  PENSTOCK_ASSIGN_OR_RETURN(session_, SessionOf(*context()));
  v1::StreamWorkResponse response;
  v1::StreamWorkOpened* opened = response.mutable_opened();
  opened->set_epoch(environment_.handles->epoch().value());
  opened->set_requests(kMostOpen);
  opened->set_puts(kMostPuts);
  Tell(SerializeMessage(response));
  return absl::OkStatus();
}

absl::Status WorkStream::Take(const grpc::ByteBuffer& bytes) {
  const ReceivedMessage received(bytes);
  uint64_t tag = 0;
  std::optional<WireField> message;
  for (WireReader reader(received.pieces()); !reader.AtEnd();) {
    PENSTOCK_ASSIGN_OR_RETURN(WireField field, reader.Next());
    if (field.type == 0 && field.number == v1::StreamWorkRequest::kTagFieldNumber) {
      tag = field.value;
    } else if (field.type == 2 && !message.has_value()) {
      message = std::move(field);
    } else {
      return OutOfPlace("must hold a tag and one of the messages",
                        absl::StrCat("field ", field.number, " beside them"));
    }
  }
  if (!message.has_value()) return OutOfPlace("must hold a tag and one of the messages", "none");
  const auto number = static_cast<int>(message->number);
  if (number == v1::StreamWorkRequest::kCancelFieldNumber) {
    if (const auto request = Find(tag); request != nullptr) request->Cancel("the caller has cancelled the request");
    Forget(tag);
    return absl::OkStatus();
  }
  switch (number) {
    case v1::StreamWorkRequest::kPutFieldNumber:
      return BeginPut(tag, message->bytes);
    case v1::StreamWorkRequest::kChunkFieldNumber:
      return TakeChunk(tag, message->bytes);
    default:
      return handler_.request(*this, tag, number, message->bytes);
  }
}

absl::Status WorkStream::CheckRoom(uint64_t tag) {
  if (tag == 0 || Knows(tag)) {
    return Error(absl::StatusCode::kInvalidArgument, "STREAM_PROTOCOL",
                 absl::StrCat("tag: must be that of no request that has no answer yet, and not 0, got ", tag))
        .With("field", "tag")
        .With("value", absl::StrCat(tag));
  }
  if (Waiting() < kMostOpen) return absl::OkStatus();
  return Error(absl::StatusCode::kResourceExhausted, "CREDIT_EXCEEDED",
               absl::StrCat("at most ", kMostOpen, " requests of a stream may have no answer that has left"))
      .With("limit", "requests")
      .With("limit_value", absl::StrCat(kMostOpen));
}

// Role, expiry and map may have changed since the last request.
absl::StatusOr<WorkStream::Entered> WorkStream::Enter(const MethodGate& method) {
  Entered entered;
  const std::shared_ptr<AuditNote> note = AuditNoteOf(*context());
  if (note != nullptr) entered.note = note->OfRequest(method.method());
  absl::StatusOr<Identity> identity = method.Enter(*context(), entered.note.get());
  if (absl::IsPermissionDenied(identity.status())) {
    entered.identity = identity_;
    entered.refused = identity.status();
    return entered;
  }
  PENSTOCK_RETURN_IF_ERROR(identity.status());
  entered.identity = identity_ = *std::move(identity);
  return entered;
}

absl::Status WorkStream::Parse(StreamedRequest& call, const Pieces& bytes, int64_t max_bytes, Message* message) {
  const auto size = static_cast<int64_t>(PiecesSize(bytes));
  PENSTOCK_RETURN_IF_ERROR(CheckMessage(bytes, max_bytes, *message));
  PENSTOCK_RETURN_IF_ERROR(call.HoldMessage(environment_.memory, size));
  std::deque<google::protobuf::io::ArrayInputStream> pieces;
  std::vector<google::protobuf::io::ZeroCopyInputStream*> in_order;
  for (const std::string_view piece : bytes) {
    in_order.push_back(&pieces.emplace_back(piece.data(), static_cast<int>(piece.size())));
  }
  google::protobuf::io::ConcatenatingInputStream all(in_order.data(), static_cast<int>(in_order.size()));
  if (!message->ParseFromZeroCopyStream(&all)) return NoSuchMessage(size);
  if (call.note() != nullptr) call.note()->SetTarget(*message);
  if (!named_puts_.empty()) NamePuts(message);
  return absl::OkStatus();
}

void WorkStream::NamePuts(Message* message) const {
  ForEachHandle(message, [this](v1::HandleTensor* handle) {
    if (handle->put() == 0 || !handle->handle().empty()) return;
    for (auto named = named_puts_.rbegin(); named != named_puts_.rend(); ++named) {
      if (named->first != handle->put()) continue;
      handle->set_handle(ToString(named->second));
      handle->clear_put();
      return;
    }
  });
}

absl::Status WorkStream::BeginPut(uint64_t tag, const Pieces& message) {
  // Whatever comes of this one: its tag no longer means an earlier one.
  named_puts_.erase(
      std::remove_if(named_puts_.begin(), named_puts_.end(), [tag](const auto& named) { return named.first == tag; }),
      named_puts_.end());
  PENSTOCK_ASSIGN_OR_RETURN(const auto call, (BeginRequest<v1::PutStart, v1::Handle>(
                                                 *handler_.put_gate, tag, v1::StreamWorkResponse::kPutFieldNumber,
                                                 message, kControlMessageBytes)));
  if (call == nullptr) return absl::OkStatus();
  const auto place = puts_.try_emplace(tag).first;
  place->second.call = call;
  const absl::Status attached = Guarded("the request", [&] { return Attach(*call, &place->second); });
  if (!attached.ok()) {
    puts_.erase(place);
    call->Fail(attached);
    return absl::OkStatus();
  }
  call->set_incomplete(true);
  ExpectPuts();
  if (Closed()) call->Fail(absl::CancelledError("the stream has ended"));
  Settle(tag, handler_.uploads->Where(place->second.hold));
  return absl::OkStatus();
}

absl::Status WorkStream::Attach(StreamedWork<v1::PutStart, v1::Handle>& call, Put* put) {
  const v1::PutStart& start = call.request();
  if (!start.request_id().empty()) {
    return InvalidField("request_id", "must be empty: what can be resumed goes by PutTensors", start.request_id());
  }
  PENSTOCK_ASSIGN_OR_RETURN(const std::string pipeline, ParsePipelineName(start.pipeline(), "pipeline"));
  if (start.tensors().empty()) return InvalidField("tensors", "must not be empty", "no tensor");
  TensorUploads::Request request{.caller = call.caller(), .pipeline = pipeline};
  for (const v1::TensorHeader& header : start.tensors()) request.headers.push_back(FromProto(header));
  PENSTOCK_RETURN_IF_ERROR(ValidateTensorHeaders(request.headers));
  PENSTOCK_ASSIGN_OR_RETURN(request.lease, environment_.handles->CheckedLease(AsDuration(start.lease())));
  PENSTOCK_RETURN_IF_ERROR(LivePipeline(environment_, call.identity(), pipeline).status());
  if (puts_.size() > kMostPuts) {
    return Error(absl::StatusCode::kResourceExhausted, "STREAM_LIMIT",
                 absl::StrCat("at most ", kMostPuts, " puts of a stream may be incomplete at a time"))
        .With("limit", "puts")
        .With("limit_value", absl::StrCat(kMostPuts));
  }
  PENSTOCK_ASSIGN_OR_RETURN(Admission::Ticket ticket, environment_.admission->Admit(call.caller(), pipeline));
  call.Keep(std::move(ticket));
  PENSTOCK_ASSIGN_OR_RETURN(put->chunk,
                            TakeMemory(environment_.memory, {MemoryClass::kMessages, call.caller(), pipeline},
                                       ReceiveStream::kMaxMessageBytes));
  PENSTOCK_ASSIGN_OR_RETURN(put->hold, handler_.uploads->Attach(std::move(request)));
  return absl::OkStatus();
}

absl::Status WorkStream::TakeChunk(uint64_t tag, const Pieces& message) {
  const auto found = puts_.find(tag);
  if (found == puts_.end()) return absl::OkStatus();  // the put has failed, which the client may not know yet
  guard().Moved(static_cast<int64_t>(PiecesSize(message)));
  Settle(tag, Guarded("the request", [&]() -> absl::StatusOr<TensorUploads::Position> {
           const auto size = static_cast<int64_t>(PiecesSize(message));
           if (size > ReceiveStream::kMaxMessageBytes) {
             return Error(absl::StatusCode::kInvalidArgument, "CHUNK_SIZE",
                          absl::StrCat("chunk: its message must have at most ", ReceiveStream::kMaxMessageBytes,
                                       " bytes, got ", size))
                 .With("field", "chunk")
                 .With("value", absl::StrCat(size));
           }

           PENSTOCK_ASSIGN_OR_RETURN(const ChunkMessage chunk, ReadChunk(message));
           return handler_.uploads->Add(found->second.hold, chunk);
         }));
  return absl::OkStatus();
}

void WorkStream::Settle(uint64_t tag, const absl::StatusOr<TensorUploads::Position>& position) {
  if (position.ok() && !position->complete) return;
  const auto call = puts_.at(tag).call;
  const HandleName name = handler_.uploads->NameOf(puts_.at(tag).hold);
  call->set_incomplete(false);
  guard().Progress();
  Forget(tag);
  if (!position.ok()) return call->Fail(position.status());
  const absl::StatusOr<HandleInfo> info = environment_.handles->Get(call->caller(), name);
  if (!info.ok()) return call->Fail(info.status());
  named_puts_.emplace_back(tag, name);
  if (named_puts_.size() > kPutsKept) named_puts_.pop_front();
  call->Reply(ToProto(*info));
}

void WorkStream::Forget(uint64_t tag) {
  const auto found = puts_.find(tag);
  if (found == puts_.end()) return;
  const Put put = std::move(found->second);
  puts_.erase(found);
  handler_.uploads->Detach(put.hold);
  ExpectPuts();
}

void WorkStream::ExpectPuts() {
  int64_t end_nanos = std::numeric_limits<int64_t>::max();
  for (const auto& [tag, put] : puts_) end_nanos = std::min(end_nanos, put.hold.end_nanos);
  guard().EndAt(end_nanos);
  Expect(!puts_.empty());
}

void WorkStream::ReadEnded() {
  while (!puts_.empty()) Forget(puts_.begin()->first);
}

void WorkStream::Ended() {
  // They hold this stream.
  const std::map<uint64_t, Put> puts = std::move(puts_);
  puts_.clear();
  for (const auto& [tag, put] : puts) {
    Guarded("the end of a put", [this, &one = put] { handler_.uploads->Detach(one.hold); }).IgnoreError();
  }
}

grpc::ByteBuffer WorkStream::AnswerOf(const StreamedRequest& request, const grpc::ByteBuffer& response) const {
  const int field = static_cast<const StreamedWorkBase&>(request).answer_field();
  std::vector<grpc::Slice> pieces;
  if (!response.Dump(&pieces).ok()) throw std::bad_alloc();
  v1::StreamWorkResponse tagged;
  tagged.set_tag(request.number());
  pieces.insert(pieces.begin(), grpc::Slice(tagged.SerializeAsString() + BytesFieldPrefix(field, response.Length())));
  return grpc::ByteBuffer(pieces.data(), pieces.size());
}

grpc::ByteBuffer WorkStream::ErrorOf(const StreamedRequest& request, const grpc::Status& error) const {
  v1::StreamWorkResponse response;
  response.set_tag(request.number());
  if (!response.mutable_error()->ParseFromString(error.error_details())) response.mutable_error()->Clear();
  if (response.error().code() == 0) {  // where memory was too short for details
    response.mutable_error()->set_code(error.error_code());
    response.mutable_error()->set_message(error.error_message());
  }
  return SerializeMessage(response);
}

}  // namespace penstock
