// Feeds foreign bytes to the readers of protobuf's wire format, whole and cut into pieces. Both must see the same
// fields.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/v1/work.pb.h"
#include "server/rpc/convert/message_entries.h"
#include "server/rpc/convert/wire_reader.h"
#include "server/rpc/streams/tensor_stream.h"
#include "tests/fuzz/fuzz_checks.h"

namespace {

using penstock::Pieces;
using penstock::testing::Demand;
using penstock::testing::DemandReason;

// Every field written again, and the fault that ended the walk.
struct Walk {
  std::string fields;
  std::string fault;

  bool operator==(const Walk&) const = default;
};

Walk WalkOver(const Pieces& bytes) {
  Walk walk;
  penstock::WireReader reader(bytes);
  while (!reader.AtEnd()) {
    const auto field = reader.Next();
    DemandReason(field.status());
    if (!field.ok()) {
      walk.fault = std::string(field.status().message());
      return walk;
    }
    penstock::AppendField(*field, &walk.fields);
  }
  return walk;
}

// Of what the count of entries lets pass, protobuf must not make more.
void CountEntries(std::string_view bytes, const Pieces& pieces) {
  const auto* schema = penstock::v1::InferRequest::descriptor();
  const absl::Status counted = penstock::CheckMessageEntries({bytes}, schema);
  DemandReason(counted);
  Demand(penstock::CheckMessageEntries(pieces, schema) == counted, "a cut changes what is counted");
  constexpr int kFew = 4;
  const absl::Status few = penstock::CheckMessageEntries(pieces, schema, kFew);
  DemandReason(few);
  penstock::v1::InferRequest request;
  if (!few.ok() || !request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const int entries = request.inputs_size() + request.outputs_size();
  Demand(entries <= kFew, "there are more entries than were counted");
}

// The first byte says how many bytes each piece has, but the last.
Pieces Cut(std::string_view bytes, size_t length) {
  Pieces pieces;
  for (size_t at = 0; at < bytes.size(); at += length) pieces.push_back(bytes.substr(at, length));
  return pieces;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Pieces pieces = Cut(bytes, 1 + data[0] % 32);
  const Walk whole = WalkOver({bytes});
  Demand(WalkOver(pieces) == whole, "a cut changes what is read");
  if (whole.fault.empty()) Demand(WalkOver({whole.fields}) == whole, "fields are not written as they were read");
  CountEntries(bytes, pieces);
  const auto chunk = penstock::ReadChunk({bytes});
  const auto cut_chunk = penstock::ReadChunk(pieces);
  DemandReason(chunk.status());
  Demand(chunk.status() == cut_chunk.status(), "a cut changes what is said of a chunk");
  if (chunk.ok()) {
    Demand(penstock::JoinPieces(chunk->data) == penstock::JoinPieces(cut_chunk->data), "a cut changes a chunk");
  }
  return 0;
}
