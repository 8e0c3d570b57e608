#pragma once

// Parameters and optimizer state on disk: complete or absent, never half.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/tensor/named_tensors.h"

namespace penstock {

class CancelToken;
class CheckpointQuota;
class Clock;
class FileSystem;
struct CheckpointManifest;

// Where a checkpoint stands in the order of a pipeline's calls.
struct CheckpointPlace {
  std::string life = {};   // of the pipeline whose order it is; empty: it has no place, and the rest means nothing
  int64_t sequence = 0;    // of the call that saved it, or of the last one before
  int64_t version = 0;     // of the last call before that changed the state
  bool whole = false;      // it has the effect of all calls up to that one, and of no other: a replay can go on from it
  bool automatic = false;  // made for the journal, which deletes it

  bool operator==(const CheckpointPlace&) const = default;
};

// What is known of a checkpoint without reading its tensors.
struct CheckpointInfo {
  std::string pipeline;
  std::string id;
  int64_t step = 0;
  int64_t bytes = 0;             // of the file that holds the tensors
  std::string digest = {};       // "crc32c:" and 8 hex digits of that file
  std::string spec_digest = {};  // of the pipeline that it was saved from, as the caller gave it
  std::shared_ptr<const std::string> specification = {};  // of that pipeline, as the caller gave it; null: none
  bool rotating = false;                                  // saved to be deleted when enough newer ones are there
  CheckpointPlace place = {};
  absl::Time create_time = {};
  // Which of its files is wrong, and in what: its manifest, the size of the file that holds the tensors, or its content
  // when it was last read. Empty: nothing is known to be.
  std::string damage = {};
};

// Begins the names of those tensors of a checkpoint that only a training which goes on from it gets (LoadedCheckpoint):
// no name of a parameter, buffer or optimizer slot begins with a dot.
inline constexpr std::string_view kTrainingTensors = ".training/";

// What a checkpoint keeps beside the tensors. Nothing of it is looked at.
struct CheckpointFacts {
  int64_t step = 0;
  std::string spec_digest = {};
  std::shared_ptr<const std::string> specification = {};  // any bytes; null: none
  bool rotating = false;
  CheckpointPlace place = {};
  // Of the calls that the training goes on with; printable ASCII without quotes and backslashes. Empty: it goes on with
  // whole steps. Only with a place.
  std::string training = {};
};

struct SaveOptions {
  const CancelToken* cancel = nullptr;  // gives it up between two pieces of the file; null: nobody does
  bool beyond_quota = false;            // it is saved whatever the quota is
  bool replace = false;                 // one of this name, if there is one
};

// CHECKPOINT_NOT_FOUND, naming it.
absl::Status CheckpointNotFound(const std::string& id);
// DATA_LOSS / CHECKPOINT_CORRUPT, naming it and its damage.
absl::Status CheckpointCorrupt(const std::string& id, std::string_view damage);

struct LoadedCheckpoint {
  CheckpointInfo info;
  NamedTensors state;
  std::string training = {};           // as CheckpointFacts'
  NamedTensors training_tensors = {};  // without kTrainingTensors
};

// The checkpoints of one pipeline.
//
// Model:     A folder `checkpoints` with one folder per checkpoint: the tensors in `state.safetensors`, and
//            `manifest.json` with step, bytes, CRC32C, the specification, its digest and the names of
//            the tensors. A checkpoint is written under a name that starts with a dot, synced, and
//            renamed: what has its name is whole. One that replaces another puts its tensors beside the other's, as
//            `state-2.safetensors`, and its manifest over the other's, which is one rename: at any moment one of the
//            two is whole. An index of the manifests is kept in memory.
// Owns:      The folder; nobody else writes there. FileSystem, Clock and CheckpointQuota must outlive it.
// Threads:   Any method from any thread. Save(), Load() and Remove() touch the disk, one at a time; List()
//            and Find() never do.
// Lifecycle: Open() and Reopen() remove what a crash has left of a save or a removal.
// Fails:     ALREADY_EXISTS / CHECKPOINT_EXISTS; NOT_FOUND / CHECKPOINT_NOT_FOUND; DATA_LOSS /
//            CHECKPOINT_CORRUPT for anything that is not exactly what was written; these name the
//            checkpoint. CANCELLED / WORK_CANCELLED. RESOURCE_EXHAUSTED / STORAGE_FULL for a full disk, and for the
//            quota before anything is written; INTERNAL for other faults of the disk. A failed Save() leaves nothing
//            behind, and the other checkpoints as they were; one that was to be replaced stays, or is replaced all the
//            same where only the last sync failed, as List() tells.
class CheckpointFolder {
 public:
  // `state_dir`/pipelines/`pipeline`/checkpoints, made if missing. Without a quota any number of bytes may be saved.
  static absl::StatusOr<std::unique_ptr<CheckpointFolder>> Open(FileSystem* files, Clock* clock,
                                                                const std::string& state_dir,
                                                                const std::string& pipeline,
                                                                CheckpointQuota* quota = nullptr);
  // Makes the folder if it is missing, and reads it anew.
  absl::Status Reopen() ABSL_LOCKS_EXCLUDED(mu_, disk_mu_);

  // Fails at once if the name is taken: for a refusal before acceptance.
  absl::Status CheckFree(const std::string& id) const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether the quota has room for that many bytes. Fails: STORAGE_FULL.
  absl::Status CheckRoom(const std::string& id, int64_t bytes) const;
  // With `replace`, both must fit at once: the old one goes when the new one is there.
  absl::StatusOr<CheckpointInfo> Save(const std::string& id, const CheckpointFacts& facts, const NamedTensors& state,
                                      const SaveOptions& options = {}) ABSL_LOCKS_EXCLUDED(mu_, disk_mu_);
  // step-{n}, or step-{n}-end and step-{n}-end-{i} where that is taken.
  std::string FreeId(int64_t step) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<LoadedCheckpoint> Load(const std::string& id) ABSL_LOCKS_EXCLUDED(mu_, disk_mu_);
  absl::StatusOr<CheckpointInfo> Find(const std::string& id) const ABSL_LOCKS_EXCLUDED(mu_);
  // By identifier. A damaged one is in the list with what can be known of it; Load() refuses it.
  std::vector<CheckpointInfo> List() const ABSL_LOCKS_EXCLUDED(mu_);
  // Copies one into the folder of another state folder's pipeline, which must be there, and compares it with its
  // checksum on the way. Files of the machine only.
  absl::Status CopyTo(const std::string& id, const std::string& folder) ABSL_LOCKS_EXCLUDED(mu_, disk_mu_);
  // After a failure it is whole or gone, as List() tells.
  absl::Status Remove(const std::string& id) ABSL_LOCKS_EXCLUDED(mu_, disk_mu_);
  // Removes all checkpoints, the folder included.
  absl::Status Purge() ABSL_LOCKS_EXCLUDED(mu_, disk_mu_);

 private:
  CheckpointFolder(FileSystem* files, Clock* clock, const std::string& state_dir, std::string pipeline,
                   CheckpointQuota* quota);
  absl::Status Scan() ABSL_LOCKS_EXCLUDED(mu_) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  CheckpointInfo Describe(const std::string& id) const ABSL_LOCKS_EXCLUDED(mu_);
  CheckpointInfo InfoOf(const std::string& id, const CheckpointManifest& manifest) const ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the tensors that the manifest does not name, which a replacement has left.
  absl::Status RemoveReplaced(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  absl::StatusOr<CheckpointInfo> SaveNew(const std::string& id, CheckpointManifest& manifest, const NamedTensors& state,
                                         const CancelToken* cancel) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  absl::StatusOr<CheckpointInfo> SaveOver(const std::string& id, CheckpointManifest& manifest,
                                          const NamedTensors& state, const CancelToken* cancel)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  // Writes the tensors to the manifest's file, and fills in its bytes and checksum.
  absl::Status WriteState(const std::string& folder, CheckpointManifest& manifest, const NamedTensors& state,
                          const CancelToken* cancel) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  absl::Status WriteManifest(const std::string& folder, const CheckpointManifest& manifest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  // Fills in `damage` where it is what fails.
  absl::StatusOr<LoadedCheckpoint> Read(const std::string& id, std::string* damage)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  absl::Status RemoveOne(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);
  // Removes a folder that is no checkpoint, and gives the quota back what its files had.
  absl::Status Clear(const std::string& unfinished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_mu_);

  FileSystem* const files_;
  Clock* const clock_;
  const std::string state_dir_;
  const std::string pipeline_;
  const std::string folder_;
  CheckpointQuota* const quota_;  // null: none

  absl::Mutex disk_mu_ ABSL_ACQUIRED_BEFORE(mu_);  // one writer or reader of files at a time
  mutable absl::Mutex mu_;
  std::map<std::string, CheckpointInfo> index_ ABSL_GUARDED_BY(mu_);
  // The last one that was read: checkpoints of one pipeline share theirs.
  mutable std::shared_ptr<const std::string> specification_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
