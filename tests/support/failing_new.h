#pragma once

namespace penstock::testing {

// The sanitizers have operators of their own, which can't be replaced: tests that need these are skipped there.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define PENSTOCK_SANITIZER_HAS_NEW 1
#endif
#endif
#ifdef PENSTOCK_SANITIZER_HAS_NEW
inline constexpr bool kCanFailNew = false;
#else
inline constexpr bool kCanFailNew = true;
#endif

// Makes `operator new` fail on this thread: after `spared` more allocations, every one throws std::bad_alloc, until
// StopFailingNew(). Of a program that links penstock::failing_new; memory that is not taken by `operator new` is not
// touched.
void FailNew(int spared = 0);
// The same, but only one fails: there is memory again afterwards.
void FailNewOnce(int spared);

// Returns whether an allocation of this thread has failed since FailNew().
bool StopFailingNew();

}  // namespace penstock::testing
