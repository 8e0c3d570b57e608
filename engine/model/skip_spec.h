#pragma once

// Skip connections as a model declares them: one layer stashes a value under a name, a later one pops it.
// Source: torchgpipe's skippable layers (Kim et al., "torchgpipe: on-the-fly pipeline parallelism", 2020, section 4.2).

#include <compare>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace penstock {

struct SkipName {
  std::string skip_namespace;  // empty: the default one
  std::string name;

  auto operator<=>(const SkipName&) const = default;
  template <typename H>
  friend H AbslHashValue(H state, const SkipName& skip) {
    return H::combine(std::move(state), skip.skip_namespace, skip.name);
  }
};

// What one layer stashes and pops, in the order in which it declares them.
struct SkipDeclaration {
  std::vector<SkipName> stashes;
  std::vector<SkipName> pops;
};

// Values of the whole model that its first layer stashes as they come, or its last one gives as it pops them: they need
// not pass these layers at all.
struct HandedValue {
  SkipName name;
  int position = 0;  // among the model's inputs, or outputs

  bool operator==(const HandedValue&) const = default;
};
struct HandedValues {
  std::vector<HandedValue> inputs;
  std::vector<HandedValue> outputs;
};

// How the stashes and pops of a list of layers meet.
struct SkipMatch {
  std::vector<std::string> faults;        // sentences, in the order of the layers; not about what is open
  SkipDeclaration open;                   // what is popped before it was stashed, and what is stashed and not popped
  std::vector<std::string> open_pops_of;  // the layers that pop `open.pops`
};
SkipMatch MatchSkips(const std::vector<std::string>& layers, const std::vector<SkipDeclaration>& declarations);

// INVALID_ARGUMENT / WRONG_TYPE of `field` with all faults, or OK if there are none.
absl::Status SkipFaults(const std::vector<std::string>& faults, std::string_view field);

// The static check: each (namespace, name) is stashed by one layer and then popped by one later layer. `layers` are the
// layers' names, for the sentences.
//
// Fails:     INVALID_ARGUMENT / WRONG_TYPE of field spec.model.layers with all faults: "one or more pairs of stash and
//            pop do not match:\n\n* ...".
absl::Status CheckSkips(const std::vector<std::string>& layers, const std::vector<SkipDeclaration>& declarations);

}  // namespace penstock
