// Times an exported program as tests/exported/bench_program.py wants it:
//   time_program PROGRAM.pt2 INPUTS.safetensors modules|nodes
// For each number of passes that it reads, it trains so often, on one thread, and writes the seconds.

#include <ATen/Parallel.h>
#include <malloc.h>

#include <chrono>
#include <cstdio>
#include <iostream>

#include "engine/device/torch_status.h"
#include "tests/exported/program_passes.h"

namespace {

void Serve(char** argv) {
  at::set_num_threads(1);
  const penstock::ProgramPasses program(argv[1], argv[2], argv[3]);
  for (int passes = 0; std::cin >> passes;) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < passes; ++i) program.Train();
    std::printf("%.9f\n", std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "time_program PROGRAM INPUTS modules|nodes\n";
    return 2;
  }
  // Large activations come from the heap, as in the daemon. The script does the same for eager PyTorch.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  const absl::Status status = penstock::RunTorch([&] { Serve(argv); });
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
