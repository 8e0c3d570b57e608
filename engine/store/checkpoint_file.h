#pragma once

// Parameters and optimizer state on disk: complete or absent, never half.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/tensor/named_tensors.h"

namespace penstock {

class CancelToken;
class Clock;
class FileSystem;
struct CheckpointManifest;

// What is known of a checkpoint without reading its tensors.
struct CheckpointInfo {
  std::string pipeline;
  std::string id;
  int64_t step = 0;
  int64_t bytes = 0;             // of the file that holds the tensors
  std::string digest = {};       // "crc32c:" and 8 hex digits of that file
  std::string spec_digest = {};  // of the pipeline that it was saved from, as the caller gave it
  absl::Time create_time = {};
};

struct LoadedCheckpoint {
  CheckpointInfo info;
  NamedTensors state;
};

// The checkpoints of one pipeline.
//
// Model:     A folder `checkpoints` with one folder per checkpoint: `state.safetensors`, and
//            `manifest.json` with step, bytes, CRC32C, digest of the specification and the names of
//            the tensors. A checkpoint is written under a name that starts with a dot, synced, and
//            renamed: what has its name is whole. An index of the manifests is kept in memory.
// Owns:      The folder; nobody else writes there. FileSystem and Clock must outlive it.
// Threads:   Any method from any thread. Save() and Load() touch the disk, one at a time; List()
//            and Find() never do.
// Lifecycle: Open() removes what a crash has left.
// Fails:     ALREADY_EXISTS / CHECKPOINT_EXISTS; NOT_FOUND / CHECKPOINT_NOT_FOUND; DATA_LOSS /
//            CHECKPOINT_CORRUPT for anything that is not exactly what was written; these name the
//            checkpoint. CANCELLED / WORK_CANCELLED. RESOURCE_EXHAUSTED / STORAGE_FULL; INTERNAL for other faults of the disk. A
//            failed Save() leaves nothing behind, and the other checkpoints as they were.
class CheckpointFolder {
 public:
  // `state_dir`/pipelines/`pipeline`/checkpoints, made if missing.
  static absl::StatusOr<std::unique_ptr<CheckpointFolder>> Open(FileSystem* files, Clock* clock,
                                                                const std::string& state_dir,
                                                                const std::string& pipeline);

  // Fails at once if the name is taken: for a refusal before acceptance.
  absl::Status CheckFree(const std::string& id) const ABSL_LOCKS_EXCLUDED(mu_);
  // `cancel` gives it up between two pieces of the file; null: nobody does.
  absl::StatusOr<CheckpointInfo> Save(const std::string& id, int64_t step, const std::string& spec_digest,
                                      const NamedTensors& state, const CancelToken* cancel = nullptr)
      ABSL_LOCKS_EXCLUDED(mu_, disk_mu_);
  // step-{n}, or step-{n}-end and step-{n}-end-{i} where that is taken.
  std::string FreeId(int64_t step) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<LoadedCheckpoint> Load(const std::string& id) ABSL_LOCKS_EXCLUDED(mu_, disk_mu_);
  absl::StatusOr<CheckpointInfo> Find(const std::string& id) const ABSL_LOCKS_EXCLUDED(mu_);
  // By identifier. A damaged one is in the list with what can be known of it; Load() refuses it.
  std::vector<CheckpointInfo> List() const ABSL_LOCKS_EXCLUDED(mu_);
  // Removes all checkpoints, the folder included.
  absl::Status Purge() ABSL_LOCKS_EXCLUDED(mu_, disk_mu_);

 private:
  CheckpointFolder(FileSystem* files, Clock* clock, std::string folder, std::string pipeline);
  absl::Status Scan() ABSL_LOCKS_EXCLUDED(mu_, disk_mu_);
  // Fills in the manifest's bytes and checksum.
  absl::Status Write(const std::string& folder, CheckpointManifest& manifest, const NamedTensors& state,
                     const CancelToken* cancel) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);

  FileSystem* const files_;
  Clock* const clock_;
  const std::string folder_;
  const std::string pipeline_;

  absl::Mutex disk_mu_ ABSL_ACQUIRED_BEFORE(mu_);  // one writer or reader of files at a time
  mutable absl::Mutex mu_;
  std::map<std::string, CheckpointInfo> index_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
