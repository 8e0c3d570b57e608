#pragma once

// An accelerator without hardware: it computes on the CPU, at once, and writes down in which order a real one would
// have been told to do what. Its events are not ready before somebody has waited for them on the host, or looked once.
//
// With a time of its own (KeepTime) what a test gives it with Work() takes that long behind what it has been given
// before, while no time passes on the host: timed events are ready once the host's clock has come so far. The host's
// clock moves on only where the host waits for one.
//
// Work that fails (Fault) is told late, as on hardware: by whatever the device is asked or given once it has come there.

#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/device/device_streams.h"

namespace penstock::testing {

// Threads:   any method from any thread.
class StreamLog {
 public:
  void Add(std::string line) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    lines_.push_back(std::move(line));
  }
  std::vector<std::string> Take() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return std::exchange(lines_, {});
  }

 private:
  absl::Mutex mu_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mu_);
};

inline std::string NameOf(StreamKind stream) {
  return stream == StreamKind::kCompute ? "compute" : stream == StreamKind::kCopyIn ? "in" : "out";
}

// Writes lines like
//   a.out waits a.compute@1      an event recorded on a's compute stream, the first of this device
//   a.out{   a.out}              RunOn
//   a.out keeps 0x55d0           RecordStream, with the address of the storage
//   host waits a.out@2
//
// Threads:   any method from any thread.
class FakeStreams : public DeviceStreams {
 public:
  // The host's clock, and how the host waits.
  struct HostTime {
    std::function<int64_t()> now;
    std::function<void(int64_t nanos)> pass;
  };

  // `log` must outlive it and its events.
  FakeStreams(std::string name, StreamLog* log) : name_(std::move(name)), log_(log) {}

  c10::Device device() const override { return c10::Device(c10::kCPU); }

  void RunOn(StreamKind stream, const std::function<void()>& body) override {
    failure_->Check(host_);
    log_->Add(Place(stream) + "{");
    const Inside inside(this, stream);
    body();
    log_->Add(Place(stream) + "}");
  }

  EventPtr Record(StreamKind stream) override {
    failure_->Check(host_);
    return std::make_shared<Event>(absl::StrCat(Place(stream), "@", ++recorded_), log_, End(stream), host_waits_, host_,
                                   failure_);
  }

  // Null without a time of its own.
  TimedEventPtr RecordTimed(StreamKind stream) override {
    TORCH_CHECK(!broken_, "CUDA error: an illegal memory access was encountered");
    failure_->Check(host_);
    if (!host_.now) return nullptr;
    return std::make_shared<Timed>(host_, End(stream), &open_events_, host_waits_, failure_);
  }

  void Wait(StreamKind stream, const EventPtr& event) override {
    if (event == nullptr) return;
    const auto* known = dynamic_cast<const Event*>(event.get());
    log_->Add(absl::StrCat(Place(stream), " waits ", known == nullptr ? "a stranger" : known->name()));
    if (known != nullptr) Await(stream, known->at());
  }

  void RecordStream(const at::Tensor& tensor, StreamKind stream) override {
    log_->Add(absl::StrCat(Place(stream), " keeps ", AddressOf(tensor)));
  }

  void Synchronize() override {
    ++*host_waits_;
    ++synchronized_;
    log_->Add(absl::StrCat("host waits ", name_));
    int64_t end = 0;
    for (const auto stream : {StreamKind::kCompute, StreamKind::kCopyIn, StreamKind::kCopyOut}) {
      end = std::max(end, End(stream));
    }
    if (host_.now) host_.pass(std::max<int64_t>(0, std::min<int64_t>(end, failure_->at) - host_.now()));
    failure_->Check(host_);
  }

  at::Tensor NewHostTensor(const at::Tensor& like) override {
    if (full_) throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "CUDA out of memory. Tried to allocate");
    log_->Add(absl::StrCat(name_, " stages"));
    return at::empty_like(like, like.options().device(c10::kCPU));
  }

  DeviceMemory Memory() override {
    TORCH_CHECK(!broken_, "CUDA error: an illegal memory access was encountered");
    absl::MutexLock lock(&mu_);
    return memory_;
  }
  void ResetPeak() override {}

  // From now on its memory is full.
  void Fill() { full_ = true; }

  // From now on it has a time, or with an empty one none any more. Between runs only.
  void KeepTime(HostTime host) {
    absl::MutexLock lock(&mu_);
    host_ = std::move(host);
    end_.clear();
    broken_ = false;
    failure_->at = std::numeric_limits<int64_t>::max();
    failure_->looks = 0;
  }
  // Gives its compute stream work.
  void Work(int64_t nanos) {
    const int64_t begin = End(StreamKind::kCompute);
    absl::MutexLock lock(&mu_);
    end_[StreamKind::kCompute] = begin + nanos;
  }
  // What it has been given so far on the compute stream ends with a fault, and so does everything after it.
  void Fault() { failure_->at = End(StreamKind::kCompute); }
  // The next so many looks at timed events fail, though the device does its work.
  void FailLooks(int looks) { failure_->looks = looks; }
  // How often the host has waited for all that it was given.
  int64_t synchronized() const { return synchronized_; }
  // What Memory() returns from now on.
  void SetMemory(const DeviceMemory& memory) {
    absl::MutexLock lock(&mu_);
    memory_ = memory;
  }
  // From now on it can't record timed events, and does not say what its memory is.
  void Break() { broken_ = true; }
  // How often the host has waited for it, or for one of its events.
  int64_t host_waits() const { return *host_waits_; }
  // Timed events that somebody holds.
  int open_events() const { return open_events_; }

  static std::string AddressOf(const at::Tensor& tensor) {
    return absl::StrCat("0x", absl::Hex(reinterpret_cast<uintptr_t>(tensor.storage().data())));
  }

 private:
  using Counter = std::shared_ptr<std::atomic<int64_t>>;  // events may outlive their device

  // What makes its calls fail.
  struct Failure {
    void Check(const HostTime& host) const {
      TORCH_CHECK(!host.now || host.now() < at, "CUDA error: an illegal memory access was encountered");
    }
    std::atomic<int64_t> at = std::numeric_limits<int64_t>::max();
    std::atomic<int> looks = 0;
  };

  class Event : public DeviceEvent {
   public:
    Event(std::string name, StreamLog* log, int64_t at, Counter host_waits, HostTime host,
          std::shared_ptr<Failure> failure)
        : name_(std::move(name)),
          log_(log),
          at_(at),
          host_waits_(std::move(host_waits)),
          host_(std::move(host)),
          failure_(std::move(failure)) {}
    const std::string& name() const { return name_; }
    int64_t at() const { return at_; }
    bool Ready() const override {
      failure_->Check(host_);
      return host_.now ? host_.now() >= at_ : ready_.exchange(true);
    }
    void Synchronize() const override {
      ++*host_waits_;
      log_->Add("host waits " + name_);
      if (host_.now) host_.pass(std::max<int64_t>(0, std::min<int64_t>(at_, failure_->at) - host_.now()));
      failure_->Check(host_);
      ready_ = true;
    }

   private:
    const std::string name_;
    StreamLog* const log_;
    const int64_t at_;
    const Counter host_waits_;
    const HostTime host_;
    const std::shared_ptr<Failure> failure_;
    mutable std::atomic<bool> ready_ = false;
  };

  class Timed : public TimedEvent {
   public:
    Timed(HostTime host, int64_t at, std::atomic<int>* open, Counter host_waits, std::shared_ptr<Failure> failure)
        : host_(std::move(host)),
          at_(at),
          open_(open),
          host_waits_(std::move(host_waits)),
          failure_(std::move(failure)) {
      ++*open_;
    }
    ~Timed() override { --*open_; }
    bool Ready() const override {
      failure_->Check(host_);
      if (failure_->looks > 0) {
        --failure_->looks;
        throw std::bad_alloc();
      }
      return host_.now() >= at_;
    }
    void Synchronize() const override {
      ++*host_waits_;
      host_.pass(std::max<int64_t>(0, at_ - host_.now()));
      failure_->Check(host_);
    }
    int64_t NanosSince(const TimedEvent& earlier) const override {
      return at_ - dynamic_cast<const Timed&>(earlier).at_;
    }

   private:
    const HostTime host_;
    const int64_t at_;
    std::atomic<int>* const open_;
    const Counter host_waits_;
    const std::shared_ptr<Failure> failure_;
  };

  // What runs on this stream. Inside of another device's it copies from there, and LibTorch makes the receiver wait.
  class Inside {
   public:
    Inside(FakeStreams* streams, StreamKind stream) : outer_(end) {
      streams->Await(stream, outer_);
      end = streams->End(stream);
    }
    ~Inside() { end = outer_; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    static inline thread_local int64_t end = 0;
    const int64_t outer_;
  };

  void Await(StreamKind stream, int64_t at) {
    absl::MutexLock lock(&mu_);
    end_[stream] = std::max(end_[stream], at);
  }

  // When what a stream was given so far is done, on the host's clock.
  int64_t End(StreamKind stream) {
    if (!host_.now) return 0;
    absl::MutexLock lock(&mu_);
    return std::max(end_[stream], host_.now());
  }

  std::string Place(StreamKind stream) const { return absl::StrCat(name_, ".", NameOf(stream)); }

  const std::string name_;
  StreamLog* const log_;
  std::atomic<int> recorded_ = 0;
  const Counter host_waits_ = std::make_shared<std::atomic<int64_t>>(0);
  std::atomic<bool> full_ = false;
  std::atomic<bool> broken_ = false;
  std::atomic<int64_t> synchronized_ = 0;
  const std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
  HostTime host_;  // changes between runs only
  absl::Mutex mu_;
  DeviceMemory memory_ ABSL_GUARDED_BY(mu_) = {.total_bytes = 1000, .free_bytes = 900};
  std::map<StreamKind, int64_t> end_ ABSL_GUARDED_BY(mu_);
  std::atomic<int> open_events_ = 0;
};

}  // namespace penstock::testing
