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

// What a message has. The first two pass between stages, the others between the leader's process and the first or the
// last stage, if they are not in one process.
enum class MessageKind : uint8_t {
  kActivation,
  kGradient,
  kInput,           // of the model, for the first stage
  kTarget,          // and its weights: for the loss of the last stage
  kOutputGradient,  // of the client, for the last stage
  kOutput,          // of the model, from the last stage
  kInputGradient,   // of the model's inputs, from the first stage
};

// Names one message. The receiver matches by key, never by order of arrival.
struct MessageKey {
  int64_t run = 0;  // unique in the pipeline
  MessageKind kind = MessageKind::kActivation;
  int stage = 0;        // the receiver; of a message to the leader, the sender
  int micro_batch = 0;  // of the run
  int peer = -1;        // the sender, where skip values or their gradients travel; -1: the neighbour's own values

  bool operator==(const MessageKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H state, const MessageKey& key) {
    return H::combine(std::move(state), key.run, key.kind, key.stage, key.micro_batch, key.peer);
  }
};

// "activation for stage 1, micro-batch 3".
std::string ToString(const MessageKey& key);

inline bool IsFromLeader(MessageKind kind) {
  return kind == MessageKind::kInput || kind == MessageKind::kTarget || kind == MessageKind::kOutputGradient;
}
inline bool IsToLeader(MessageKind kind) { return kind == MessageKind::kOutput || kind == MessageKind::kInputGradient; }

// The stage that sends a message to another one.
inline int SenderOf(const MessageKey& key) {
  return key.peer >= 0 ? key.peer : key.stage + (key.kind == MessageKind::kGradient ? 1 : -1);
}

// Values that may still be on their way to the receiver's device.
struct ValuesInFlight {
  Batch values;
  EventPtr ready;  // null: they are there
};

// The values on another device, perhaps still on their way; the same ones on the same device.
absl::StatusOr<ValuesInFlight> Carry(Batch values, DeviceStreams& from, DeviceStreams& to);

// Moves values to the stage that a key names, or from it to the leader. A gradient is None where there is none.
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
