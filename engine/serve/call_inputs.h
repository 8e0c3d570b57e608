#pragma once

// The values of a call, some of which may not exist yet.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/handles/handle_store.h"
#include "engine/serve/calls.h"
#include "engine/tensor/value.h"

namespace penstock {

// Named values: given with the call, or behind handles that are pinned until the call has them, each handle of a list once.
//
// Owns:      The pins. The HandleStore must outlive it.
// Threads:   One at a time.
// Lifecycle: Make(); then OnReady(), at most once; then Take() when it has called back. Destruction releases the pins.
// Fails:     Make(): the reasons of handles, HANDLE_KIND for one without tensors, all naming the handle and the field.
//            Take(): an input's own error; INVALID_ARGUMENT / TENSOR_SIGNATURE for a tensor that its handle lacks, WRONG_TYPE
//            for a value that shall be whole, or that stands for a tensor inside of another value.
class CallInputs {
 public:
  CallInputs() = default;
  // `field` names the list in errors: "inputs".
  static absl::StatusOr<CallInputs> Make(HandleStore* store, const std::string& caller,
                                         std::vector<InputSource> sources, const std::string& field);

  // Adds the inputs of another list.
  void Append(CallInputs more);
  // Waits for another handle too, and keeps it; returns its index.
  int AddPin(HandlePin pin);
  const HandlePin& pin(int index) const { return pins_[index]; }
  int pin_count() const { return static_cast<int>(pins_.size()); }

  // True if every tensor is here, or its error is.
  bool ready() const;
  // Calls back when ready() has become true; possibly before it returns.
  void OnReady(HandleStore* store, std::function<void()> callback) const;
  // The values in the order of the sources, under the names of the sources. Keeps the pins.
  absl::StatusOr<NamedValues> Take() const;
  // Bytes that came with the call, as BytesOf() counts them; those behind handles are charged to their owners.
  int64_t inline_bytes() const { return inline_bytes_; }

 private:
  // What stands behind a handle.
  struct Reference {
    int pin = -1;                  // index into pins_
    std::string tensor_name = {};  // and the tensor's name there
    std::string field = {};        // where it stands in the request
  };
  struct Input {
    std::string name;
    std::string field;
    bool whole = false;
    Value value = {};  // given with the call; else
    Reference from = {};
    std::vector<Reference> inside = {};  // instead of the undefined tensors of `value`
  };

  // Pins a handle that is not among `pinned`, indices into pins_. `input` is the field of the input that it is for.
  absl::StatusOr<Reference> Refer(HandleStore* store, const std::string& caller, HandleTensor from,
                                  const std::string& input, std::map<HandleName, int>* pinned);
  absl::StatusOr<Value> TakeValue(const Input& input) const;
  absl::StatusOr<at::Tensor> TakeTensor(const Reference& reference) const;
  absl::StatusOr<std::shared_ptr<const HeldValues>> HeldBy(const Reference& reference) const;

  std::vector<Input> inputs_;
  std::vector<HandlePin> pins_;
  int64_t inline_bytes_ = 0;
};

}  // namespace penstock
