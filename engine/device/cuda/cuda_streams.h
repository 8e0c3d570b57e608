#pragma once

// CUDA's streams, events and memory behind the interface of engine/device/device_streams.h.

#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <mutex>
#include <optional>

#include "engine/device/device_streams.h"

namespace penstock {

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
  std::once_flag made_;
  std::optional<c10::cuda::CUDAStream> compute_, copy_in_, copy_out_;  // constant once made_
};

}  // namespace penstock
