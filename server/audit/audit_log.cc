#include "server/audit/audit_log.h"

#include <string>
#include <utility>

#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(const AuditFile::Options& options, ServerMetrics* metrics) {
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<AuditFile> file, AuditFile::Open(options));
  return std::make_unique<AuditLog>(
      [shared = std::shared_ptr<AuditFile>(std::move(file))](std::string_view line) { return shared->Append(line); },
      metrics);
}

AuditLog::AuditLog(Append append, ServerMetrics* metrics) : metrics_(metrics), append_(std::move(append)) {
  thread_ = std::make_unique<Thread>("ps-audit", [this] { Run(); });
}

AuditLog::~AuditLog() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  thread_.reset();
}

void AuditLog::Add(AuditRecord record) {
  {
    absl::MutexLock lock(&mu_);
    if (!closed_ && waiting_.size() < kMaxWaiting) {
      waiting_.push_back(std::move(record));
      return;
    }
  }
  metrics_->audit_records[AuditOutcome::kDropped].Add(1);
}

void AuditLog::Run() {
  const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return closed_ || !waiting_.empty(); };
  std::vector<AuditRecord> records;
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&due));
      if (waiting_.empty()) return;
      records.swap(waiting_);
    }
    for (const AuditRecord& record : records) {
      Guarded("the audit log", [&] { Write(record); }).IgnoreError();
    }
    records.clear();
  }
}

void AuditLog::Write(const AuditRecord& record) {
  const absl::Status written = append_(AuditLine(record));
  metrics_->audit_records[written.ok() ? AuditOutcome::kWritten : AuditOutcome::kFailed].Add(1);
  if (std::exchange(failing_, !written.ok()) == !written.ok()) return;
  if (written.ok()) {
    LogInfo("the audit log can be written again");
  } else {
    LogError("the audit log can't be written", {{"why", std::string(written.message())}});
  }
}

}  // namespace penstock
