#pragma once

// The messages of TransferService as bytes. Chunks do without the generated class, so that their bytes are not copied
// when they are sent, and once when they have come.

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/base/ids.h"
#include "engine/transport/carrier.h"
#include "google/protobuf/io/coded_stream.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "penstock/peer/v1/transfer.pb.h"

namespace penstock {

inline constexpr int64_t kMaximumChunkBytes = int64_t{512} << 10;
inline constexpr int64_t kMaximumTransferMessageBytes = kMaximumChunkBytes + 64;  // a header is smaller

grpc::ByteBuffer MakeHello(Rank self, std::string_view key);
grpc::ByteBuffer MakeFrame(std::string_view header, int64_t payload_bytes);
// Shares the pieces: their owners go when gRPC has done with the bytes, on a thread of its own. None may be empty.
grpc::ByteBuffer MakeChunk(const std::vector<Piece>& pieces);
grpc::ByteBuffer MakeTaken(int64_t frames);

// Reads a TransferRequest; the message outlives it.
class TransferReader {
 public:
  explicit TransferReader(grpc::ByteBuffer* message);

  bool is_chunk() const { return chunk_bytes_ >= 0; }
  // Of a chunk: its bytes, and the next ones of them. False where the message has ended before.
  int64_t chunk_bytes() const { return chunk_bytes_; }
  bool ReadChunk(char* to, int64_t bytes);
  // Of any other. False for what is no message.
  bool Parse(peer::v1::TransferRequest* request);

 private:
  grpc::ByteBuffer* const message_;
  grpc::ProtoBufferReader buffer_;
  google::protobuf::io::CodedInputStream stream_;
  int64_t chunk_bytes_ = -1;
};

}  // namespace penstock
