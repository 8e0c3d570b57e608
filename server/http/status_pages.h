#pragma once

// The pages for people on the host of the daemon: what it does now, in HTML, text or JSON.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/observe/metrics_registry.h"
#include "server/http/document.h"
#include "server/http/http_page.h"

namespace penstock {

// One setting of the daemon.
struct SettingRow {
  std::string name;
  std::string value;
  std::string origin;  // "flag", "environment", "file", "default"
  std::string help;
};

// What the results of one pipeline take.
struct HandleRow {
  std::string pipeline;
  int64_t pending = 0;
  int64_t ready = 0;
  int64_t failed = 0;
  int64_t bytes = 0;
  int64_t created = 0;
};

// What the handles of one caller take, and may take.
struct OwnerRow {
  std::string owner;
  int64_t handles = 0;
  int64_t handles_limit = 0;
  int64_t bytes = 0;
  int64_t bytes_limit = 0;
};

// The ledger of memory.
struct MemoryRows {
  struct Class {
    std::string name;
    int64_t bytes = 0;
    int64_t peak_bytes = 0;
    int64_t limit_bytes = 0;  // 0: none of its own
    int64_t kept_bytes = 0;   // that no other class may take
    int64_t reservations = 0;
    int64_t refusals = 0;
  };
  struct Holder {
    std::string kind;  // a class
    std::string identity;
    std::string pipeline;
    int64_t bytes = 0;
  };
  int64_t limit_bytes = 0;
  int64_t bytes = 0;
  std::vector<Class> classes = {};
  std::vector<Holder> holders = {};  // the largest first
};

// A pipeline that is there, or is being made or deleted.
struct PipelineRow {
  std::string name;
  std::string state;  // "ready"
};

// A rank of the group that this daemon leads.
struct RankRow {
  int rank = 0;
  std::string state;  // "member"
  double since_unix_seconds = 0;
  std::string host;
  std::string address;
  std::string carrier;
  std::string devices;  // "1/cpu:0, 1/cpu:1"
  std::string problem;  // why it is missing
};

// Tensors that have gone from one rank to another.
struct LinkRow {
  int from = 0;
  int to = 0;
  std::string carrier;
  int64_t messages = 0;
  int64_t bytes = 0;
};

struct GroupRows {
  std::vector<RankRow> ranks;
  std::vector<LinkRow> links;
};

// What a rank that does not lead knows of its group.
struct FollowerFacts {
  int rank = 0;
  int world_size = 1;
  std::string leader;   // HOST:PORT
  std::string problem;  // empty: it has joined
  bool leader_drains = false;
  int64_t epoch = 0;  // of the forming that was prepared last
  int64_t generation = 0;
  std::vector<std::string> devices;
  std::vector<LinkRow> links;  // to this rank
};

struct CheckpointRow {
  std::string pipeline;
  std::string id;
  int64_t step = 0;
  double unix_seconds = 0;
  int64_t bytes = 0;
  std::string state = {};  // "complete", "damaged"
};

// Facts of the daemon that no metric tells.
struct DaemonFacts {
  std::string state;  // "ready"
  int64_t epoch = 0;
  double start_unix_seconds = 0;
  std::string api_address;
  std::string metrics_address;
  std::string admin_address;
};

// What commands print with -o json about the same things. Each returns a JSON value.
struct CommandOutputs {
  std::function<std::string()> server;                             // of status: the daemon
  std::function<std::string()> pipelines;                          // of status: a list of {pipeline, statistics}
  std::function<std::string(const std::string& name)> pipeline;    // of pipeline get; "null" without
  std::function<std::string(const std::string& name)> statistics;  // of status, of one pipeline; "null" without
  std::function<std::string()> checkpoints;                        // of checkpoint list, of all pipelines
};

// Where the pages come from. What a process does not have is null, and has no page. Closures may be called from several threads at once and must not block for long.
struct StatusSources {
  const MetricsRegistry* registry = nullptr;
  std::function<DaemonFacts()> facts;
  std::function<GroupRows()> group;         // null: it leads nobody
  std::function<FollowerFacts()> follower;  // null: it leads, or is alone
  std::function<std::vector<PipelineRow>()> pipelines;
  std::function<std::vector<HandleRow>()> handles;
  std::function<std::vector<OwnerRow>()> owners;
  std::function<MemoryRows()> memory;
  std::function<std::vector<CheckpointRow>()> checkpoints;
  std::vector<SettingRow> settings;
  HttpPages probes;  // /metrics, /healthz, /readyz: as on their own port
  CommandOutputs commands;
};

// Answers a request of the admin port.
//
// Model:     every page is a Document. HTML for browsers, plain text for curl; `?format=html|text|json` decides where
//            given. Nothing changes by GET or HEAD. Only /logz takes a POST, as change_request.h says.
// Fails:     403 for a Host that is no IP address and not localhost, so that no web site can point its own name here
//            and read on (DNS rebinding); 404 for a path or a pipeline that is not there; 405 for another method, with
//            those that are allowed; 400 for an unknown format.
HttpResponse RespondStatus(const StatusSources& sources, const HttpRequest& request);

// Whether a Host header may be answered: an IP address or localhost, with or without a port.
bool IsHostAllowed(std::string_view host);

// --- The pages.

Document IndexPage(const StatusSources& sources);                                 // /
Document StatusPage(const StatusSources& sources);                                // /statusz
void AddRanks(const StatusSources& sources, Document* page);                      // its sections on ranks
Document PipelinePage(const StatusSources& sources, const PipelineMetrics& one);  // /pipeline?name=
Document QueuePage(const StatusSources& sources);                                 // /queuez
Document HandlePage(const StatusSources& sources);                                // /handlez
Document MemoryPage(const StatusSources& sources);                                // /memory, and /memz
Document CheckpointPage(const StatusSources& sources);                            // /checkpointz
Document FlagPage(const StatusSources& sources);                                  // /flagz
Document TracePage(const StatusSources& sources);                                 // /tracez
Document LogPage(const StatusSources& sources);                                   // /logz

// POST /logz?level=LEVEL: which log lines are written from now on.
HttpResponse ChangeLogLevel(const HttpRequest& request);

// Of style.css, refresh.js, icon.svg.
std::string StyleSheet();
std::string_view RefreshScript();
std::string_view Icon();

}  // namespace penstock
