#include "server/rpc/convert/status_to_grpc.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/utf8.h"
#include "google/rpc/error_details.pb.h"

namespace penstock {
namespace {

constexpr size_t kMaxValueBytes = 256;
constexpr size_t kShortMessageBytes = 128;
constexpr size_t kMaxIncidents = 1024;  // remembered, so that a stored error is logged once
// Paths of the daemon's own pages, which are the same everywhere: an error may send its reader there.
constexpr auto kOwnPages = std::to_array<std::string_view>({"/checkpointz", "/flagz", "/handlez", "/healthz", "/logz",
                                                            "/metrics", "/queuez", "/readyz", "/statusz", "/tracez"});

bool IsWordPart(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.' || c == '/' ||
         c == '~' || c == '+';
}

// Nothing less than the whole word: a file below is none.
bool IsOwnPage(std::string_view path) {
  while (path.ends_with('.')) path.remove_suffix(1);  // of the sentence
  return std::find(kOwnPages.begin(), kOwnPages.end(), path) != kOwnPages.end();
}

// The length of an absolute path or a pointer at the start of `text`, or 0.
size_t SecretLength(std::string_view text, bool at_word_start) {
  if (!at_word_start) return 0;
  size_t length = 0;
  if (text[0] == '/' && text.size() > 1 && IsWordPart(text[1])) {
    while (length < text.size() && IsWordPart(text[length])) ++length;
    if (IsOwnPage(text.substr(0, length))) return 0;
  } else if (text.size() > 8 && text[0] == '0' && text[1] == 'x') {
    length = 2;
    while (length < text.size() && absl::ascii_isxdigit(static_cast<unsigned char>(text[length]))) {
      ++length;
    }
    if (length < 9) length = 0;  // a short number is no pointer
  }
  return length;
}

std::string GeneralReason(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return "FIELD_INVALID";
    case absl::StatusCode::kCancelled:
      return "WORK_CANCELLED";
    case absl::StatusCode::kDeadlineExceeded:
      return "WORK_DEADLINE";
    case absl::StatusCode::kUnimplemented:
      return "FEATURE_DISABLED";
    default:
      return "";
  }
}

// Remembers which incidents the log has told.
class Incidents {
 public:
  bool IsNew(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (told_.size() >= kMaxIncidents) told_.clear();
    return told_.insert(id).second;
  }

 private:
  absl::Mutex mu_;
  std::set<uint64_t> told_ ABSL_GUARDED_BY(mu_);
};

// An id that stays the same while one stored error is answered again and again.
std::string Incident(const absl::Status& status, const std::map<std::string, std::string>& values) {
  std::string whole(status.message());
  std::string listed;
  for (const auto& [name, value] : values) {
    if (name == "trace_id" || name == "span_id" || name == "request_id") continue;  // of the call, not of the bug
    absl::StrAppend(&listed, name, "=", value, "; ");
  }
  const uint64_t number = std::hash<std::string>{}(whole + listed);
  std::string id = absl::StrFormat("%016x", number);
  static Incidents* incidents = new Incidents;
  if (incidents->IsNew(number)) {
    LogError("bug answered to a caller", {{"incident", id}, {"problem", whole}, {"values", listed}});
  }
  return id;
}

template <typename Detail>
void Attach(const Detail& detail, google::rpc::Status* answer) {
  google::protobuf::Any any;
  any.PackFrom(detail);
  if (answer->ByteSizeLong() + any.ByteSizeLong() + 8 > kMaxDetailBytes) return;
  *answer->add_details() = std::move(any);
}

std::string ValueOr(const std::map<std::string, std::string>& values, std::initializer_list<const char*> names,
                    std::string fallback) {
  for (const char* name : names) {
    if (auto found = values.find(name); found != values.end()) return found->second;
  }
  return fallback;
}

// The details beside ErrorInfo that tell a generic client what to do.
void AttachHints(absl::StatusCode code, const std::string& reason, const std::string& message,
                 const std::map<std::string, std::string>& values, google::rpc::Status* answer) {
  if (code == absl::StatusCode::kInvalidArgument || code == absl::StatusCode::kOutOfRange) {
    if (values.count("field") == 0) return;
    google::rpc::BadRequest bad;
    auto* violation = bad.add_field_violations();
    violation->set_field(values.at("field"));
    violation->set_description(message);
    Attach(bad, answer);
  } else if (code == absl::StatusCode::kResourceExhausted) {
    google::rpc::QuotaFailure quota;
    auto* violation = quota.add_violations();
    violation->set_subject(reason);
    violation->set_description(message);
    Attach(quota, answer);
  } else if (code == absl::StatusCode::kFailedPrecondition) {
    google::rpc::PreconditionFailure failure;
    auto* violation = failure.add_violations();
    violation->set_type(reason);
    violation->set_subject(ValueOr(values, {"pipeline", "handle", "checkpoint"}, ""));
    violation->set_description(message);
    Attach(failure, answer);
  } else if (code == absl::StatusCode::kNotFound || code == absl::StatusCode::kAlreadyExists) {
    google::rpc::ResourceInfo resource;
    resource.set_resource_type(absl::AsciiStrToLower(reason.substr(0, reason.find('_'))));
    resource.set_resource_name(ValueOr(values, {"pipeline", "handle", "checkpoint", "name", "value"}, ""));
    Attach(resource, answer);
  }
}

}  // namespace

std::string CleanText(std::string_view text, size_t max_bytes) {
  std::string clean;
  bool word_start = true;
  while (!text.empty()) {
    if (const size_t secret = SecretLength(text, word_start); secret > 0) {
      const std::string_view mark = text[0] == '/' ? "(path)" : "(pointer)";
      if (clean.size() + mark.size() > max_bytes) break;
      clean += mark;
      text.remove_prefix(secret);
      word_start = false;
      continue;
    }
    const size_t length = PrintableLength(text);
    if (clean.size() + std::max<size_t>(length, 1) > max_bytes) break;
    // A slash behind a bracket goes on with a template or an element: pipelines/{pipeline}/handles, inputs[0]/rows.
    word_start = length <= 1 && !IsWordPart(text[0]) && text[0] != '}' && text[0] != ']';
    if (length == 0) {
      clean += text[0] == '\n' || text[0] == '\t' ? ' ' : '?';
      text.remove_prefix(1);
    } else {
      clean.append(text.substr(0, length));
      text.remove_prefix(length);
    }
  }
  return clean;
}

std::optional<int> RetryPushbackMillis(const absl::Status& status) {
  const bool overload = status.code() == absl::StatusCode::kResourceExhausted;
  if (!overload && status.code() != absl::StatusCode::kUnavailable) return std::nullopt;
  const std::string reason = ReasonOf(status);
  // These never pass, however long one waits.
  if (reason == "MESSAGE_TOO_LARGE" || reason == "TENSOR_TOO_LARGE" || reason == "MODEL_TOO_LARGE") return -1;
  int millis = 0;
  if (absl::SimpleAtoi(ValuesOf(status)["retry_after_ms"], &millis) && millis > 0) return millis;
  if (!overload) return std::nullopt;
  return reason == "STORAGE_FULL" ? 1000 : 100;
}

google::rpc::Status ToRpcStatus(const absl::Status& status) {
  google::rpc::Status answer;
  if (status.ok()) return answer;
  absl::StatusCode code = status.code();
  std::map<std::string, std::string> values = ValuesOf(status);
  std::string reason = ReasonOf(status);
  if (reason.empty()) reason = GeneralReason(code);
  if (reason.empty() || code == absl::StatusCode::kUnknown || code == absl::StatusCode::kInternal) {
    code = absl::StatusCode::kInternal;
    reason = "BUG";
    values["incident"] = Incident(status, values);
  }
  values.erase("path");

  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("penstock.v1");
  for (auto& [name, value] : values) {
    value = CleanText(value, kMaxValueBytes);
    if (info.ByteSizeLong() + name.size() + value.size() > kMaxDetailBytes / 2) break;
    (*info.mutable_metadata())[CleanText(name, 64)] = value;
  }
  const std::string message = CleanText({status.message().data(), status.message().size()}, kMaxMessageBytes);
  answer.set_code(static_cast<int>(code));
  answer.set_message(message);
  Attach(info, &answer);
  if (const auto pushback = RetryPushbackMillis(status); pushback.has_value() && *pushback > 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(*pushback / 1000);
    retry.mutable_retry_delay()->set_nanos(*pushback % 1000 * 1'000'000);
    Attach(retry, &answer);
  }
  AttachHints(code, reason, message, values, &answer);
  return answer;
}

google::rpc::Status ShortError(const google::rpc::Status& error) {
  google::rpc::Status cut;
  cut.set_code(error.code());
  cut.set_message(CleanText(error.message(), kShortMessageBytes));
  google::rpc::ErrorInfo info;
  if (error.details_size() == 0 || !error.details(0).UnpackTo(&info)) return cut;
  google::rpc::ErrorInfo kept;
  kept.set_reason(info.reason());
  kept.set_domain(info.domain());
  const auto incident = info.metadata().find("incident");
  if (incident != info.metadata().end()) kept.mutable_metadata()->insert({"incident", incident->second});
  cut.add_details()->PackFrom(kept);
  return cut;
}

grpc::Status WithErrorValues(const grpc::Status& status,
                             const std::vector<std::pair<std::string, std::string>>& values) {
  google::rpc::Status answer;
  google::rpc::ErrorInfo info;
  if (!answer.ParseFromString(status.error_details()) || answer.details_size() == 0 ||
      !answer.details(0).UnpackTo(&info)) {
    return status;
  }
  for (const auto& [name, value] : values) info.mutable_metadata()->try_emplace(name, value);
  answer.mutable_details(0)->PackFrom(info);
  if (answer.ByteSizeLong() > kMaxDetailBytes) return status;
  return grpc::Status(status.error_code(), status.error_message(), answer.SerializeAsString());
}

std::string ReasonIn(const grpc::Status& status) {
  google::rpc::Status answer;
  google::rpc::ErrorInfo info;
  const bool told = !status.error_details().empty() && answer.ParseFromString(status.error_details()) &&
                    answer.details_size() > 0 && answer.details(0).UnpackTo(&info);
  return told ? info.reason() : "";
}

grpc::Status ToGrpcStatus(const absl::Status& status) noexcept {
  if (status.ok()) return grpc::Status::OK;
  grpc::Status told(static_cast<grpc::StatusCode>(status.code()), "");
  Guarded("an error", [&] {
    const google::rpc::Status answer = ToRpcStatus(status);
    told = grpc::Status(static_cast<grpc::StatusCode>(answer.code()), answer.message(), answer.SerializeAsString());
  }).IgnoreError();
  return told;
}

void AddRetryPushback(const absl::Status& status, grpc::CallbackServerContext* context) noexcept {
  Guarded("an error", [&] {
    const std::optional<int> pushback = RetryPushbackMillis(status);
    if (pushback.has_value()) context->AddTrailingMetadata("grpc-retry-pushback-ms", std::to_string(*pushback));
  }).IgnoreError();
}

grpc::Status ToGrpcStatus(const absl::Status& status, grpc::CallbackServerContext* context) noexcept {
  AddRetryPushback(status, context);
  return ToGrpcStatus(status);
}

}  // namespace penstock
