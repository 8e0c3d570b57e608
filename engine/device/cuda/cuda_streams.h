#pragma once

// CUDA's streams, events and memory behind the interface of engine/device/device_streams.h.

#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/device/device_streams.h"

namespace penstock {

// Events of one GPU that nobody holds, to be recorded again: making one takes longer than recording it.
//
// Threads:   any.
class CudaEventPool {
 public:
  explicit CudaEventPool(unsigned int flags) : flags_(flags) {}
  std::unique_ptr<c10::cuda::CUDAEvent> Take();
  void Give(std::unique_ptr<c10::cuda::CUDAEvent> event);

 private:
  const unsigned int flags_;
  std::mutex mu_;
  std::vector<std::unique_ptr<c10::cuda::CUDAEvent>> free_;
};

// One GPU.
//
// Threads:   as DeviceStreams.
// Lifecycle: its streams are made at first use: that is when the driver takes memory on it. It lives as long as the
// process.
class CudaStreams : public DeviceStreams {
 public:
  explicit CudaStreams(int index) : index_(static_cast<c10::DeviceIndex>(index)) {}

  c10::Device device() const override { return c10::Device(c10::kCUDA, index_); }
  void RunOn(StreamKind stream, const std::function<void()>& body) override;
  EventPtr Record(StreamKind stream) override;
  TimedEventPtr RecordTimed(StreamKind stream) override;
  void Wait(StreamKind stream, const EventPtr& event) override;
  void RecordStream(const at::Tensor& tensor, StreamKind stream) override;
  void Synchronize() override;
  at::Tensor NewHostTensor(const at::Tensor& like) override;
  DeviceMemory Memory() override;
  void ResetPeak() override;

 private:
  c10::cuda::CUDAStream Stream(StreamKind kind);

  const c10::DeviceIndex index_;
  CudaEventPool events_{cudaEventDisableTiming};
  CudaEventPool timed_events_{cudaEventDefault};
  std::once_flag made_;
  std::optional<c10::cuda::CUDAStream> copy_in_, copy_out_;  // constant once made_
};

}  // namespace penstock
