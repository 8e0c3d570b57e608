#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/cli/session.h"
#include "engine/base/thread.h"

namespace penstock {

// Shows on stderr how far the making of a pipeline is, while another thread waits for its answer.
//
// Model:     A bar in one rewritten line on a terminal; elsewhere a plain line for each phase, and none where the
//            output is JSON. Asks the daemon four times a second; what it doesn't answer is not shown.
// Owns:      one thread, `ps-progress`, which alone writes to stderr as long as this lives.
class CreationWatch {
 public:
  CreationWatch(Session& session, PipelineClient& client, std::string name);
  ~CreationWatch();

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  // Whether to ask again, after a while.
  bool Wait() ABSL_LOCKS_EXCLUDED(mu_);

  Session& session_;
  PipelineClient& client_;
  const std::string name_;
  absl::Mutex mu_;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Thread> thread_;  // last: it uses all of the above
};

// "creating gpt: confirming [=========>          ]  47 %, 9 s".
std::string CreationText(const std::string& name, const v1::CreateProgress& progress);

}  // namespace penstock
