#include "engine/base/thread.h"

#include <pthread.h>
#include <sched.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"

namespace penstock {

Thread::Thread(std::string name, std::function<void()> body, std::vector<int> cores)
    : thread_([this, name = name.substr(0, 15), body = std::move(body), cores = std::move(cores)] {
        pthread_setname_np(pthread_self(), name.c_str());
        if (!cores.empty()) {
          if (absl::Status status = PinThisThread(cores); !status.ok()) {
            LogWarning("thread runs unpinned", {{"thread", name}, {"error", std::string(status.message())}});
          }
        }
        status_ = Guarded("thread " + name, body);
      }) {}

Thread::~Thread() { Join(); }

void Thread::Join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

absl::Status PinThisThread(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core : cores) {
    CPU_SET(core, &set);
  }
  if (int error = pthread_setaffinity_np(pthread_self(), sizeof(set), &set); error != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("can't pin a thread to cores ", absl::StrJoin(cores, ","), ", errno ", error));
  }
  return absl::OkStatus();
}

std::vector<int> UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) {
        cores.push_back(core);
      }
    }
  }
  return cores.empty() ? std::vector<int>{0} : cores;
}

}  // namespace penstock
