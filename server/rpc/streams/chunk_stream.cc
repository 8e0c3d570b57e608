#include "server/rpc/streams/chunk_stream.h"

#include <utility>

#include "server/rpc/unary_call.h"

namespace penstock {

void ChunkStream::SendChunks(const google::protobuf::MessageLite& first, std::vector<TensorSender::Part> parts,
                             int64_t chunk_bytes) {
  sender_.emplace(std::move(parts), chunk_bytes);
  guard().Watch(context());
  Send(SerializeMessage(first));
}

void ChunkStream::OnSent() {
  guard().Moved(sending_bytes_);
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
