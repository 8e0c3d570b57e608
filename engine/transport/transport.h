#pragma once

// Carries activations, gradients and skip values between stages. One interface, one contract suite
// (tests/contract/transport_contract.h), so that carriers between processes can join.

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "engine/device/device_streams.h"
#include "engine/tensor/batch.h"

namespace penstock {

// Names one message. The receiver matches by key, never by order of arrival.
struct MessageKey {
  int64_t run = 0;        // unique in the pipeline
  bool gradient = false;  // false: an activation for `stage`; true: a gradient for it
  int stage = 0;          // the receiver
  int micro_batch = 0;    // of the run
  int peer = -1;          // the sender, where skip values or their gradients travel; -1: the neighbour's own values

  bool operator==(const MessageKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H state, const MessageKey& key) {
    return H::combine(std::move(state), key.run, key.gradient, key.stage, key.micro_batch, key.peer);
  }
};

// Values that may still be on their way to the receiver's device.
struct ValuesInFlight {
  Batch values;
  EventPtr ready;  // null: they are there
};

// Moves values to the stage that a key names. A gradient is None where there is none.
//
// Threads:   any method from any thread.
// Lifecycle: Close(run) forgets the messages of a run; later sends to it are dropped.
// Fails:     Send: INTERNAL / BUG for a key sent twice; DEVICE_MEMORY where the receiver's device is full. A receive
//            never fails: it finds a message or doesn't.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual absl::Status Send(const MessageKey& key, Batch values) = 0;
  virtual std::optional<ValuesInFlight> TryReceive(const MessageKey& key) = 0;
  virtual void Close(int64_t run) = 0;
};

}  // namespace penstock
