#include "client/cli/session.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cli/exit_code.h"
#include "client/cli/input_bytes.h"
#include "client/cli/output_file.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {

Clock* Session::clock() const { return world_.clock != nullptr ? world_.clock : RealClock(); }

namespace {

// An option that the client finds wrong is the command's.
absl::StatusOr<std::unique_ptr<PipelineClient>> NewClient(ClientOptions options, const std::string& server_option) {
  absl::StatusOr<std::unique_ptr<PipelineClient>> client = PipelineClient::Create(std::move(options));
  if (client.ok()) return client;
  const std::string field = ValuesOf(client.status())["field"];
  return UsageError(field == "server" ? server_option : "--" + field,
                    std::string(absl::StripPrefix(client.status().message(), field + ": ")));
}

}  // namespace

ClientOptions Session::OptionsOf(absl::Duration patience) const {
  ClientOptions options;
  options.address = options_.server;
  options.caller = options_.caller;
  options.credentials = options_.credentials;
  options.traceparent = world_.traceparent;
  options.call_deadline = absl::Seconds(options_.timeout_seconds);
  if (options_.timeout_given && !endless_) options.total_deadline = options.call_deadline;
  options.work_stream = work_stream_;
  options.retry.give_up_after = patience;
  options.channel = world_.channel;
  options.clock = world_.clock;
  return options;
}

absl::StatusOr<PipelineClient*> Session::Client(absl::Duration patience) {
  absl::MutexLock lock(&mu_);
  if (client_ == nullptr) {
    PENSTOCK_ASSIGN_OR_RETURN(client_, NewClient(OptionsOf(patience), "--server"));
    if (cancelled_) client_->CancelCalls();
  }
  return client_.get();
}

absl::StatusOr<PipelineClient*> Session::ClientOf(const std::string& option, const std::string& address) {
  ClientOptions options = OptionsOf(absl::Seconds(2));
  options.address = address;
  options.channel = nullptr;
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<PipelineClient> client, NewClient(std::move(options), option));
  absl::MutexLock lock(&mu_);
  if (cancelled_) client->CancelCalls();
  others_.push_back(std::move(client));
  return others_.back().get();
}

absl::StatusOr<std::unique_ptr<PipelineClient>> Session::LastClient() const {
  return PipelineClient::Create(OptionsOf(absl::ZeroDuration()));
}

void Session::CancelCalls() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
  if (client_ != nullptr) client_->CancelCalls();
  for (const auto& other : others_) other->CancelCalls();
  world_.stop->Stop();
}

bool Session::cancelled() const {
  absl::MutexLock lock(&mu_);
  return cancelled_;
}

absl::Status Session::Confirm(bool yes, const std::string& question) {
  if (yes) return absl::OkStatus();
  if (!in_is_terminal()) return UsageError("--yes", "needed where nobody can be asked: " + question);
  err() << question << " [y/N] " << std::flush;
  std::string answer;
  std::getline(in(), answer);
  if (answer == "y" || answer == "Y" || answer == "yes") return absl::OkStatus();
  return Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "not confirmed, nothing was changed");
}

absl::StatusOr<std::string> Session::ReadFile(const std::string& path, uint64_t most, const std::string& of) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<InputBytes> input, InputBytes::Open(path, in(), stop()));
  std::string bytes;
  PENSTOCK_RETURN_IF_ERROR(input->Read(most + 1, &bytes));
  if (bytes.size() <= most) return bytes;
  return UsageError(input->name(), absl::StrCat("has more than ", most, " bytes, the limit of ", of));
}

absl::Status Session::WriteFile(const std::string& path, std::string_view bytes) {
  OutputFile file(path, out(), stop());
  PENSTOCK_RETURN_IF_ERROR(file.Append(bytes));
  return file.Commit();
}

}  // namespace penstock
