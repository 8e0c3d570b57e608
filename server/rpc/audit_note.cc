#include "server/rpc/audit_note.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/audit/audit_log.h"

namespace penstock {
namespace {

// Fields that say what a call is about, the one that counts first: which resource, and which pipeline.
constexpr std::array<const char*, 9> kTargetFields = {"name",   "source",      "checkpoint", "model_id",   "names",
                                                      "parent", "pipeline_id", "pipeline",   "destination"};
constexpr std::array<const char*, 6> kPipelineFields = {"pipeline", "destination", "name",
                                                        "parent",   "checkpoint",  "names"};
constexpr std::string_view kCollection = "pipelines/";

// Of a list the first; empty where the message has no such field.
std::string TextOf(const google::protobuf::Message& message, const char* field) {
  const google::protobuf::FieldDescriptor* found = message.GetDescriptor()->FindFieldByName(field);
  const bool text = found != nullptr && found->type() == google::protobuf::FieldDescriptor::TYPE_STRING;
  if (!text) return "";
  if (!found->is_repeated()) return message.GetReflection()->GetString(message, found);
  if (message.GetReflection()->FieldSize(message, found) == 0) return "";
  return message.GetReflection()->GetRepeatedString(message, found, 0);
}

}  // namespace

std::string PipelineIn(std::string_view name) {
  if (!name.starts_with(kCollection)) return "";
  name.remove_prefix(kCollection.size());
  return std::string(name.substr(0, name.find('/')));
}

AuditNote::AuditNote(AuditLog* log, Clock* clock, std::string_view path, std::string peer)
    : log_(log), clock_(clock), begin_nanos_(clock->NowNanos()) {
  record_.time = clock->WallNow();
  record_.method = path.substr(path.starts_with('/') ? 1 : 0);
  record_.peer = std::move(peer);
}

void AuditNote::SetCaller(const Identity& caller, bool changes) {
  absl::MutexLock lock(&mu_);
  caller_ = caller;
  changes_ = changes;
  record_.identity = caller.name;
  record_.role = NameOf(caller.role);
}

void AuditNote::SetTarget(const google::protobuf::Message& request) {
  std::string request_id = TextOf(request, "request_id");
  std::string target;
  for (size_t i = 0; target.empty() && i < kTargetFields.size(); ++i) target = TextOf(request, kTargetFields[i]);
  std::string pipeline = TextOf(request, "pipeline_id");
  for (size_t i = 0; pipeline.empty() && i < kPipelineFields.size(); ++i) {
    pipeline = PipelineIn(TextOf(request, kPipelineFields[i]));
  }
  absl::MutexLock lock(&mu_);
  record_.target = std::move(target);
  record_.request_id = std::move(request_id);
  record_.pipeline = std::move(pipeline);
}

void AuditNote::SetPipeline(std::string_view pipeline) {
  absl::MutexLock lock(&mu_);
  record_.pipeline = pipeline;
}

std::shared_ptr<AuditNote> AuditNote::OfRequest(std::string_view method) {
  absl::MutexLock lock(&mu_);
  auto note = std::make_shared<AuditNote>(log_, clock_, method.empty() ? record_.method : method, record_.peer);
  note->SetCaller(caller_, changes_);
  return note;
}

void AuditNote::Finish(int code, std::string_view reason) {
  AuditRecord record;
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(finished_, true)) return;
    const auto status = static_cast<absl::StatusCode>(code);
    const bool unseen = !record_.identity.empty() && !record_.pipeline.empty() && record_.pipeline != "-" &&
                        !caller_.Sees(record_.pipeline);
    const bool refused =
        status == absl::StatusCode::kUnauthenticated || status == absl::StatusCode::kPermissionDenied || unseen;
    if (!changes_ && !refused) return;
    record_.code = absl::StatusCodeToString(status);
    record_.reason = reason;
    record = std::move(record_);
  }
  record.duration = absl::Nanoseconds(clock_->NowNanos() - begin_nanos_);
  log_->Add(std::move(record));
}

}  // namespace penstock
