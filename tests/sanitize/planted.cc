// Commits one fault that a sanitizer must find: proof that the sanitizer presets can fail.

#include <cstdlib>
#include <limits>
#include <string_view>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "engine/base/thread.h"

namespace penstock {
namespace {

// Both threads write; only one of them holds the lock.
int Race() {
  absl::Mutex mutex;
  int shared = 0;
  Thread other("ps-race", [&] {
    absl::MutexLock lock(&mutex);
    ++shared;
  });
  ++shared;
  other.Join();
  return shared;
}

// The same with the lock held by both, and a condition: no fault.
int NoRace() {
  absl::Mutex mutex;
  int shared = 0;
  Thread other("ps-no-race", [&] {
    absl::MutexLock lock(&mutex);
    ++shared;
  });
  absl::MutexLock lock(&mutex, absl::Condition(
                                   +[](int* value) { return *value == 1; }, &shared));
  return ++shared;
}

int Overrun() {
  const std::vector<int> numbers(3);
  volatile size_t past_the_end = numbers.size();
  return numbers.data()[past_the_end];
}

int Overflow() {
  volatile int most = std::numeric_limits<int>::max();
  return most + 1;
}

}  // namespace
}  // namespace penstock

int main(int count, char** arguments) {
  const std::string_view fault = count > 1 ? arguments[1] : "";
  volatile int result = -1;
  if (fault == "race") result = penstock::Race();
  if (fault == "no-race") result = penstock::NoRace();
  if (fault == "overrun") result = penstock::Overrun();
  if (fault == "overflow") result = penstock::Overflow();
  return result == -1 ? EXIT_FAILURE : EXIT_SUCCESS;
}
