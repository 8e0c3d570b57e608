// penstock health

#include <algorithm>
#include <memory>

#include "absl/synchronization/mutex.h"
#include "client/cli/command_table.h"
#include "client/cli/number_checks.h"
#include "client/lib/call_error.h"
#include "client/lib/deadline.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(100);

struct HealthOptions {
  std::string service = "readiness";
  double wait_seconds = 0;
};

// OK when serving; otherwise why not.
absl::Status Ask(PipelineClient& client, const std::string& service) {
  PENSTOCK_ASSIGN_OR_RETURN(const Health health, client.CheckHealth(service));
  if (health == Health::kServing) return absl::OkStatus();
  if (health == Health::kServiceUnknown) {
    return InvalidField("service", "unknown to the daemon (known: startup, liveness, readiness)", service);
  }
  return Error(absl::StatusCode::kUnavailable, "STARTING", "the daemon answers, but is not ready (" + service + ")")
      .With("service", service);
}

absl::Status Check(const HealthOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client(absl::ZeroDuration()));
  Clock* clock = session.clock();
  const int64_t end = DeadlineAfter(clock, absl::Seconds(options.wait_seconds));
  absl::Status status = Ask(*client, options.service);
  const bool never = false;
  absl::Mutex mutex;
  const auto may_change = [&] { return status.code() == absl::StatusCode::kUnavailable || IsTransportFailure(status); };
  while (may_change() && clock->NowNanos() < end && !session.cancelled()) {
    {
      absl::MutexLock lock(&mutex);
      clock->AwaitUntil(&mutex, absl::Condition(&never), std::min(end, DeadlineAfter(clock, kPollInterval)));
    }
    status = Ask(*client, options.service);
  }
  PENSTOCK_RETURN_IF_ERROR(status);
  session.Print({{{"service", options.service}, {"status", "serving"}},
                 {},
                 {options.service},
                 options.service + ": serving\n",
                 ""});
  return absl::OkStatus();
}

}  // namespace

void AddHealthCommand(CommandTable& table) {
  CLI::App* command = table.Add(table.root(), "health", "Ask whether the daemon is ready, or wait until it is",
                                "penstock health\npenstock health --wait 60\npenstock health liveness");
  auto options = std::make_shared<HealthOptions>();
  command->add_option("SERVICE", options->service, "startup, liveness, readiness, or a full service name")
      ->capture_default_str();
  command->add_option("--wait", options->wait_seconds, "Poll for so long before giving up")
      ->check(NonNegative())
      ->type_name("SECONDS")
      ->capture_default_str();
  table.Run(command, [options](Session& session) { return Check(*options, session); });
}

}  // namespace penstock
