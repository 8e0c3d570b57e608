#pragma once

#include <cstdint>
#include <string>

namespace penstock {

// A piece of a message between the leader and a rank, which may be larger than one message of a stream. The membership
// and the streams carry it, and don't know what is in it.
struct MessagePart {
  int64_t head_bytes = 0;  // of the message without its tensors; in its first part only
  std::string data;
  bool last = false;
};

}  // namespace penstock
