#include "server/rpc/convert/wire_reader.h"

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

absl::Status Malformed(std::string_view problem) {
  return Error(absl::StatusCode::kInvalidArgument, "FIELD_INVALID",
               "message: not a protobuf message, " + std::string(problem))
      .With("field", "message")
      .With("value", problem);
}

void AppendVarint(uint64_t value, std::string* out) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

Pieces WithoutEmpty(Pieces pieces) {
  std::erase_if(pieces, [](std::string_view piece) { return piece.empty(); });
  return pieces;
}

}  // namespace

size_t PiecesSize(const Pieces& pieces) {
  size_t size = 0;
  for (std::string_view piece : pieces) size += piece.size();
  return size;
}

std::string JoinPieces(const Pieces& pieces) {
  std::string joined;
  joined.reserve(PiecesSize(pieces));
  for (std::string_view piece : pieces) joined += piece;
  return joined;
}

WireReader::WireReader(Pieces pieces) : pieces_(WithoutEmpty(std::move(pieces))), left_(PiecesSize(pieces_)) {}

unsigned char WireReader::Byte() {
  const unsigned char byte = static_cast<unsigned char>(pieces_[piece_][position_]);
  --left_;
  if (++position_ == pieces_[piece_].size()) {
    ++piece_;
    position_ = 0;
  }
  return byte;
}

absl::StatusOr<uint64_t> WireReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (left_ == 0) return Malformed("it ends inside a number");
    const unsigned char byte = Byte();
    if (shift == 63 && byte > 1) return Malformed("a number is too large");
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  return Malformed("a number is too long");
}

absl::StatusOr<uint64_t> WireReader::Fixed(int bytes) {
  if (left_ < static_cast<size_t>(bytes)) return Malformed("it ends inside a number");
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(Byte()) << (8 * i);
  return value;
}

absl::StatusOr<Pieces> WireReader::Take(uint64_t size) {
  if (size > left_) return Malformed("a length points beyond its end");
  Pieces taken;
  while (size > 0) {
    const std::string_view rest = pieces_[piece_].substr(position_);
    const std::string_view part = rest.substr(0, size);
    taken.push_back(part);
    size -= part.size();
    left_ -= part.size();
    position_ += part.size();
    if (position_ == pieces_[piece_].size()) {
      ++piece_;
      position_ = 0;
    }
  }
  return taken;
}

absl::StatusOr<WireField> WireReader::Next() {
  PENSTOCK_CHECK(!AtEnd());
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t tag, Varint());
  WireField field;
  field.type = static_cast<uint32_t>(tag & 7);
  if (tag >> 3 == 0 || tag >> 3 >= uint64_t{1} << 29) return Malformed("a field has no number");
  field.number = static_cast<uint32_t>(tag >> 3);
  switch (field.type) {
    case 0: {
      PENSTOCK_ASSIGN_OR_RETURN(field.value, Varint());
      return field;
    }
    case 1: {
      PENSTOCK_ASSIGN_OR_RETURN(field.value, Fixed(8));
      return field;
    }
    case 2: {
      PENSTOCK_ASSIGN_OR_RETURN(const uint64_t size, Varint());
      PENSTOCK_ASSIGN_OR_RETURN(field.bytes, Take(size));
      return field;
    }
    case 5: {
      PENSTOCK_ASSIGN_OR_RETURN(field.value, Fixed(4));
      return field;
    }
    default:
      return Malformed("a field has an unknown kind");
  }
}

ReceivedMessage::ReceivedMessage(const grpc::ByteBuffer& buffer) {
  if (!buffer.Valid() || !buffer.Dump(&slices_).ok()) slices_.clear();
  for (const grpc::Slice& slice : slices_) {
    pieces_.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  size_ = PiecesSize(pieces_);
}

std::string BytesFieldPrefix(uint32_t number, uint64_t size) {
  std::string prefix;
  AppendVarint(uint64_t{number} << 3 | 2, &prefix);
  AppendVarint(size, &prefix);
  return prefix;
}

void AppendField(const WireField& field, std::string* out) {
  AppendVarint(uint64_t{field.number} << 3 | field.type, out);
  if (field.type == 0) {
    AppendVarint(field.value, out);
  } else if (field.type == 2) {
    AppendVarint(PiecesSize(field.bytes), out);
    for (std::string_view piece : field.bytes) *out += piece;
  } else {
    for (int i = 0; i < (field.type == 1 ? 8 : 4); ++i) {
      out->push_back(static_cast<char>(field.value >> (8 * i)));
    }
  }
}

}  // namespace penstock
