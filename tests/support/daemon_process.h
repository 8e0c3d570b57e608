#pragma once

// A real penstockd for tests and benchmarks: its own folder, a Unix socket, stopped with the object.

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/lib/pipeline_client.h"

namespace penstock::testing {

// A running daemon.
//
// Owns:      the process and a temporary folder with its state and log. The destructor sends SIGTERM, waits, and
//            removes the folder.
// Fails:     Start: what the daemon's log ends with, if it does not become ready within 60 s.
class DaemonProcess {
 public:
  // `binary` is the path of penstockd; `flags` come after those that Start gives.
  static absl::StatusOr<std::unique_ptr<DaemonProcess>> Start(const std::string& binary,
                                                              const std::vector<std::string>& flags = {});
  ~DaemonProcess();

  const std::string& address() const { return address_; }
  PipelineClient& client() { return *client_; }
  // Seconds from the start of the process until it was ready.
  double start_seconds() const { return start_seconds_; }
  // SIGTERM, then its exit status; -1 if a signal ended it.
  int Stop();

 private:
  DaemonProcess() = default;
  std::string LogTail() const;

  std::string folder_;
  std::string address_;
  pid_t process_ = -1;
  double start_seconds_ = 0;
  std::unique_ptr<PipelineClient> client_;
};

}  // namespace penstock::testing
