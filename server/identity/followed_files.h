#pragma once

// Files that are read again when they change.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace penstock {

class Clock;
class Thread;

// Reads groups of files again and again, and hands on those whose bytes have changed.
//
// Model:     The files of a group belong together: a change of one hands on all. A group that can't be read or taken is
//            told to the log and counted, once for what it holds, and whoever took the last good one keeps it. Contents
//            are compared, not times: a link that is swapped counts, a file that is touched does not.
// Owns:      one thread, `ps-identity`, from Start() on. The Clock outlives it.
// Threads:   Follow() before Start(); what takes runs on the thread, one at a time.
// Lifecycle: Follow() for each group, Start(), then the destructor ends the thread.
// Fails:     Follow(): what reading or taking fails with, so that a daemon does not start on a bad file.
class FollowedFiles {
 public:
  static constexpr absl::Duration kInterval = absl::Milliseconds(250);
  static constexpr int64_t kMaxBytes = int64_t{16} << 20;

  // The contents of a group, in the order of its paths. What it fails with is logged: nothing secret.
  using Take = std::function<absl::Status(const std::vector<std::string>& contents)>;

  // `told` is called each time that a changed group is refused, on the thread; it may be null.
  explicit FollowedFiles(Clock* clock, std::function<void()> told = nullptr);
  ~FollowedFiles();

  // `flag` names the group in errors and in the log.
  absl::Status Follow(std::string flag, std::vector<std::string> paths, Take take);
  void Start();

  // Reads every group now; returns how many were taken anew.
  int LookForTest() { return Look(); }

 private:
  struct Group {
    std::string flag;
    std::vector<std::string> paths;
    Take take;
    std::vector<std::string> contents;  // the last that were handed on
    std::string unreadable;             // why they could not be read the last time
  };

  static absl::StatusOr<std::vector<std::string>> Read(const Group& group);
  // Whether the group was taken anew.
  bool LookAt(Group& group);
  int Look();
  void Refuse(const Group& group, const absl::Status& why);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  Clock* const clock_;
  const std::function<void()> told_;
  std::vector<Group> groups_;  // the thread's, from Start() on

  absl::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Thread> thread_;  // last: it uses all of the above
};

}  // namespace penstock
