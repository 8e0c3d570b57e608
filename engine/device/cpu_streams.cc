#include <ATen/ops/empty_like.h>
#include <unistd.h>

#include <algorithm>

#include "engine/device/device.h"
#include "engine/device/device_streams.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

// A CPU's work is done when its call returns, so there is nothing to put in order.
class CpuDeviceStreams : public DeviceStreams {
 public:
  c10::Device device() const override { return c10::Device(c10::kCPU); }
  void RunOn(StreamKind, const std::function<void()>& body) override { body(); }
  EventPtr Record(StreamKind) override { return nullptr; }
  TimedEventPtr RecordTimed(StreamKind) override { return nullptr; }
  void Wait(StreamKind, const EventPtr& event) override {
    if (event != nullptr) event->Synchronize();
  }
  void RecordStream(const at::Tensor&, StreamKind) override {}
  void Synchronize() override {}
  at::Tensor NewHostTensor(const at::Tensor& like) override {
    return at::empty_like(like, like.options().device(c10::kCPU));
  }
  DeviceMemory Memory() override {
    const int64_t total = MachineMemoryBytes();
    const int64_t free = int64_t{sysconf(_SC_AVPHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
    return {.total_bytes = total, .free_bytes = std::min(free, total)};
  }
  void ResetPeak() override {}
};

}  // namespace

DeviceStreams& CpuStreams() {
  static auto* streams = new CpuDeviceStreams;  // outlives every thread
  return *streams;
}

void DeviceStreams::CheckAlive() {
  if (!RunTorch([this] { Synchronize(); }).ok()) lost_ = true;
}

void WaitStream(DeviceStreams& source, StreamKind source_stream, DeviceStreams& target, StreamKind target_stream) {
  source.Wait(source_stream, target.Record(target_stream));
}

}  // namespace penstock
