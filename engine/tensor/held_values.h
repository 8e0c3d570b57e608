#pragma once

// Results as a handle holds them: what travels as tensors, and what does not.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tensor/named_tensors.h"
#include "engine/tensor/value.h"

namespace penstock {

// Model:     `tensors` are the results that are tensors, `own_tensors` of them, then those inside of `values`, each once, named
//            {result}.0, {result}.1, ... in the order in which a walk meets them. `values` are the results that are none.
struct HeldValues {
  HeldValues() = default;
  HeldValues(NamedTensors all);  // NOLINT: tensors are results

  NamedTensors tensors;
  NamedValues values;
  std::vector<size_t> by_name;  // the places of `tensors`, in the order of their names
  size_t own_tensors = 0;
  int64_t value_bytes = 0;  // what `values` take without their tensors, estimated
  bool in_file = false;     // the elements on the host are those of a file (SpillFolder)

  // The results: tensors by themselves and values.
  size_t size() const { return own_tensors + values.size(); }
  // The result of a name, or the only one for an empty name; a tensor inside of a value by its name, too. Null: there is none.
  const at::Tensor* FindTensor(const std::string& name) const;
  const Value* FindValue(const std::string& name) const;

  // The bytes of all elements, and of `values`.
  int64_t bytes() const;
};

// The same values with other tensors: `move` is called once for each, and says where its elements shall be. Throws what it
// throws.
HeldValues MoveValues(const HeldValues& held, const std::function<at::Tensor(const at::Tensor&)>& move);

// What a value that came in a message takes while somebody keeps it, estimated: as `value_bytes`, and of each tensor its
// elements and 512 bytes.
int64_t BytesOf(const Value& value);

// How much of what is no tensor a handle may hold. A fetch sends each value in one message, which stays below 3 MiB: text
// and some 20 bytes per value.
struct HeldLimits {
  int depth = 24;
  int64_t values = 65'536;
  int64_t text_bytes = int64_t{1} << 20;  // strings, keys, and the name of a tensor for each place where it stands
  int64_t tensors = 1'024;                // inside of values
};

// Sorts results by what they are.
//
// Fails:     RESOURCE_EXHAUSTED / MESSAGE_TOO_LARGE naming the result that goes beyond a limit; INVALID_ARGUMENT / WRONG_TYPE
//            naming the one that no message can carry: a text or key that is not UTF-8, a key that comes twice.
absl::StatusOr<HeldValues> HoldValues(NamedValues results, const HeldLimits& limits = {});

// Whether HoldValues would take them. Fails: as it.
absl::Status CheckHeld(const NamedValues& results, const HeldLimits& limits = {});

}  // namespace penstock
