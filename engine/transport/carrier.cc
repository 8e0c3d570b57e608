#include "engine/transport/carrier.h"

namespace penstock {

int64_t ByteSize(const std::vector<Piece>& pieces) {
  int64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

}  // namespace penstock
