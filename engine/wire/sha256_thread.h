#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/thread.h"

namespace penstock {

// The digest of bytes that are still coming, made beside that on a thread of its own.
//
// Threads:   the owner's only.
// Lifecycle: Arrived() at will, Finish() once. The destructor drops what is not digested yet.
class Sha256Thread {
 public:
  Sha256Thread() : thread_("ps-digest", [this] { Run(); }) {}
  ~Sha256Thread();

  // All that has come so far; what came before keeps its place. They must stay until Finish().
  void Arrived(std::string_view bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Of what has arrived, as Sha256 has it. Fails: as a thread does.
  absl::StatusOr<std::string> Finish() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void End(bool drop) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::string_view arrived_ ABSL_GUARDED_BY(mu_);
  size_t taken_ ABSL_GUARDED_BY(mu_) = 0;
  bool complete_ ABSL_GUARDED_BY(mu_) = false;
  std::string digest_;  // the thread's until it is joined
  Thread thread_;       // last: it uses all of the above
};

}  // namespace penstock
