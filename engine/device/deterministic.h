#pragma once

namespace penstock {

// From now on LibTorch chooses kernels that give the same bits each time, and refuses operators that have none, naming
// them. A GPU's usual kernels may sum in the order in which their threads come; a CPU's never do.
//
// Lifecycle: in main, before devices are opened: cuBLAS reads its part of the environment once.
void UseDeterministicKernels();

}  // namespace penstock
