#pragma once

// Clients of the listeners of pages: well-behaved ones, eager ones, and ones that mean ill.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/thread.h"

namespace penstock::bench {

// Something that a thread does again and again until the object is gone.
class Repeater {
 public:
  virtual ~Repeater() = default;

 protected:
  // `body` runs at once and then each `period_seconds`, or as soon after as it has ended.
  void Begin(double period_seconds, std::function<void()> body);
  // Every derived class ends it first: the body uses its members.
  void End();

 private:
  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Thread> thread_;
};

// Fetches a page at a steady rate.
class PageReader : public Repeater {
 public:
  PageReader(int port, std::string target, double period_seconds);
  ~PageReader() override { End(); }

  // Seconds of each fetch so far.
  std::vector<double> seconds() const;
  int64_t failed() const;
  // Of the last page.
  size_t bytes() const;

 private:
  const int port_;
  const std::string request_;
  mutable absl::Mutex mu_;
  std::vector<double> seconds_ ABSL_GUARDED_BY(mu_);
  int64_t failed_ ABSL_GUARDED_BY(mu_) = 0;
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

// Connections that ask for a page and take one byte of it each 100 ms, through the smallest window that the kernel
// gives. One that the server has ended begins anew.
class SlowReaders : public Repeater {
 public:
  SlowReaders(int port, std::string target, int connections);
  ~SlowReaders() override;

 private:
  const int port_;
  const std::string request_;
  std::vector<int> sockets_;  // of the thread
};

// Connections of which one half sends nothing and the other half a request line: "GET /sta". Each that the server has
// ended is opened anew within a second.
class HalfOpenFlood : public Repeater {
 public:
  HalfOpenFlood(int port, int connections);
  ~HalfOpenFlood() override;

 private:
  const int port_;
  std::vector<int> sockets_;  // of the thread
};

}  // namespace penstock::bench
