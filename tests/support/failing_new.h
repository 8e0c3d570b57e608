#pragma once

namespace penstock::testing {

// Makes `operator new` fail on this thread: after `spared` more allocations, every one throws std::bad_alloc, until
// StopFailingNew(). Of a program that links penstock::failing_new; memory that is not taken by `operator new` is not touched.
void FailNew(int spared = 0);

// Returns whether an allocation of this thread has failed since FailNew().
bool StopFailingNew();

}  // namespace penstock::testing
