// The table of all settings. It is longer than other files, for it has one row per setting and nothing else below.

#include "server/daemon_flags.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/observe/trace_ring.h"
#include "server/option_units.h"

namespace penstock {
namespace {

using Flag = DaemonFlag;
using Values = DaemonFlag::Values;

absl::Status SetBool(const Values& values, const std::string& field, bool* to) {
  const std::string text = values.empty() ? "true" : values.back();
  if (text == "true" || text == "1" || text == "on" || text == "yes") {
    *to = true;
  } else if (text == "false" || text == "0" || text == "off" || text == "no") {
    *to = false;
  } else {
    return InvalidField(field, "must be true or false", text);
  }
  return absl::OkStatus();
}

Flag Text(std::string name, std::string fallback, std::string help, std::string DaemonOptions::*member) {
  return {std::move(name),
          "text",
          std::move(fallback),
          std::move(help),
          false,
          [member](const Values& values, const std::string&, DaemonOptions* options) {
            options->*member = values.back();
            return absl::OkStatus();
          }};
}

Flag List(std::string name, std::string help, Values DaemonOptions::*member) {
  return {std::move(name),
          "list",
          "",
          std::move(help),
          true,
          [member](const Values& values, const std::string&, DaemonOptions* options) {
            options->*member = values;
            return absl::OkStatus();
          }};
}

Flag Count(std::string name, int64_t fallback, int64_t min, int64_t max, std::string help,
           int64_t DaemonOptions::*member) {
  return {std::move(name),
          "count",
          absl::StrCat(fallback),
          std::move(help),
          false,
          [=](const Values& values, const std::string& field, DaemonOptions* options) -> absl::Status {
            int64_t number;
            if (!absl::SimpleAtoi(values.back(), &number) || number < min || number > max) {
              return InvalidField(field, absl::StrCat("must be a whole number in [", min, ", ", max, "]"),
                                  values.back());
            }
            options->*member = number;
            return absl::OkStatus();
          }};
}

Flag Bytes(std::string name, std::string fallback, int64_t min, int64_t max, std::string help,
           int64_t DaemonOptions::*member) {
  return {std::move(name),
          "bytes",
          std::move(fallback),
          std::move(help),
          false,
          [=](const Values& values, const std::string& field, DaemonOptions* options) -> absl::Status {
            PENSTOCK_ASSIGN_OR_RETURN(const int64_t bytes, ParseBytes(values.back(), field));
            if (bytes < min || bytes > max) {
              return InvalidField(field, absl::StrCat("must lie in [", min, ", ", max, "] bytes"), values.back());
            }
            options->*member = bytes;
            return absl::OkStatus();
          }};
}

Flag Time(std::string name, std::string fallback, std::string help, absl::Duration DaemonOptions::*member) {
  return {std::move(name),
          "time",
          std::move(fallback),
          std::move(help),
          false,
          [member](const Values& values, const std::string& field, DaemonOptions* options) -> absl::Status {
            PENSTOCK_ASSIGN_OR_RETURN(options->*member, ParseTime(values.back(), field));
            return absl::OkStatus();
          }};
}

Flag Ratio(std::string name, std::string fallback, std::string help, double DaemonOptions::*member) {
  return {std::move(name),
          "ratio",
          std::move(fallback),
          std::move(help),
          false,
          [member](const Values& values, const std::string& field, DaemonOptions* options) -> absl::Status {
            double number;
            if (!absl::SimpleAtod(values.back(), &number) || !(number >= 0 && number <= 1)) {
              return InvalidField(field, "must be a number in [0, 1]", values.back());
            }
            options->*member = number;
            return absl::OkStatus();
          }};
}

template <typename Enum>
Flag Choice(std::string name, std::string fallback, std::string help, std::vector<std::pair<std::string, Enum>> choices,
            Enum DaemonOptions::*member) {
  return {std::move(name),
          "choice",
          std::move(fallback),
          std::move(help),
          false,
          [=](const Values& values, const std::string& field, DaemonOptions* options) -> absl::Status {
            std::string known;
            for (const auto& [text, value] : choices) {
              absl::StrAppend(&known, known.empty() ? "" : ", ", text);
              if (text != values.back()) continue;
              options->*member = value;
              return absl::OkStatus();
            }
            return InvalidField(field, "must be one of " + known, values.back());
          }};
}

constexpr int64_t kMany = std::numeric_limits<int32_t>::max();
constexpr int64_t kHuge = int64_t{1} << 50;

}  // namespace

const std::vector<DaemonFlag>& DaemonFlags() {
  using O = DaemonOptions;
  static const auto* table = new std::vector<Flag>{
      Text("listen", "127.0.0.1:8470", "Address of the API: HOST:PORT (port 0: any free one) or unix:PATH", &O::listen),
      {"insecure", "switch", "false",
       "Allow plaintext on an address that is not loopback; everybody there may see and infer, no more", false,
       [](const Values& values, const std::string& field, O* options) {
         return SetBool(values, field, &options->insecure);
       }},
      Text("tls-cert", "",
           "Certificate of the API as PEM, with those that it is signed by; read again when it changes; unset: "
           "plaintext",
           &O::tls_cert),
      Text("tls-key", "", "Its private key as PEM, without a password", &O::tls_key),
      Text("tls-client-ca", "",
           "Certificates as PEM that sign those of clients, whose SAN stands in --identity-map; unset: none",
           &O::tls_client_ca),
      Text("identity-map", "",
           "File that says who is who, one line each: identity, role (viewer, infer, train, admin), pattern of "
           "pipelines; "
           "needed with --tls-cert",
           &O::identity_map),
      Text("token-file", "",
           "File of bearer tokens, one line each: SHA-256, identity and, if it ends, when (RFC 3339); unset: none",
           &O::token_file),
      Text("audit-log", "",
           "File to which each call that changes something, or was refused, is added as a line of JSON; unset: none",
           &O::audit_log),
      Bytes("audit-log-bytes", "64MiB", 4 << 10, kHuge,
            "Size at which it is renamed to FILE.1, that to FILE.2 and so on, and begun anew", &O::audit_log_bytes),
      Count("audit-log-files", 8, 0, 1000, "Renamed ones that are kept; older ones are deleted", &O::audit_log_files),
      Text("health-listen", "off",
           "Address of a second port that answers grpc.health.v1 and nothing else, in plaintext, for probes: HOST:PORT",
           &O::health_listen),
      Text("metrics-listen", "127.0.0.1:8473", "Address of /metrics, /healthz and /readyz; empty or off: none",
           &O::metrics_listen),
      Text("admin-listen", "127.0.0.1:8474", "Address of the status pages for people, on loopback; empty or off: none",
           &O::admin_listen),
      Text("state-dir", "",
           "Folder for checkpoints and the epoch; default: $XDG_STATE_HOME/penstock or ~/.local/state/penstock",
           &O::state_dir),
      Bytes("checkpoint-bytes", "0", 0, kHuge,
            "Bytes that all checkpoints may have together; 0: half of the disk of --state-dir; the save at the end is "
            "never "
            "refused",
            &O::checkpoint_bytes),
      Choice<bool>(
          "journal", "on",
          "on: pipelines outlive the daemon's process, and what was acknowledged is never lost nor done twice; "
          "off: they go with the process",
          {{"on", true}, {"off", false}}, &O::journal),
      Bytes("journal-bytes", "16GiB", int64_t{1} << 20, kHuge,
            "Bytes of inputs in a pipeline's journal after which it is saved by itself, which empties the journal",
            &O::journal_bytes),
      Time("journal-replay", "60s", "The same for the time that a replay of the journal would take",
           &O::journal_replay),
      Text("model-root", "", "Folder of exported programs (.pt2), which pipelines may name; unset: none",
           &O::model_root),
      {"allow-model-upload", "switch", "false", "Let clients put models into --model-root and delete them", false,
       [](const Values& values, const std::string& field, O* options) {
         return SetBool(values, field, &options->allow_model_upload);
       }},
      Bytes("max-model-bytes", "4GiB", 1 << 10, kHuge, "Largest model that is read or uploaded", &O::max_model_bytes),
      Bytes("model-root-bytes", "64GiB", 1 << 10, kHuge, "Bytes that all models may have where one is uploaded",
            &O::model_root_bytes),
      List("layer-library",
           "A shared object with layer kinds of your own, whose code then runs in the daemon; repeat it; default: none",
           &O::layer_libraries),
      List("device",
           "A device, cuda:N, cpu:N or cpu:N=CORES (cpu:1=2,3 or cpu:1=2-3); repeat it; default: all GPUs, else one "
           "per core",
           &O::devices),
      List("device-memory",
           "What may be placed on a device (cpu:0=8GiB); repeat it; default: what is free on a GPU, a CPU unlimited",
           &O::device_memory),
      Text("rank", "",
           "Which of several processes this one is, from 0 on; 0 leads and serves clients; default: what launchers set "
           "(docs/several_hosts.md), else it is alone",
           &O::rank),
      Text("world-size", "", "How many processes there are together", &O::world_size),
      Text("leader", "", "Where the others reach rank 0: HOST[:PORT], the port of --peer-listen if it has none",
           &O::leader),
      Text("peer-listen", "", "Address at which rank 0 waits for the others; default: 0.0.0.0:8475", &O::peer_listen),
      Choice<PeerTransport>(
          "peer-transport", "ucx",
          "What carries tensors between ranks: ucx, or grpc, which is encrypted where --tls-cert is set",
          {{"ucx", PeerTransport::kUcx}, {"grpc", PeerTransport::kGrpc}}, &O::peer_transport),
      Time("peer-timeout", "5s", "How long a rank may be silent until it is lost", &O::peer_timeout),
      {"deterministic", "switch", "false",
       "On GPUs, kernels that give the same bits each time, if slower; a step with an operator that has none is "
       "refused",
       false,
       [](const Values& values, const std::string& field, O* options) {
         return SetBool(values, field, &options->deterministic);
       }},
      Bytes("memory-limit", "0", 0, kHuge,
            "Bytes of the host's memory that pipelines, results, messages and copies may reserve together; 0: nine "
            "tenths "
            "of the machine's, or of the control group's, less what the process takes by itself",
            &O::memory_limit),
      Count("max-pipelines", 16, 1, 1024, "Pipelines that may exist at once", &O::max_pipelines),
      Bytes("max-message-bytes", "64MiB", 4 << 20, (int64_t{2} << 30) - 1,
            "Largest message that is received, an inference request for example", &O::max_message_bytes),
      Bytes("grpc-memory-bytes", "4GiB", 256 << 20, kHuge,
            "Memory that received messages may take in all; the last fence", &O::grpc_memory_bytes),
      Count("max-calls-per-caller", 256, 1, kMany, "Work calls of one caller that are open, or whose work goes on",
            &O::calls_per_caller),
      Bytes("handle-bytes", "0", 0, kHuge, "Bytes that results may hold; 0: a tenth of --memory-limit",
            &O::handle_bytes),
      Bytes("handle-bytes-per-caller", "0", 0, kHuge, "The same for one caller; 0: half of handle-bytes",
            &O::handle_bytes_per_caller),
      Text("handle-spill-root", "",
           "Folder for results that handle-bytes has no room for, in files without names; unset: they are refused",
           &O::handle_spill_root),
      Bytes("handle-spill-bytes", "0", 0, kHuge, "Bytes of such files; 0: ten times handle-bytes",
            &O::handle_spill_bytes),
      Bytes("device-handle-bytes", "0", 0, kHuge,
            "Bytes of results that stay on each CUDA device; beyond them they go to the host. 0: a sixteenth of its "
            "memory",
            &O::device_handle_bytes),
      Count("max-handles", 65536, 1, kMany, "Handles that may exist at once", &O::max_handles),
      Count("max-handles-per-caller", 10000, 1, kMany, "The same for one caller", &O::max_handles_per_caller),
      Time("lease", "60s", "How long a result is kept if the caller names no lease", &O::default_lease),
      Time("min-lease", "5s", "Shortest lease", &O::min_lease),
      Time("max-lease", "1h", "Longest lease", &O::max_lease),
      Count("train-queue-calls", 256, 1, kMany, "Training calls of a pipeline that may wait", &O::train_queue_calls),
      Bytes("train-queue-bytes", "1GiB", 1 << 20, kHuge, "Bytes of their inputs", &O::train_queue_bytes),
      Count("infer-queue-calls", 1024, 1, kMany, "Inference calls of a pipeline that may wait", &O::infer_queue_calls),
      Bytes("infer-queue-bytes", "256MiB", 1 << 20, kHuge, "Bytes of their inputs", &O::infer_queue_bytes),
      Count("max-open-graphs", 16, 1, kMany, "Graphs of a pipeline that wait for their Backward", &O::open_graphs),
      Time("infer-timeout", "60s", "Time for an inference that names none", &O::infer_timeout),
      Time("forward-timeout", "10min", "Time for a Forward that names none", &O::forward_timeout),
      Count("trace-ring-events", TraceRing::kDefaultEvents, 0, 1 << 24,
            "Records of 64 bytes that each of the two trace rings of a lane keeps, rounded up to a power of two, at "
            "least "
            "16; 0: no traces",
            &O::trace_ring_events),
      Text("otlp-file", "", "File to which spans of calls are added as OTLP/JSON, one batch per line; unset: none",
           &O::otlp_file),
      Text("otlp-endpoint", "",
           "Collector to which they are sent as OTLP/JSON, http://HOST[:4318][/v1/traces]; unset: none",
           &O::otlp_endpoint),
      Ratio("trace-sample-ratio", "0",
            "Share of the calls without a traceparent whose spans are written; callers that send one decide for "
            "themselves",
            &O::trace_sample_ratio),
      Time("drain-announce", "5s", "At the end: how long work is still taken while readiness says no",
           &O::drain_announce),
      Time("drain-finish", "60s", "At the end: how long accepted work may take", &O::drain_finish),
      Time("drain-checkpoint", "120s", "At the end: how long changed pipelines may take to save a checkpoint; 0s: none",
           &O::drain_checkpoint),
      Time("drain-close", "5s", "At the end: how long open calls may take", &O::drain_close),
      Choice<LogLevel>("log-level", "info", "What is logged: debug, info, warning or error",
                       {{"debug", LogLevel::kDebug},
                        {"info", LogLevel::kInfo},
                        {"warning", LogLevel::kWarning},
                        {"error", LogLevel::kError}},
                       &O::log_level),
      Choice<LogFormat>("log-format", "text", "How log lines look: text or json",
                        {{"text", LogFormat::kText}, {"json", LogFormat::kJson}}, &O::log_format),
  };
  return *table;
}

std::string DaemonFlag::environment_name() const {
  std::string variable = "PENSTOCK_" + absl::AsciiStrToUpper(name);
  std::replace(variable.begin(), variable.end(), '-', '_');
  return variable;
}

const DaemonFlag* FindDaemonFlag(const std::string& name) {
  for (const DaemonFlag& flag : DaemonFlags()) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

}  // namespace penstock
