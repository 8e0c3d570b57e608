#include "server/rpc/handle_sharing.h"

#include <optional>

#include "absl/cleanup/cleanup.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"

namespace penstock {

HandleSharing::HandleSharing(HandleStore* handles, Clock* clock, MemoryLedger* memory)
    : handles_(handles), clock_(clock), log_({}, TakeMemoryAnyway(memory, {.kind = MemoryClass::kAnswers}, 0)) {}

absl::StatusOr<HandleInfo> HandleSharing::Share(const Request& request) {
  const RequestKey key{request.caller, "ShareHandle", request.request_id};
  std::optional<HandleName> made;
  {
    absl::MutexLock lock(&mu_);
    PENSTOCK_ASSIGN_OR_RETURN(made, log_.Find(key, request.payload_digest, clock_->NowNanos()));
  }
  if (made.has_value()) return Recall(request, *made);
  PENSTOCK_ASSIGN_OR_RETURN(HandleInfo share,
                            handles_->Share(request.caller, request.name, request.recipient, request.lease));
  absl::Cleanup withdraw = [&] {
    Guarded("the end of a share", [&] { handles_->Withdraw(share.name.id); }).IgnoreError();
  };
  {
    absl::MutexLock lock(&mu_);
    const int64_t now = clock_->NowNanos();
    PENSTOCK_ASSIGN_OR_RETURN(made, log_.Find(key, request.payload_digest, now));
    if (!made.has_value()) log_.Record(key, request.payload_digest, share.name, now);
  }
  if (made.has_value()) return Recall(request, *made);  // another attempt was faster
  std::move(withdraw).Cancel();
  return share;
}

absl::StatusOr<HandleInfo> HandleSharing::Recall(const Request& request, const HandleName& made) const {
  absl::StatusOr<HandleInfo> found = handles_->Get(request.recipient, made);
  if (found.ok()) return found;
  const std::string reason = ReasonOf(found.status());
  if (reason != "HANDLE_RELEASED" && reason != "HANDLE_EXPIRED") return found;
  HandleInfo ended;
  ended.name = made;
  ended.owner = request.recipient;
  ended.state = reason == "HANDLE_RELEASED" ? HandleState::kReleased : HandleState::kExpired;
  ended.method = "ShareHandle";
  return ended;
}

}  // namespace penstock
