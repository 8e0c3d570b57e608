#pragma once

// Parameters that several layers share. Each use has a leaf and a gradient of its own; before the step the gradients of
// all uses are summed in model order, so that the sum does not depend on the cut. Every stage that uses a tied
// parameter holds a copy and steps it with the same sum, so that the copies stay equal without being sent.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/ids.h"
#include "engine/model/layer_registry.h"
#include "engine/model/ties.h"
#include "engine/tensor/named_tensors.h"

namespace penstock {

// The uses of one tied parameter on one stage.
struct StageTie {
  struct Use {
    int position = 0;   // among all uses, in model order
    int parameter = 0;  // index in the stage's parameters
  };
  int group = 0;
  std::string name;       // under which it is saved: that of its first use, layer.parameter
  std::vector<Use> uses;  // in model order; the first one's tensor is the stage's copy
  bool owner = false;     // has the first use of all: it is saved here, and its norm counts here
};

// A tied parameter as all ranks know it.
struct TiedPlace {
  std::string name;         // under which it is saved
  std::vector<Rank> ranks;  // of each use, in model order
};

// The gradients of all uses, [group][position]; undefined where there is none. Each entry has one writer.
using TiedGradients = std::vector<std::vector<at::Tensor>>;

// Puts gradients of some uses into their places. May throw.
void PutTiedGradients(TiedGradients given, TiedGradients& places);

// Makes the uses of each tie one parameter: initial values of the first use, and one memory per stage. The layers stand
// on the devices of their stages; those of other ranks have only shapes, but for first uses of what is used here. `first_layers` are the first layers of the stages. Returns the ties by stage. May
// throw (RunTorch).
std::vector<std::vector<StageTie>> TieParameters(const std::vector<TieGroup>& groups, std::vector<NamedLayer>& layers,
                                                 const std::vector<int>& first_layers);

// That a parameter shares memory with one of another device.
absl::Status DuplicateParameters(const std::string& name);

// Undeclared ties: layers whose parameters share memory, where they have any.
//
// Fails:     INVALID_ARGUMENT / SPEC_INVALID "module with duplicate parameters on distinct devices is not supported",
//            as torch's pipeline.sync, if the stages of such layers stand on different devices (`device_of_layer`).
absl::StatusOr<std::vector<TieGroup>> FindSharedParameters(const std::vector<NamedLayer>& layers,
                                                           const std::vector<std::string>& device_of_layer);

}  // namespace penstock
