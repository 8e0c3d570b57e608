// Tells ThreadSanitizer what Debian's Abseil does, which is not built for it: a lock orders what happened before its
// release with what happens after its acquisition.
//
// Linked into every program of the tsan preset. The functions below take the place of the library's (the dynamic linker
// prefers the program's), call the library's own, and announce the order. Without them every guarded member looks like
// a race; with them a member that is touched without its lock still is one.
//
// While the library runs, reads and writes are not recorded: it evaluates the conditions of waiting threads on
// whichever thread releases the lock.

#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "engine/base/check.h"

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}

namespace {

// Calls the next definition of a member function, the library's, without recording what it touches.
template <typename Result, typename Object, typename... Arguments>
Result CallLibrary(const char* symbol, Object* object, Arguments... arguments) {
  struct Unrecorded {
    Unrecorded() {
      AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
      AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
    ~Unrecorded() {
      AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
      AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
  } unrecorded;
  void* function = dlsym(RTLD_NEXT, symbol);
  PENSTOCK_CHECK(function != nullptr);
  // A member function takes its object as the first argument (Itanium C++ ABI).
  return reinterpret_cast<Result (*)(Object*, Arguments...)>(function)(object, arguments...);
}

void Acquired(const void* object) { __tsan_acquire(const_cast<void*>(object)); }
void Releasing(const void* object) { __tsan_release(const_cast<void*>(object)); }

}  // namespace

#define MUTEX_SYMBOL(rest) "_ZN4absl7debian35Mutex" rest
#define CONDVAR_SYMBOL(rest) "_ZN4absl7debian37CondVar" rest
#define NOTIFICATION_SYMBOL(rest) "_ZNK4absl7debian312Notification" rest
#define COUNTER_SYMBOL(rest) "_ZN4absl7debian315BlockingCounter" rest

namespace absl {
inline namespace debian3 {

void Mutex::Lock() {
  CallLibrary<void>(MUTEX_SYMBOL("4LockEv"), this);
  Acquired(this);
}
void Mutex::Unlock() {
  Releasing(this);
  CallLibrary<void>(MUTEX_SYMBOL("6UnlockEv"), this);
}
bool Mutex::TryLock() {
  const bool locked = CallLibrary<bool>(MUTEX_SYMBOL("7TryLockEv"), this);
  if (locked) Acquired(this);
  return locked;
}
void Mutex::ReaderLock() {
  CallLibrary<void>(MUTEX_SYMBOL("10ReaderLockEv"), this);
  Acquired(this);
}
void Mutex::ReaderUnlock() {
  Releasing(this);
  CallLibrary<void>(MUTEX_SYMBOL("12ReaderUnlockEv"), this);
}
bool Mutex::ReaderTryLock() {
  const bool locked = CallLibrary<bool>(MUTEX_SYMBOL("13ReaderTryLockEv"), this);
  if (locked) Acquired(this);
  return locked;
}
void Mutex::LockWhen(const Condition& condition) {
  CallLibrary<void>(MUTEX_SYMBOL("8LockWhenERKNS0_9ConditionE"), this, &condition);
  Acquired(this);
}
bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  const bool holds = CallLibrary<bool>(MUTEX_SYMBOL("19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE"), this,
                                       &condition, timeout);
  Acquired(this);
  return holds;
}
bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  const bool holds =
      CallLibrary<bool>(MUTEX_SYMBOL("20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE"), this, &condition, deadline);
  Acquired(this);
  return holds;
}
void Mutex::ReaderLockWhen(const Condition& condition) {
  CallLibrary<void>(MUTEX_SYMBOL("14ReaderLockWhenERKNS0_9ConditionE"), this, &condition);
  Acquired(this);
}
bool Mutex::ReaderLockWhenWithTimeout(const Condition& condition, Duration timeout) {
  const bool holds = CallLibrary<bool>(MUTEX_SYMBOL("25ReaderLockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE"),
                                       this, &condition, timeout);
  Acquired(this);
  return holds;
}
bool Mutex::ReaderLockWhenWithDeadline(const Condition& condition, Time deadline) {
  const bool holds = CallLibrary<bool>(MUTEX_SYMBOL("26ReaderLockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE"), this,
                                       &condition, deadline);
  Acquired(this);
  return holds;
}
void Mutex::Await(const Condition& condition) {
  Releasing(this);
  CallLibrary<void>(MUTEX_SYMBOL("5AwaitERKNS0_9ConditionE"), this, &condition);
  Acquired(this);
}
bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  Releasing(this);
  const bool holds =
      CallLibrary<bool>(MUTEX_SYMBOL("16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE"), this, &condition, timeout);
  Acquired(this);
  return holds;
}
bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  Releasing(this);
  const bool holds =
      CallLibrary<bool>(MUTEX_SYMBOL("17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE"), this, &condition, deadline);
  Acquired(this);
  return holds;
}

void CondVar::Wait(Mutex* mutex) {
  Releasing(mutex);
  CallLibrary<void>(CONDVAR_SYMBOL("4WaitEPNS0_5MutexE"), this, mutex);
  Acquired(mutex);
}
bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  Releasing(mutex);
  const bool late =
      CallLibrary<bool>(CONDVAR_SYMBOL("15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"), this, mutex, timeout);
  Acquired(mutex);
  return late;
}
bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  Releasing(mutex);
  const bool late =
      CallLibrary<bool>(CONDVAR_SYMBOL("16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"), this, mutex, deadline);
  Acquired(mutex);
  return late;
}

void Notification::Notify() {
  Releasing(this);
  CallLibrary<void>("_ZN4absl7debian312Notification6NotifyEv", this);
}
void Notification::WaitForNotification() const {
  CallLibrary<void>(NOTIFICATION_SYMBOL("19WaitForNotificationEv"), this);
  Acquired(this);
}
bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  const bool notified =
      CallLibrary<bool>(NOTIFICATION_SYMBOL("30WaitForNotificationWithTimeoutENS0_8DurationE"), this, timeout);
  if (notified) Acquired(this);
  return notified;
}
bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  const bool notified =
      CallLibrary<bool>(NOTIFICATION_SYMBOL("31WaitForNotificationWithDeadlineENS0_4TimeE"), this, deadline);
  if (notified) Acquired(this);
  return notified;
}

bool BlockingCounter::DecrementCount() {
  Releasing(this);
  return CallLibrary<bool>(COUNTER_SYMBOL("14DecrementCountEv"), this);
}
void BlockingCounter::Wait() {
  CallLibrary<void>(COUNTER_SYMBOL("4WaitEv"), this);
  Acquired(this);
}

}  // namespace debian3
}  // namespace absl
