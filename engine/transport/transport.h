#pragma once

// Carries activations, gradients and skip values between stages. One interface, one contract suite
// (tests/contract/transport_contract.h), so that carriers between processes can join.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

// "activation for stage 1, micro-batch 3".
std::string ToString(const MessageKey& key);

// The stage that sends a message.
inline int SenderOf(const MessageKey& key) { return key.peer >= 0 ? key.peer : key.stage + (key.gradient ? 1 : -1); }

// Values that may still be on their way to the receiver's device.
struct ValuesInFlight {
  Batch values;
  EventPtr ready;  // null: they are there
};

// The values on another device, perhaps still on their way; the same ones on the same device.
absl::StatusOr<ValuesInFlight> Carry(Batch values, DeviceStreams& from, DeviceStreams& to);

// Moves values to the stage that a key names. A gradient is None where there is none.
//
// Threads:   any method from any thread.
// Lifecycle: Open(run) before its first message, Close(run) after its last. Close forgets the messages of a run; later
//            sends to it are dropped. Stages on other ranks have a transport of their own, and may open a run earlier.
// Fails:     Send: INTERNAL / BUG for a key sent twice; DEVICE_MEMORY where the receiver's device is full; to other
//            ranks as GroupTransport says. A receive never fails: it finds a message or doesn't; that none will come is
//            told by whoever made the transport.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual void Open(int64_t run) = 0;
  virtual absl::Status Send(const MessageKey& key, Batch values) = 0;
  virtual std::optional<ValuesInFlight> TryReceive(const MessageKey& key) = 0;
  virtual void Close(int64_t run) = 0;
};

}  // namespace penstock
