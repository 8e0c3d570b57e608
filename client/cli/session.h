#pragma once

// What a command has at hand: global options, streams, the client.

#include <functional>
#include <istream>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cli/output.h"
#include "client/cli/stop_signal.h"
#include "client/cli/terminal.h"
#include "client/lib/pipeline_client.h"

namespace penstock {

class Clock;

// The value of a setting, and where it comes from: "--server", "PENSTOCK_SERVER", "FILE:LINE" or "default".
struct Setting {
  std::string name;
  std::string value;
  std::string origin;
};

// Options that every command takes.
struct GlobalOptions {
  std::string server = "127.0.0.1:8470";
  std::string caller;
  CredentialPaths credentials;
  std::string request_id;  // repeats a lost call
  OutputFormat output = OutputFormat::kTable;
  bool no_color = false;
  bool grpc_exit_codes = false;
  double timeout_seconds = 60;
  bool timeout_given = false;     // by a flag, a variable or a file
  std::vector<Setting> settings;  // those of the above that files may give, for `config show`
};

// The world of one run of the command line.
struct CommandWorld {
  std::istream* in = nullptr;
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  StopSignal* stop = nullptr;  // of an interrupt: ends whoever waits for a file or for `in`
  bool in_is_terminal = false;
  bool out_is_terminal = false;
  bool err_is_terminal = false;
  bool out_has_colours = false;            // a terminal, and neither NO_COLOR nor TERM=dumb is set
  std::vector<std::string> setting_files;  // the one that wins first
  std::string traceparent;                 // of who runs the command; empty: none

  std::function<std::unique_ptr<Terminal>()> open_terminal;  // null, or returns null: there is none

  // Usually only tests set these.
  std::shared_ptr<grpc::Channel> channel;  // instead of connecting to --server
  Clock* clock = nullptr;                  // null: the machine's
};

// One command's surroundings.
//
// Owns:      the clients, each made at its first use.
// Threads:   the command's own, but CancelCalls(), which may come from any.
class Session {
 public:
  Session(const GlobalOptions& options, const CommandWorld& world) : options_(options), world_(world) {}

  const GlobalOptions& options() const { return options_; }
  std::istream& in() { return *world_.in; }
  std::ostream& out() { return *world_.out; }
  std::ostream& err() { return *world_.err; }
  const StopSignal& stop() const { return *world_.stop; }
  bool in_is_terminal() const { return world_.in_is_terminal; }
  bool out_is_terminal() const { return world_.out_is_terminal; }
  bool err_is_terminal() const { return world_.err_is_terminal; }
  bool out_has_colours() const { return world_.out_has_colours && !options_.no_color; }
  Clock* clock() const;
  // The terminal, for keys and its width; null where there is none.
  std::unique_ptr<Terminal> OpenTerminal() { return world_.open_terminal ? world_.open_terminal() : nullptr; }

  // The client; `patience` is how long it tries to reach a daemon that does not answer, set by the first use.
  absl::StatusOr<PipelineClient*> Client(absl::Duration patience = absl::Seconds(2)) ABSL_LOCKS_EXCLUDED(mu_);

  // The same of another server, which `option` names, with the same caller and credentials.
  absl::StatusOr<PipelineClient*> ClientOf(const std::string& option, const std::string& address)
      ABSL_LOCKS_EXCLUDED(mu_);

  // The command goes on as long as it is let: --timeout bounds each of its calls, not all of them together. Before
  // Client().
  void set_endless() { endless_ = true; }
  // Calls of work share one stream. Before Client().
  void set_work_stream() { work_stream_ = true; }

  // A client for the last duties after an interrupt, which ended all calls of the other one.
  absl::StatusOr<std::unique_ptr<PipelineClient>> LastClient() const;

  void CancelCalls() ABSL_LOCKS_EXCLUDED(mu_);
  bool cancelled() const ABSL_LOCKS_EXCLUDED(mu_);

  void Print(const Document& document) { penstock::Print(document, options_.output, out()); }

  // A line for people on stderr: what changed, the next useful command.
  void Say(const std::string& line) { err() << line << "\n" << std::flush; }

  // Asks on a terminal; elsewhere --yes is demanded. OK: go on. WORK_CANCELLED: not confirmed, or interrupted.
  absl::Status Confirm(bool yes, const std::string& question);

  // The whole of a file; "-" is stdin. USAGE that names it where it has more bytes than this, which `of` gives a name;
  // WORK_CANCELLED if an interrupt came before its end.
  absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t most, const std::string& of);
  // As a whole, or not at all; "-" is stdout.
  absl::Status WriteFile(const std::string& path, std::string_view bytes);

  // Some names of a batch failed: sets the exit code.
  void set_partial() { partial_ = true; }
  bool partial() const { return partial_; }

  // A measurement did not settle: sets the exit code.
  void set_unstable() { unstable_ = true; }
  bool unstable() const { return unstable_; }

 private:
  ClientOptions OptionsOf(absl::Duration patience) const;

  const GlobalOptions options_;
  const CommandWorld world_;
  bool endless_ = false;
  bool work_stream_ = false;
  bool partial_ = false;
  bool unstable_ = false;

  mutable absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<PipelineClient> client_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<PipelineClient>> others_ ABSL_GUARDED_BY(mu_);
};

}  // namespace penstock
