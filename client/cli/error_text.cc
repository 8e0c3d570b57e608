#include "client/cli/error_text.h"

#include <array>
#include <map>
#include <utility>

#include "client/cli/connection_fault.h"
#include "client/lib/call_error.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

using Hint = std::pair<std::string_view, std::string_view>;

// What a person can do about a reason.
constexpr auto kReasonHints = std::to_array<Hint>({
    {"USAGE", "see --help of the command"},
    {"PIPELINE_NOT_FOUND", "penstock pipeline list names the pipelines there are"},
    {"PIPELINE_EXISTS", "choose another name, or penstock pipeline delete the old one"},
    {"PIPELINE_NOT_READY",
     "wait, or look at its state with penstock pipeline get; one that is unloaded: penstock pipeline load"},
    {"PIPELINE_BROKEN", "restore a checkpoint, write all parameters and the optimizer's state, or delete the pipeline"},
    {"STEP_ROLLED_BACK", "nothing has changed; take the step again, with a new --request-id"},
    {"PIPELINE_IN_USE", "wait for its work to end, or delete with --force"},
    {"NO_PLAN", "use more devices, wider limits of the search, fewer --mini-batch-rows, or leave more to the planner"},
    {"PLAN_DOES_NOT_FIT", "use more stages or devices, fewer micro-batch rows, or --checkpoint always"},
    {"SPEC_INVALID", "mend the named field; penstock pipeline plan tries a specification without creating anything"},
    {"MODEL_NOT_FOUND",
     "penstock status -o wide lists the reference models, penstock model list the programs, which --model-program "
     "names"},
    {"SKIP_INVALID", "a layer stashed or popped otherwise than it declares; mend the layer or its names"},
    {"LAYER_FAILED", "mend the layer, or what it is given; the daemon's log has all of the exception's text"},
    {"CHECKPOINT_NOT_FOUND", "penstock checkpoint list names the checkpoints there are"},
    {"CHECKPOINT_EXISTS", "choose another name"},
    {"CHECKPOINT_CORRUPT", "restore an older one: penstock checkpoint list"},
    {"CHECKPOINT_SPEC_MISSING", "describe the pipeline as it was when it was made: --model, --option, --optimizer ..."},
    {"MODEL_MISMATCH", "restore into a pipeline with the same layers"},
    {"ACCUMULATION_OPEN", "finish or discard the accumulated gradients first (restore has --force)"},
    {"ACCUMULATION_HELD",
     "wait for the holder's step, or end what it has left behind: penstock pipeline discard --force"},
    {"ACCUMULATION_LOST", "discard, then contribute all of the step anew"},
    {"GRAPH_OPEN",
     "wait for the Backward, or let the graph's owner release it: penstock handle list, penstock handle release"},
    {"HANDLE_RELEASED", "the result is gone for good; run the work again"},
    {"HANDLE_EXPIRED", "run the work again, and renew or fetch in time: penstock handle renew"},
    {"HANDLE_NOT_FOUND", "check the name, and --caller: a handle is visible to its owner only"},
    {"HANDLE_PENDING", "wait longer: penstock handle wait"},
    {"EPOCH_MISMATCH", "the daemon has restarted since; run the work again"},
    {"HANDLE_BUDGET", "release results: penstock handle list, penstock handle release"},
    {"QUEUE_FULL", "try again later"},
    {"CALLER_QUOTA", "wait for calls of yours to end"},
    {"STREAM_LIMIT", "try again when others have ended theirs"},
    {"STORAGE_FULL", "free space at the daemon, in its --state-dir or --model-root, or raise the limit that is named"},
    {"DEVICE_MEMORY", "use smaller batches, more micro-batches, or --checkpoint always"},
    {"STARTING", "wait for it: penstock health --wait 60"},
    {"PIPELINE_REFORMING", "wait until the lost rank is back: penstock status"},
    {"GROUP_INCOMPLETE", "wait until all ranks are there: penstock status"},
    {"DRAINING", "the daemon is shutting down; wait for the next one"},
    {"REQUEST_ID_REUSED", "this --request-id belongs to another request"},
    {"CREDENTIAL_MISSING", "say who you are: --tls-cert with --tls-key, or --token-file"},
    {"CREDENTIAL_INVALID", "ask the operator for a line in the daemon's identity map, or for a token that it knows"},
    {"CREDENTIAL_EXPIRED", "get a new certificate or token"},
    {"ROLE_MISSING", "ask the operator for the role, or for a pattern that names the pipeline, in the identity map"},
    {"BUG", "report it with the incident id, which the daemon's log repeats"},
});

std::string_view HintFor(std::string_view command, const absl::Status& status) {
  const std::string reason = ReasonOf(status);
  for (const auto& [name, text] : kReasonHints) {
    if (name == reason) return text;
  }
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return "mend the named value";
    case absl::StatusCode::kDeadlineExceeded:
      return "wait longer: --timeout";
    case absl::StatusCode::kResourceExhausted:
      return "try again later, with less";
    case absl::StatusCode::kCancelled:
      // A creation belongs to the daemon once it is asked for.
      if (command == "pipeline create") return "delete the pipeline if it is not wanted: the daemon goes on making it";
      return "nothing; the work was cancelled";
    default:
      return "";
  }
}

}  // namespace

std::string ErrorText(std::string_view command, const absl::Status& status, std::string_view server, bool tls) {
  const std::string reason = ReasonOf(status);
  std::map<std::string, std::string> values = ValuesOf(status);
  const std::string request_id = values["request_id"];
  values.erase("request_id");
  // The only fault is the message itself.
  if (!values.contains("violations[1]")) values.erase("violations[0]");
  std::string text = "penstock: " + std::string(command) + " failed: ";
  if (IsTransportFailure(status)) {
    const ConnectionFault fault = FaultOf(status, server, tls);
    text += fault.what + "\n  why: " + absl::StatusCodeToString(status.code()) + ": " + std::string(status.message()) +
            "\n  do:  " + std::string(fault.hint) + "\n";
  } else {
    text += std::string(status.message()) + "\n";
    if (reason != "USAGE") {
      text += "  why: " + absl::StatusCodeToString(status.code()) + (reason.empty() ? "" : " / " + reason);
      std::string separator = " (";
      for (const auto& [name, value] : values) {
        text += separator + name + "=" + value;
        separator = ", ";
      }
      text += values.empty() ? "\n" : ")\n";
    }
    if (const std::string_view hint = HintFor(command, status); !hint.empty())
      text += "  do:  " + std::string(hint) + "\n";
  }
  if (!request_id.empty()) text += "  request_id: " + request_id + " (repeat a lost call with --request-id)\n";
  return text;
}

}  // namespace penstock
