#pragma once

// A server stream that sends tensors in chunks.

#include <cstdint>
#include <optional>
#include <vector>

#include "google/protobuf/message_lite.h"
#include "server/rpc/streams/tensor_stream.h"
#include "server/rpc/streams/write_stream.h"

namespace penstock {

// Sends one message, then the chunks of some tensors, each made when the last has left, and ends.
//
// Owns:      shares of the tensors, until the last chunk has left.
class ChunkStream : public WriteStream {
 protected:
  using WriteStream::WriteStream;

  // From here on the stream goes on by itself, and the peer must keep up.
  void SendChunks(const google::protobuf::MessageLite& first, std::vector<TensorSender::Part> parts,
                  int64_t chunk_bytes);

 private:
  void OnSent() final;
  // All have left; what the stream holds of the tensors may go before the caller hears.
  virtual void OnAllSent() {}

  std::optional<TensorSender> sender_;
  int64_t sending_bytes_ = 0;  // of the chunk that is on its way
};

}  // namespace penstock
