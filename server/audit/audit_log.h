#pragma once

// Who did what, with which result: written beside the calls.

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/observe/metrics.h"
#include "server/audit/audit_file.h"
#include "server/audit/audit_record.h"

namespace penstock {

class Thread;

// Takes records and writes them on a thread of its own.
//
// Model:     A queue of kMaxWaiting records. One that finds it full is dropped and counted; one that can't be written is
//            counted, too, and the log says so once until one can be written again. No call waits for either.
// Owns:      the file and the thread `ps-audit`. The metrics outlive it.
// Threads:   Add() from any thread.
// Lifecycle: the destructor writes what waits.
// Fails:     Open(): as AuditFile::Open().
class AuditLog {
 public:
  static constexpr size_t kMaxWaiting = 16384;
  using Append = std::function<absl::Status(std::string_view line)>;

  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const AuditFile::Options& options, ServerMetrics* metrics);
  // `append` writes a line; it is called on the thread. Usually only tests use this.
  AuditLog(Append append, ServerMetrics* metrics);
  ~AuditLog();

  void Add(AuditRecord record) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void Write(const AuditRecord& record);

  ServerMetrics* const metrics_;
  const Append append_;   // the thread's
  bool failing_ = false;  // the thread's: the log has said so

  absl::Mutex mu_;
  std::vector<AuditRecord> waiting_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Thread> thread_;  // last: it uses all of the above
};

}  // namespace penstock
