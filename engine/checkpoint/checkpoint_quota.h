#pragma once

// How many bytes the checkpoints of one state folder may have.

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace penstock {

class FileSystem;

// A limit of the bytes of all checkpoints together, those of deleted pipelines included.
//
// Model:     bytes by pipeline, as the folders say at the start, and as saves and removals change them. Only the files
//            that hold tensors count. What the pipelines of one owner hold may be at most a quarter while those of
//            another hold some. Who owns a pipeline is known once it is made, or made again from its journal; what else
//            lies there is nobody's.
// Threads:   Any method from any thread.
class CheckpointQuota {
 public:
  explicit CheckpointQuota(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // Sets what a pipeline holds, as its folder was read.
  void Set(const std::string& pipeline, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Who made a pipeline, whose share its checkpoints count against from now on.
  void SetOwner(const std::string& pipeline, std::string owner) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether Take() would find room now.
  absl::Status CheckRoom(const std::string& pipeline, int64_t bytes) const ABSL_LOCKS_EXCLUDED(mu_);
  // Takes bytes for a checkpoint; `beyond` takes them where they don't fit, too.
  //
  // Fails:     RESOURCE_EXHAUSTED / STORAGE_FULL with "limit" and "limit_value", naming the pipelines that hold most;
  //            CALLER_QUOTA beyond the share of the pipeline's owner.
  absl::Status Take(const std::string& pipeline, int64_t bytes, bool beyond) ABSL_LOCKS_EXCLUDED(mu_);
  void Return(const std::string& pipeline, int64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Status Room(const std::string& pipeline, int64_t bytes) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  absl::Status Share(const std::string& owner, int64_t bytes) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  const int64_t limit_bytes_;

  mutable absl::Mutex mu_;
  std::map<std::string, int64_t> held_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> owners_ ABSL_GUARDED_BY(mu_);  // by pipeline
};

}  // namespace penstock
