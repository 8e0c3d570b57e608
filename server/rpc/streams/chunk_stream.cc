#include "server/rpc/streams/chunk_stream.h"

#include <utility>

#include "engine/base/status_macros.h"

namespace penstock {

absl::Status ChunkStream::HoldChunk(MemoryLedger* memory, const std::string& caller, const std::string& pipeline,
                                    int64_t chunk_bytes) {
  PENSTOCK_ASSIGN_OR_RETURN(chunk_, TakeMemory(memory, {MemoryClass::kMessages, caller, pipeline}, chunk_bytes));
  return absl::OkStatus();
}

void ChunkStream::SendChunks(std::deque<grpc::ByteBuffer> heads, std::vector<TensorSender::Part> parts,
                             int64_t chunk_bytes) {
  heads_ = std::move(heads);
  sender_.emplace(std::move(parts), chunk_bytes);
  guard().Watch(context());
  SendHead();
}

void ChunkStream::SendHead() {
  grpc::ByteBuffer head = std::move(heads_.front());
  heads_.pop_front();
  sending_bytes_ = static_cast<int64_t>(head.Length());
  Send(std::move(head));
}

void ChunkStream::OnSent() {
  guard().Moved(sending_bytes_);
  if (!heads_.empty()) return SendHead();
  std::optional<grpc::ByteBuffer> chunk = sender_->Next();
  if (chunk.has_value()) {
    sending_bytes_ = static_cast<int64_t>(chunk->Length());
    Send(*std::move(chunk));
  } else {
    sender_.reset();  // before the caller hears of the end, so that its next call finds the memory free
    OnAllSent();
    Close(absl::OkStatus());
  }
}

}  // namespace penstock
