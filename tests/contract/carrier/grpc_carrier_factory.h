#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "engine/base/clock.h"
#include "engine/base/timer_queue.h"
#include "server/peer/grpc_carrier.h"

namespace penstock::testing {

inline const std::string kGroupKey(16, 'k');

// Carriers of one group, in plaintext, unless `options` says more.
struct GrpcCarrierFactory {
  static constexpr const char* kKind = "grpc";
  static constexpr int64_t kTimeoutNanos = int64_t{60} * 1'000'000'000;

  std::unique_ptr<Carrier> Make(Rank self, int64_t send_timeout_nanos = kTimeoutNanos) {
    GrpcCarrier::Options own = options;
    own.self = self;
    own.send_timeout_nanos = send_timeout_nanos;
    own.keepalive_nanos = std::min(own.keepalive_nanos, 2 * send_timeout_nanos);
    own.timers = &timers;
    auto carrier = GrpcCarrier::Create(std::move(own));
    EXPECT_TRUE(carrier.ok()) << carrier.status();
    return *std::move(carrier);
  }

  GrpcCarrier::Options options = {.key = kGroupKey};
  TimerQueue timers{RealClock()};
};

}  // namespace penstock::testing
