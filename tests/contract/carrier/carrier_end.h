#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/transport/carrier.h"

namespace penstock::testing {

inline Piece OwnedPiece(std::string bytes) {
  auto owner = std::make_shared<std::string>(std::move(bytes));
  return {.data = owner->data(), .bytes = static_cast<int64_t>(owner->size()), .owner = owner};
}

// Bytes that differ from place to place, and from frame to frame.
inline std::string Pattern(int64_t bytes, int seed) {
  std::string pattern(bytes, '\0');
  for (int64_t i = 0; i < bytes; ++i) pattern[i] = static_cast<char>((i >> 8) + i * 7 + seed);
  return pattern;
}

// One rank of a test: a carrier, and what came to it.
//
// Threads:   what waits has a limit of a minute, which only a failure reaches.
class CarrierEnd {
 public:
  struct Arrival {
    std::string header;
    std::shared_ptr<std::string> payload;
    absl::Status ended;
  };

  explicit CarrierEnd(std::unique_ptr<Carrier> its_carrier) : carrier(std::move(its_carrier)) {}
  ~CarrierEnd() { carrier->Close(); }  // whose handlers use all of this

  absl::Status Start(const std::map<Rank, std::string>& peers) {
    return carrier->Start(peers, {.on_header = [this](auto header, auto bytes) { return OnHeader(header, bytes); },
                                  .on_lost =
                                      [this](Rank peer, const absl::Status& why) {
                                        absl::MutexLock lock(&mu);
                                        lost.emplace_back(peer, why);
                                      }});
  }

  bool AwaitArrivals(size_t count) {
    const auto there = [&] {
      mu.AssertReaderHeld();
      return arrivals.size() >= count;
    };
    absl::MutexLock lock(&mu);
    return mu.AwaitWithTimeout(absl::Condition(&there), absl::Minutes(1));
  }
  bool AwaitLosses(size_t count) {
    const auto there = [&] {
      mu.AssertReaderHeld();
      return lost.size() >= count;
    };
    absl::MutexLock lock(&mu);
    return mu.AwaitWithTimeout(absl::Condition(&there), absl::Minutes(1));
  }

  const std::unique_ptr<Carrier> carrier;
  std::function<void(const Arrival&)> on_arrival = {};  // set before Start()
  absl::Mutex mu;
  std::vector<std::string> headers ABSL_GUARDED_BY(mu);  // in the order in which they came
  std::vector<Arrival> arrivals ABSL_GUARDED_BY(mu);     // in the order in which they ended
  std::vector<std::pair<Rank, absl::Status>> lost ABSL_GUARDED_BY(mu);

 private:
  absl::StatusOr<Landing> OnHeader(std::string_view header, int64_t payload_bytes) {
    {
      absl::MutexLock lock(&mu);
      headers.emplace_back(header);
    }
    if (header.starts_with("bad")) return absl::InvalidArgumentError("a bad header");
    auto payload = std::make_shared<std::string>(payload_bytes, '\0');
    std::vector<Piece> places;
    const int64_t half = payload_bytes / 2;
    if (header.starts_with("halves")) {
      places = {{.data = payload->data(), .bytes = half},
                {.data = payload->data() + half, .bytes = payload_bytes - half}};
    } else {
      places = {{.data = payload->data(), .bytes = payload_bytes}};
    }
    return Landing{.places = places, .on_ended = [this, header = std::string(header), payload](absl::Status ended) {
                     const Arrival arrival{header, payload, std::move(ended)};
                     if (on_arrival) on_arrival(arrival);
                     absl::MutexLock lock(&mu);
                     arrivals.push_back(arrival);
                   }};
  }
};

}  // namespace penstock::testing
