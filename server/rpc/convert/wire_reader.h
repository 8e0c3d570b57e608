#pragma once

// Reads protobuf's wire format from the slices of a received message, without joining them: large
// fields are handed out as views, so that a payload is copied once, to where it belongs.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace penstock {

// Bytes of a message that lie in several places; the pieces are in order and never empty.
using Pieces = std::vector<std::string_view>;

size_t PiecesSize(const Pieces& pieces);
std::string JoinPieces(const Pieces& pieces);

// One field of a message.
struct WireField {
  uint32_t number = 0;
  uint32_t type = 0;   // 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes
  uint64_t value = 0;  // of types 0, 1 and 5
  Pieces bytes;        // of type 2
};

// Walks over the fields of one message.
//
// Owns:      nothing; the bytes outlive the reader and what it hands out. A cut between pieces may
//            fall at every byte.
// Threads:   one.
// Fails:     INVALID_ARGUMENT / FIELD_INVALID for bytes that are no protobuf message, groups included.
// Example:   WireReader reader(pieces);
//            while (!reader.AtEnd()) { PENSTOCK_ASSIGN_OR_RETURN(WireField field, reader.Next()); … }
class WireReader {
 public:
  explicit WireReader(Pieces pieces);

  bool AtEnd() const { return left_ == 0; }
  absl::StatusOr<WireField> Next();

 private:
  absl::StatusOr<uint64_t> Varint();
  absl::StatusOr<uint64_t> Fixed(int bytes);
  absl::StatusOr<Pieces> Take(uint64_t size);
  unsigned char Byte();

  const Pieces pieces_;
  size_t piece_ = 0;     // the piece that holds the next byte
  size_t position_ = 0;  // of the next byte in it
  size_t left_;
};

// The slices of a received message, kept alive, and views of them.
//
// Owns:      references to the slices. A short slice keeps its bytes inside itself, so a copy would
//            leave the views behind: there is none.
class ReceivedMessage {
 public:
  explicit ReceivedMessage(const grpc::ByteBuffer& buffer);
  ReceivedMessage(const ReceivedMessage&) = delete;
  ReceivedMessage& operator=(const ReceivedMessage&) = delete;
  const Pieces& pieces() const { return pieces_; }
  size_t size() const { return size_; }

 private:
  std::vector<grpc::Slice> slices_;
  Pieces pieces_;
  size_t size_ = 0;
};

// The tag and length that stand before `size` bytes of field `number`.
std::string BytesFieldPrefix(uint32_t number, uint64_t size);

// The same field again, as contiguous bytes.
void AppendField(const WireField& field, std::string* out);

}  // namespace penstock
