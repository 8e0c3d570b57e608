#include "server/peer/group_service.h"

#include <memory>

#include "server/peer/join_stream.h"

namespace penstock {

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* GroupServiceImpl::Join(
    grpc::CallbackServerContext* context) {
  const auto stream = std::make_shared<JoinStream>(membership_, timers_, clock_, context);
  stream->Begin(gate_.Of("Join").Enter(*context).status());
  return stream.get();
}

void GroupServiceImpl::Look() {
  const int64_t next = membership_->Look();
  absl::MutexLock lock(&mu_);
  if (!closed_) timer_ = timers_->Add(next, [this] { Look(); });
}

void GroupServiceImpl::Close() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    timers_->Remove(timer_);
  }
  timers_->Quiesce();
}

}  // namespace penstock
