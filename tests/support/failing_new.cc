#include "tests/support/failing_new.h"

#include <cstdlib>
#include <new>

namespace penstock::testing {
namespace {

constexpr int kOff = -1;
thread_local int spared_allocations = kOff;
thread_local bool fails_once = false;
thread_local bool has_failed = false;

}  // namespace

void FailNew(int spared) {
  has_failed = false;
  fails_once = false;
  spared_allocations = spared;
}

void FailNewOnce(int spared) {
  FailNew(spared);
  fails_once = true;
}

bool StopFailingNew() {
  spared_allocations = kOff;
  return has_failed;
}

// Whether the next allocation is one that fails.
bool NewFails() {
  if (spared_allocations == kOff) return false;
  if (spared_allocations > 0) {
    --spared_allocations;
    return false;
  }
  has_failed = true;
  if (fails_once) spared_allocations = kOff;
  return true;
}

}  // namespace penstock::testing

#ifndef PENSTOCK_SANITIZER_HAS_NEW
void* operator new(std::size_t size) {
  if (penstock::testing::NewFails()) throw std::bad_alloc();
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif
