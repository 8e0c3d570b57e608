#include "engine/device/deterministic.h"

#include <ATen/Context.h>

#include <cstdlib>

namespace penstock {

void UseDeterministicKernels() {
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicCuDNN(true);
  context.setDeterministicFillUninitializedMemory(false);  // costs time, and nothing here reads such memory
}

}  // namespace penstock
