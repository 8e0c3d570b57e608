#pragma once

// A training between two steps, as an automatic checkpoint keeps it beside the weights.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/exec/accumulation.h"
#include "engine/serve/training_state.h"

namespace penstock {

// What the next life goes on with.
struct OpenTraining {
  Accumulation accumulation = {};
  TrainingState::Saved state = {};

  // Whether whole steps are all that there is.
  bool none() const { return accumulation.none() && state.none(); }
};

// Everything but the tensors, as a text that a checkpoint's manifest may hold; empty for none().
std::string FormatOpenTraining(const OpenTraining& training);

// Reads exactly what FormatOpenTraining() writes. Fails: INVALID_ARGUMENT naming `training`.
absl::StatusOr<OpenTraining> ParseOpenTraining(std::string_view text);

}  // namespace penstock
