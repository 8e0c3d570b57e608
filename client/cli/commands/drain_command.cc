// penstock drain

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "client/cli/command_table.h"
#include "client/lib/call_error.h"
#include "client/lib/deadline.h"
#include "client/lib/durations.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

// The daemon closes when no call has come for a quarter of a second: those that ask how far it is must not keep it.
constexpr absl::Duration kAskInterval = absl::Seconds(1);

struct DrainOptions {
  bool for_upgrade = false;
  bool abort = false;
  bool no_wait = false;
};

std::string PhaseWord(v1::DrainPhase phase) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::DrainPhase_Name(phase), "DRAIN_PHASE_"));
}

Document StateDocument(const v1::DrainState& state, absl::Duration left) {
  Document document{.json = MessageToJson(state)};
  document.text =
      state.has_deadline()
          ? absl::StrCat(PhaseWord(state.phase()), ": ", state.calls_left(), " calls left, ends within ",
                         std::max<int64_t>(0, absl::ToInt64Seconds(absl::Ceil(left, absl::Seconds(1)))), " s\n")
          : "serving\n";
  document.names = {state.has_deadline() ? PhaseWord(state.phase()) : "serving"};
  return document;
}

void Pause(Clock* clock) {
  absl::Mutex mutex;
  absl::MutexLock lock(&mutex);
  const bool never = false;
  clock->AwaitUntil(&mutex, absl::Condition(&never), DeadlineAfter(clock, kAskInterval));
}

// Until the daemon has ended: nobody responds, or another daemon does.
absl::Status AwaitEnd(const v1::ServerInfo& first, PipelineClient& client, Session& session) {
  std::string said;
  while (!session.cancelled()) {
    const absl::StatusOr<v1::ServerInfo> info = client.GetServerInfo();
    if (IsTransportFailure(info.status()) || (info.ok() && info->epoch() != first.epoch())) {
      session.Say("the daemon has ended");
      return absl::OkStatus();
    }
    PENSTOCK_RETURN_IF_ERROR(info.status());
    if (!info->has_drain()) {
      return Error(absl::StatusCode::kAborted, "WORK_CANCELLED", "the drain was aborted: the daemon serves on");
    }
    const std::string line =
        absl::StrCat(PhaseWord(info->drain().phase()), ": ", info->drain().calls_left(), " calls left");
    if (line != said) session.Say(line);
    said = line;
    Pause(session.clock());
  }
  return absl::CancelledError("interrupted; the drain goes on");
}

absl::Status AwaitServing(PipelineClient& client, Session& session) {
  while (!session.cancelled()) {
    PENSTOCK_ASSIGN_OR_RETURN(const v1::ServerInfo info, client.GetServerInfo());
    if (!info.has_drain() && info.state() == "ready") {
      session.Say("the daemon serves");
      return absl::OkStatus();
    }
    Pause(session.clock());
  }
  return absl::CancelledError("interrupted");
}

absl::Status Drain(const DrainOptions& options, Session& session) {
  session.set_endless();
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  PENSTOCK_ASSIGN_OR_RETURN(const v1::ServerInfo first, client->GetServerInfo());
  v1::DrainRequest request;
  request.set_for_upgrade(options.for_upgrade);
  request.set_abort(options.abort);
  PENSTOCK_ASSIGN_OR_RETURN(const v1::DrainState state, client->Drain(request));
  session.Print(StateDocument(state, FromMessage(state.deadline()) - session.clock()->WallNow()));
  if (options.no_wait) return absl::OkStatus();
  return options.abort ? AwaitServing(*client, session) : AwaitEnd(first, *client, session);
}

}  // namespace

void AddDrainCommand(CommandTable& table) {
  CLI::App* command = table.Add(table.root(), "drain", "End the daemon when its work is done, and wait for that",
                                "penstock drain\npenstock drain --for-upgrade\npenstock drain --abort");
  auto options = std::make_shared<DrainOptions>();
  CLI::Option* upgrade =
      command->add_flag("--for-upgrade", options->for_upgrade,
                        "Empty the journals before the end, so that the next start makes no call again");
  command->add_flag("--abort", options->abort, "End a drain: the daemon serves on")->excludes(upgrade);
  command->add_flag("--no-wait", options->no_wait, "Return at once");
  table.Run(command, [options](Session& session) { return Drain(*options, session); });
}

}  // namespace penstock
