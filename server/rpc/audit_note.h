#pragma once

// What the audit log will tell of one call.

#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/clock.h"
#include "google/protobuf/message.h"
#include "server/audit/audit_record.h"
#include "server/identity/identity.h"

namespace penstock {

class AuditLog;

// Gathers it while the call runs, and adds one record at its end if the call was to change something or was refused.
//
// Model:     refused are UNAUTHENTICATED, PERMISSION_DENIED, and whatever names a pipeline that the caller may not know
//            of.
// Owns:      nothing; log and clock outlive it.
// Threads:   any method from any thread.
class AuditNote {
 public:
  // `path`: "/penstock.v1.WorkService/TrainStep".
  AuditNote(AuditLog* log, Clock* clock, std::string_view path, std::string peer);

  // The gate knows who calls, and whether the method changes something.
  void SetCaller(const Identity& caller, bool changes) ABSL_LOCKS_EXCLUDED(mu_);
  // The pipeline and the request id that a message names, by the fields that those of ours have for them.
  void SetTarget(const google::protobuf::Message& request) ABSL_LOCKS_EXCLUDED(mu_);
  // A pipeline by its identifier.
  void SetPipeline(std::string_view pipeline) ABSL_LOCKS_EXCLUDED(mu_);

  // A note of its own for a request on a stream: the same caller; the same method, or the one that is named.
  std::shared_ptr<AuditNote> OfRequest(std::string_view method = {}) ABSL_LOCKS_EXCLUDED(mu_);

  // The call has ended; only the first time counts.
  void Finish(int code, std::string_view reason) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  AuditLog* const log_;
  Clock* const clock_;
  const int64_t begin_nanos_;

  absl::Mutex mu_;
  AuditRecord record_ ABSL_GUARDED_BY(mu_);
  Identity caller_ ABSL_GUARDED_BY(mu_);
  bool changes_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

// The part of a message's pipeline that is its identifier: "gpt" of "pipelines/gpt/checkpoints/x", "" where there is none.
std::string PipelineIn(std::string_view name);

}  // namespace penstock
