#pragma once

// The checkpoints of all pipelines of one state folder, living or deleted.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/checkpoint/checkpoint_file.h"

namespace penstock {

// Finds checkpoints by the name of their pipeline.
//
// Model:     One CheckpointFolder per pipeline that has, or had, checkpoints. Each exists once, so that those who serve
//            a pipeline and those who only read its checkpoints share its index and its order of reads and writes.
// Owns:      The folders, with those who hold one meanwhile. FileSystem, Clock and CheckpointQuota outlive it.
// Threads:   Any method from any thread. Open() and FolderOf() touch the disk; the others never do.
// Fails:     as CheckpointFolder.
class CheckpointStore {
 public:
  // Reads what there is, and tells the quota (or null). A folder that can't be read is logged and counts as empty.
  static absl::StatusOr<std::unique_ptr<CheckpointStore>> Open(FileSystem* files, Clock* clock, std::string state_dir,
                                                               CheckpointQuota* quota);

  // That of a pipeline which `owner` is making: made if it is missing, and read anew.
  absl::StatusOr<std::shared_ptr<CheckpointFolder>> FolderOf(const std::string& pipeline, const std::string& owner = "")
      ABSL_LOCKS_EXCLUDED(mu_);
  // Null: no such pipeline has had checkpoints.
  std::shared_ptr<CheckpointFolder> FindFolder(const std::string& pipeline) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<CheckpointInfo> Find(const std::string& pipeline, const std::string& id) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // By pipeline and identifier, those after (`pipeline`, `id`), at most `limit`.
  std::vector<CheckpointInfo> List(const std::string& pipeline, const std::string& id, size_t limit) const
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  CheckpointStore(FileSystem* files, Clock* clock, std::string state_dir, CheckpointQuota* quota)
      : files_(files), clock_(clock), state_dir_(std::move(state_dir)), quota_(quota) {}

  FileSystem* const files_;
  Clock* const clock_;
  const std::string state_dir_;
  CheckpointQuota* const quota_;  // null: none

  mutable absl::Mutex mu_;
  std::map<std::string, std::shared_ptr<CheckpointFolder>> folders_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
