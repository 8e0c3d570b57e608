#include "server/peer/peer_clock.h"

namespace penstock {

void PeerClock::Add(int64_t sent_nanos, int64_t peer_nanos, int64_t received_nanos) {
  const int64_t half = (received_nanos - sent_nanos + 1) / 2;
  samples_.push_back({{.nanos = peer_nanos - (sent_nanos + half), .uncertainty_nanos = half}, received_nanos});
  if (samples_.size() > kSamples) samples_.pop_front();
}

std::optional<ClockOffset> PeerClock::Offset() const {
  std::optional<ClockOffset> best;
  for (const Sample& sample : samples_) {
    ClockOffset offset = sample.offset;
    offset.uncertainty_nanos += (samples_.back().received_nanos - sample.received_nanos) / kNanosPerNanoOfDrift;
    if (!best.has_value() || offset.uncertainty_nanos < best->uncertainty_nanos) best = offset;
  }
  return best;
}

}  // namespace penstock
