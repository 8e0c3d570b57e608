#pragma once

// A server stream that sends tensors in chunks.

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "engine/ledger/memory_ledger.h"
#include "server/rpc/streams/tensor_stream.h"
#include "server/rpc/streams/write_stream.h"

namespace penstock {

// Sends some messages, then the chunks of some tensors, each made when the last has left, and ends.
//
// Owns:      shares of the tensors, until the last chunk has left.
class ChunkStream : public WriteStream {
 protected:
  using WriteStream::WriteStream;

  // Room for the chunk that is on its way, until the stream is gone.
  absl::Status HoldChunk(MemoryLedger* memory, const std::string& caller, const std::string& pipeline,
                         int64_t chunk_bytes);

  // From here on the stream goes on by itself, and the peer must keep up. `heads`: at least one.
  void SendChunks(std::deque<grpc::ByteBuffer> heads, std::vector<TensorSender::Part> parts, int64_t chunk_bytes);

 private:
  void OnSent() final;
  void SendHead();
  // All have left; what the stream holds of the tensors may go before the caller hears.
  virtual void OnAllSent() {}

  MemoryReservation chunk_;
  std::deque<grpc::ByteBuffer> heads_;  // still to be sent
  std::optional<TensorSender> sender_;
  int64_t sending_bytes_ = 0;  // of the message that is on its way
};

}  // namespace penstock
