#include "engine/device/device_threads.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace penstock {

void UseIntraOpThreads(int count) {
  at::get_num_threads();
  at::set_num_threads(std::max(count, 1));
}

}  // namespace penstock
