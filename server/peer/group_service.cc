#include "server/peer/group_service.h"

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/base/guard.h"
#include "server/peer/join_stream.h"

namespace penstock {
namespace {

constexpr absl::Duration kSoon = absl::Milliseconds(100);

}  // namespace

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* GroupServiceImpl::Join(
    grpc::CallbackServerContext* context) {
  const auto stream = std::make_shared<JoinStream>(membership_, timers_, clock_, context);
  stream->Begin(gate_.Of("Join").Enter(*context).status());
  return stream.get();
}

// Whatever fails, there is another look: without it nobody is pinged, or found to be silent.
void GroupServiceImpl::Look() {
  const auto next = Guarded("a look at the ranks", [this]() -> absl::StatusOr<int64_t> { return membership_->Look(); });
  absl::MutexLock lock(&mu_);
  if (!closed_) next_look_.Set(next.ok() ? *next : clock_->NowNanos() + absl::ToInt64Nanoseconds(kSoon));
}

void GroupServiceImpl::Close() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
    next_look_.Clear();
  }
  timers_->Quiesce();
}

}  // namespace penstock
