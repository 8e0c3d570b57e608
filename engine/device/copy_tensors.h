#pragma once

// Tensors from device to device. Within one device, and from CPU to CPU, they change hands without a copy.

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/status/statusor.h"
#include "engine/device/device.h"
#include "engine/device/device_streams.h"

namespace penstock {

// The tensors of one message, which may still be on their way, and the one event that all of them wait for.
struct TensorsInFlight {
  std::vector<at::Tensor> tensors;
  EventPtr ready;
};

// Starts the copies of `tensors`, the results of `from`'s compute stream, to `to`, and does not wait for them: they run
// on the copy streams beside the compute streams of both. An undefined tensor (a missing gradient) stays undefined. No
// graph goes along. Where `from` and `to` are one object the tensors themselves are handed over.
//
// Threads:   any; usually the sender's. The tensors may be released as soon as it returns.
// Fails:     as RunTorch says; RESOURCE_EXHAUSTED / DEVICE_MEMORY where `to` is full.
absl::StatusOr<TensorsInFlight> CopyTensors(std::vector<at::Tensor> tensors, DeviceStreams& from, DeviceStreams& to);

// Makes the compute stream of `to`, which they were copied to, wait once for all of them; a CPU waits itself. What the
// receiver launches afterwards may use them, and may release them.
//
// Threads:   any; usually the receiver's.
absl::StatusOr<std::vector<at::Tensor>> AwaitTensors(TensorsInFlight in_flight, DeviceStreams& to);

// The tensor on `device`, complete when it returns: the tensor itself if it is there already. For what is placed once,
// or read by the host: parameters, inputs, results. Call it under RunTorch.
at::Tensor ToDevice(const at::Tensor& tensor, const Device& device);
// The same, to the host.
at::Tensor ToHost(const at::Tensor& tensor);

// The same two without waiting, for what goes in and out of a stage while it runs; call them under RunTorch and inside of
// the compute stream. What that stream is given from now on may use the tensor on the device of `streams`; from the host
// it goes beside what the device computes. The tensor on the host is complete once the compute stream of `streams` has
// passed its present end.
at::Tensor SendToDevice(const at::Tensor& tensor, DeviceStreams& streams);
at::Tensor SendToHost(const at::Tensor& tensor, DeviceStreams& streams);
// The same elements in memory that may be kept: what devices copy to is pinned, and scarce.
at::Tensor Unpinned(const at::Tensor& tensor);

}  // namespace penstock
