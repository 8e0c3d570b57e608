#pragma once

// The daemon: every part, put together in named steps, and taken apart in the opposite order.

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/base/clock.h"
#include "server/daemon_options.h"
#include "server/drain.h"
#include "server/drain_control.h"
#include "server/lifecycle.h"

namespace penstock {

// Checks what can be checked without starting: addresses, folders and devices.
absl::Status CheckOptions(const DaemonOptions& options);

// A running daemon.
//
// Model:     state folder, devices, metrics, handles, pipelines, services, listeners: each step uses
//            the ones before it.
// Owns:      all of them. Clock and DrainControl outlive it.
// Threads:   Drain() from one thread; everything else inside has its own.
// Lifecycle: Create() returns when it serves, after the pipelines of its journal have been made again. Drain() ends it, unless it is aborted; destruction without it ends it hard.
// Fails:     Create(): what a step fails with; nothing stays behind. CANCELLED where `interrupted` said so, or a caller
//            asked for a drain, while calls of the journal were made again.
class Daemon {
 public:
  // `interrupted`: asked while calls of the journal are made again; null: never.
  // `drains`: where callers ask for a drain.
  static absl::StatusOr<std::unique_ptr<Daemon>> Create(const DaemonOptions& options, Clock* clock,
                                                        DrainControl* drains,
                                                        const std::function<bool()>& interrupted = nullptr);
  ~Daemon();

  // Announces, refuses, finishes, saves, closes. An operator in a hurry skips to closing. After kHangs nothing but the
  // end of the process may follow; after kAborted it serves on.
  DrainEnd Drain(const std::shared_ptr<DrainSignal>& signal);

  const std::string& api_address() const;
  // Empty if there is no such listener.
  std::string metrics_address() const;
  std::string admin_address() const;
  std::string health_address() const;

  // Whether every pipeline with work gets on, as the probe `liveness` tells. From any thread.
  bool live() const;

 private:
  class Parts;
  explicit Daemon(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace penstock
