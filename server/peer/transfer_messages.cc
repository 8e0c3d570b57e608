#include "server/peer/transfer_messages.h"

#include <array>
#include <string>

#include "google/protobuf/wire_format_lite.h"

namespace penstock {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

// The field `chunk`, and that a length follows.
constexpr uint32_t kChunkTag =
    WireFormatLite::MakeTag(peer::v1::TransferRequest::kChunkFieldNumber, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);

grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return {&slice, 1};
}

grpc::Slice Share(const Piece& piece) {
  using Owner = std::shared_ptr<const void>;
  return {piece.data, static_cast<size_t>(piece.bytes), [](void* owner) { delete static_cast<Owner*>(owner); },
          new Owner(piece.owner)};
}

}  // namespace

grpc::ByteBuffer MakeHello(Rank self, std::string_view key) {
  peer::v1::TransferRequest request;
  request.mutable_hello()->set_rank(self.value());
  request.mutable_hello()->set_key(key.data(), key.size());
  return Serialize(request);
}

grpc::ByteBuffer MakeFrame(std::string_view header, int64_t payload_bytes) {
  peer::v1::TransferRequest request;
  request.mutable_frame()->set_header(header.data(), header.size());
  request.mutable_frame()->set_payload_bytes(payload_bytes);
  return Serialize(request);
}

grpc::ByteBuffer MakeChunk(const std::vector<Piece>& pieces) {
  std::array<uint8_t, 16> prefix = {};
  uint8_t* end = CodedOutputStream::WriteTagToArray(kChunkTag, prefix.data());
  end = CodedOutputStream::WriteVarint32ToArray(static_cast<uint32_t>(ByteSize(pieces)), end);
  std::vector<grpc::Slice> slices;
  slices.reserve(pieces.size() + 1);
  slices.emplace_back(prefix.data(), end - prefix.data());
  for (const Piece& piece : pieces) slices.push_back(Share(piece));
  return {slices.data(), slices.size()};
}

grpc::ByteBuffer MakeTaken(int64_t frames) {
  peer::v1::TransferResponse response;
  response.set_taken_frames(frames);
  return Serialize(response);
}

TransferReader::TransferReader(grpc::ByteBuffer* message) : message_(message), buffer_(message), stream_(&buffer_) {
  uint32_t bytes = 0;
  if (stream_.ReadTag() == kChunkTag && stream_.ReadVarint32(&bytes)) chunk_bytes_ = bytes;
}

bool TransferReader::ReadChunk(char* to, int64_t bytes) { return stream_.ReadRaw(to, static_cast<int>(bytes)); }

bool TransferReader::Parse(peer::v1::TransferRequest* request) {
  grpc::ProtoBufferReader whole(message_);
  return request->ParseFromZeroCopyStream(&whole);
}

}  // namespace penstock
