#pragma once

// Results as a handle holds them: what travels as tensors, and what does not.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tensor/named_tensors.h"
#include "engine/tensor/value.h"

namespace penstock {

// Model:     `tensors` are the results that are tensors, `own_tensors` of them, then those inside of `values`, each once, named
//            {result}.0, {result}.1, ... in the order in which a walk meets them. `values` are the results that are none.
struct HeldValues {
  HeldValues() = default;
  HeldValues(NamedTensors all) : tensors(std::move(all)), own_tensors(tensors.size()) {}  // NOLINT: tensors are results

  NamedTensors tensors;
  NamedValues values;
  size_t own_tensors = 0;
  int64_t value_bytes = 0;  // what `values` take without their tensors, estimated

  // The results: tensors by themselves and values.
  size_t size() const { return own_tensors + values.size(); }
  // The result of a name, or the only one for an empty name; a tensor inside of a value by its name, too. Null: there is none.
  const at::Tensor* FindTensor(const std::string& name) const;
  const Value* FindValue(const std::string& name) const;
};

// What a value takes while somebody keeps it, estimated: as `value_bytes`, and of each tensor its elements and 512 bytes.
int64_t BytesOf(const Value& value);

// How much of what is no tensor a handle may hold: it comes in one message.
struct HeldLimits {
  int depth = 24;
  int64_t values = 65'536;
  int64_t text_bytes = int64_t{1} << 20;  // strings and keys
  int64_t tensors = 1'024;                // inside of values
};

// Sorts results by what they are.
//
// Fails:     RESOURCE_EXHAUSTED / MESSAGE_TOO_LARGE naming the result that goes beyond a limit.
absl::StatusOr<HeldValues> HoldValues(NamedValues results, const HeldLimits& limits = {});

// Whether HoldValues would take them. Fails: as it.
absl::Status CheckHeld(const NamedValues& results, const HeldLimits& limits = {});

}  // namespace penstock
