#pragma once

// Everything that an operator may set, and how flags, the environment and a file set it.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/base/log.h"
#include "server/peer/rank_settings.h"
#include "server/ranks/group_carriers.h"

namespace penstock {

// The settings of a daemon. The table in daemon_flags.cc holds defaults and meanings.
struct DaemonOptions {
  std::string listen;
  bool insecure = false;
  std::string tls_cert;       // empty: plaintext, and nobody is asked who he is
  std::string tls_key;        // with tls_cert
  std::string tls_client_ca;  // empty: no client certificates
  std::string identity_map;   // with tls_cert
  std::string token_file;     // empty: no tokens
  std::string audit_log;      // empty: none
  int64_t audit_log_bytes = 0;
  int64_t audit_log_files = 0;
  std::string health_listen;   // empty: off
  std::string metrics_listen;  // empty: off
  std::string admin_listen;    // empty: off
  std::string state_dir;
  int64_t checkpoint_bytes = 0;  // 0: half of the disk
  bool journal = true;           // pipelines and the calls on them outlive the process
  int64_t journal_bytes = 0;     // of inputs in the journal of one pipeline, before an automatic checkpoint
  absl::Duration journal_replay = absl::ZeroDuration();  // the same: of the time that a replay takes
  std::string model_root;                                // empty: no models but the built-in ones
  bool allow_model_upload = false;
  int64_t max_model_bytes = 0;
  int64_t model_root_bytes = 0;
  std::vector<std::string> layer_libraries;
  std::vector<std::string> devices;
  std::vector<std::string> device_memory;
  std::string rank;  // this and the next three as they were given; `ranks` is what follows
  std::string world_size;
  std::string leader;
  std::string peer_listen;
  PeerTransport peer_transport = PeerTransport::kUcx;
  absl::Duration peer_timeout;
  RankSettings ranks;  // from flags, or from what has started the process
  bool deterministic = false;
  int64_t memory_limit = 0;  // 0: nine tenths of the machine's memory
  int64_t max_pipelines = 0;
  int64_t max_message_bytes = 0;
  int64_t grpc_memory_bytes = 0;
  int64_t calls_per_caller = 0;
  int64_t handle_bytes = 0;             // 0: a tenth of memory_limit
  int64_t handle_bytes_per_caller = 0;  // 0: half of handle_bytes
  std::string handle_spill_root;        // empty: results that do not fit are refused
  int64_t handle_spill_bytes = 0;       // 0: ten times handle_bytes
  int64_t device_handle_bytes = 0;      // 0: a sixteenth of each device's memory
  int64_t max_handles = 0;
  int64_t max_handles_per_caller = 0;
  absl::Duration default_lease;
  absl::Duration min_lease;
  absl::Duration max_lease;
  int64_t train_queue_calls = 0;
  int64_t train_queue_bytes = 0;
  int64_t infer_queue_calls = 0;
  int64_t infer_queue_bytes = 0;
  int64_t open_graphs = 0;
  absl::Duration infer_timeout;
  absl::Duration forward_timeout;
  int64_t trace_ring_events = 0;
  std::string otlp_file;      // empty: none
  std::string otlp_endpoint;  // empty: none
  double trace_sample_ratio = 0;
  absl::Duration drain_announce;
  absl::Duration drain_finish;
  absl::Duration drain_checkpoint;  // 0: nothing is saved
  absl::Duration drain_close;
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;

  // Every setting as it was given, in the order of --help.
  struct Setting {
    std::string name;
    std::string value;
    std::string origin;  // "flag", "environment", "file" or "default"
    std::string help;
  };
  std::vector<Setting> settings;
};

// What the command line asks for.
struct CommandLine {
  enum class Action { kRun, kCheckConfig, kPrint };
  Action action = Action::kRun;
  std::string text;  // kPrint: help, version or a dump
  DaemonOptions options;
  std::map<std::string, std::string> origins;  // flag name to "flag", "environment", "file" or "default"
};

// Reads flags, the environment and the file that --config or PENSTOCK_CONFIG names. For each setting
// the first of flag > PENSTOCK_* > file > default that gives it counts, a list as a whole. `metrics_dump`
// is what --dump=metrics prints.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID naming the flag and the value, for unknown flags and
//            keys too. Unknown PENSTOCK_* variables are no error: Kubernetes sets such ones for a
//            service that is called penstock.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                             const std::map<std::string, std::string>& environment,
                                             const std::string& metrics_dump);

// Every flag as JSON: [{name, environment, type, default, repeated, help}].
std::string FlagTableJson();

}  // namespace penstock
