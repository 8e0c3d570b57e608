// Feeds foreign headers to the readers between ranks. What they let pass must have places for exactly the payload, and
// come back the same when it is written again.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "engine/transport/frame_header.h"
#include "engine/transport/tensor_message.h"
#include "tests/fuzz/fuzz_checks.h"

namespace {

using penstock::testing::Demand;
using penstock::testing::DemandReason;

// The first two bytes say how much payload comes with the message.
void ReadMessage(std::string_view input) {
  if (input.size() < 2) return;
  const int64_t payload_bytes = static_cast<uint8_t>(input[0]) * 256 + static_cast<uint8_t>(input[1]);
  const auto message = penstock::DecodeTensorMessage(input.substr(2), payload_bytes);
  DemandReason(message.status());
  if (!message.ok()) return;
  Demand(penstock::ByteSize(message->places) == payload_bytes, "the places are not those of the payload");
  for (const penstock::Piece& place : message->places) {
    if (place.bytes > 0) std::memset(place.data, 1, place.bytes);
  }
  Demand(penstock::CheckArrived(message->values).ok(), "a bool of 1 is refused");
  const auto again = penstock::EncodeTensorMessage(message->key, message->values, /*max_header_bytes=*/1 << 20);
  if (!again.ok()) return;
  const auto same = penstock::DecodeTensorMessage(again->header, payload_bytes);
  Demand(same.ok() && same->key == message->key, "what was read can't be read again");
  Demand(penstock::TypesText(same->values) == penstock::TypesText(message->values), "it comes back as something else");
}

void ReadFrame(std::string_view input) {
  const auto frame = penstock::DecodeFrameHeader(input);
  DemandReason(frame.status());
  if (frame.ok()) Demand(penstock::EncodeFrameHeader(*frame) == input, "a frame comes back as another one");
  Demand(!penstock::DecodeError(input).ok(), "a refusal is no error");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  ReadMessage(input);
  ReadFrame(input);
  return 0;
}
