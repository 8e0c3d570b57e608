#pragma once

// An accelerator without hardware: it computes on the CPU, at once, and writes down in which order a real one would have
// been told to do what. Its events are not ready before somebody waits for them on the host.

#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <functional>
#include <memory>
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
  // `log` must outlive it and its events.
  FakeStreams(std::string name, StreamLog* log) : name_(std::move(name)), log_(log) {}

  c10::Device device() const override { return c10::Device(c10::kCPU); }

  void RunOn(StreamKind stream, const std::function<void()>& body) override {
    log_->Add(Place(stream) + "{");
    body();
    log_->Add(Place(stream) + "}");
  }

  EventPtr Record(StreamKind stream) override {
    return std::make_shared<Event>(absl::StrCat(Place(stream), "@", ++recorded_), log_);
  }

  void Wait(StreamKind stream, const EventPtr& event) override {
    if (event == nullptr) return;
    const auto* known = dynamic_cast<const Event*>(event.get());
    log_->Add(absl::StrCat(Place(stream), " waits ", known == nullptr ? "a stranger" : known->name()));
  }

  void RecordStream(const at::Tensor& tensor, StreamKind stream) override {
    log_->Add(absl::StrCat(Place(stream), " keeps ", AddressOf(tensor)));
  }

  void Synchronize() override { log_->Add(absl::StrCat("host waits ", name_)); }

  at::Tensor NewHostTensor(const at::Tensor& like) override {
    if (full_) throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "CUDA out of memory. Tried to allocate");
    log_->Add(absl::StrCat(name_, " stages"));
    return at::empty_like(like, like.options().device(c10::kCPU));
  }

  DeviceMemory Memory() override { return {.total_bytes = 1000, .free_bytes = 900}; }
  void ResetPeak() override {}

  // From now on its memory is full.
  void Fill() { full_ = true; }

  static std::string AddressOf(const at::Tensor& tensor) {
    return absl::StrCat("0x", absl::Hex(reinterpret_cast<uintptr_t>(tensor.storage().data())));
  }

 private:
  class Event : public DeviceEvent {
   public:
    Event(std::string name, StreamLog* log) : name_(std::move(name)), log_(log) {}
    const std::string& name() const { return name_; }
    bool Ready() const override { return ready_; }
    void Synchronize() const override {
      log_->Add("host waits " + name_);
      ready_ = true;
    }

   private:
    const std::string name_;
    StreamLog* const log_;
    mutable std::atomic<bool> ready_ = false;
  };

  std::string Place(StreamKind stream) const { return absl::StrCat(name_, ".", NameOf(stream)); }

  const std::string name_;
  StreamLog* const log_;
  std::atomic<int> recorded_ = 0;
  std::atomic<bool> full_ = false;
};

}  // namespace penstock::testing
