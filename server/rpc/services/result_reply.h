#pragma once

// The reply of a work call: its handles, after a wait if asked for, with small tensors inline.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/serve/calls.h"
#include "penstock/v1/handle.pb.h"
#include "penstock/v1/work.pb.h"
#include "server/rpc/answered_call.h"
#include "server/rpc/service_environment.h"

namespace penstock {

// ReplyOptions, checked.
struct ReplyPlan {
  absl::Duration wait_for;
  int64_t inline_bytes = 0;
  absl::Duration lease;
  absl::Duration work_timeout;

  // Fails:     FIELD_INVALID naming the field: wait_for above 60 s, inline_bytes above 1 MiB, a lease
  //            outside its limits, work_timeout above a day.
  static absl::StatusOr<ReplyPlan> FromProto(const v1::ReplyOptions& options, const HandleStore& handles);
};

// What an accepted call replies with.
struct Results {
  v1::Result outcome;
  v1::Result outputs;
  v1::Result graph;
};

// Calls back once, when the handles of an accepted call have settled or the plan's wait has passed. If
// the caller leaves before, so that no client can know the handles, work that changes no state is
// cancelled and its handles are released.
void WhenSettled(const ServiceEnvironment& environment, const std::shared_ptr<AnsweredCall>& call,
                 const Accepted& accepted, const ReplyPlan& plan, bool cancel_with_call,
                 std::function<void(const Results&)> reply);

}  // namespace penstock
