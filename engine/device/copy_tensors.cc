#include "engine/device/copy_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

// Launches one copy on the streams that are current. A host tensor goes through memory that the device can read by
// itself.
at::Tensor CopyOne(const at::Tensor& tensor, DeviceStreams& from, DeviceStreams& to) {
  if (&to == &CpuStreams()) return from.NewHostTensor(tensor).copy_(tensor, /*non_blocking=*/true);
  const at::Tensor source = &from == &CpuStreams() ? to.NewHostTensor(tensor).copy_(tensor) : tensor;
  return at::empty_like(tensor, tensor.options().device(to.device())).copy_(source, /*non_blocking=*/true);
}

}  // namespace

absl::StatusOr<TensorsInFlight> CopyTensors(std::vector<at::Tensor> tensors, DeviceStreams& from, DeviceStreams& to) {
  if (&from == &to) return TensorsInFlight{.tensors = std::move(tensors), .ready = nullptr};
  TensorsInFlight copies;
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] {
    const at::NoGradGuard no_graph;
    WaitStream(from, StreamKind::kCopyOut, from, StreamKind::kCompute);
    from.RunOn(StreamKind::kCopyOut, [&] {
      to.RunOn(StreamKind::kCopyIn, [&] {
        for (const at::Tensor& tensor : tensors) {
          copies.tensors.push_back(tensor.defined() ? CopyOne(tensor, from, to) : at::Tensor());
          if (tensor.defined()) from.RecordStream(tensor, StreamKind::kCopyOut);
        }
      });
    });
    // Between two accelerators LibTorch makes the receiving stream wait for the sending one.
    copies.ready = &to == &CpuStreams() ? from.Record(StreamKind::kCopyOut) : to.Record(StreamKind::kCopyIn);
  }));
  return copies;
}

absl::StatusOr<std::vector<at::Tensor>> AwaitTensors(TensorsInFlight in_flight, DeviceStreams& to) {
  if (in_flight.ready == nullptr) return std::move(in_flight.tensors);
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] {
    to.Wait(StreamKind::kCompute, in_flight.ready);
    for (const at::Tensor& tensor : in_flight.tensors) {
      if (tensor.defined()) to.RecordStream(tensor, StreamKind::kCompute);
    }
  }));
  return std::move(in_flight.tensors);
}

at::Tensor ToDevice(const at::Tensor& tensor, const Device& device) {
  DeviceStreams& streams = StreamsOf(device);
  if (!tensor.defined() || tensor.device() == streams.device()) return tensor;
  const at::NoGradGuard no_graph;
  at::Tensor placed;
  streams.RunOn(StreamKind::kCompute, [&] { placed = tensor.to(streams.device()); });
  return placed;
}

at::Tensor ToHost(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  const at::NoGradGuard no_graph;
  return tensor.to(c10::kCPU);
}

at::Tensor SendToDevice(const at::Tensor& tensor, DeviceStreams& streams) {
  if (!tensor.defined() || tensor.device() == streams.device()) return tensor;
  const at::NoGradGuard no_graph;
  if (!tensor.is_cpu()) return tensor.to(streams.device());
  absl::StatusOr<TensorsInFlight> copy = CopyTensors({tensor}, CpuStreams(), streams);
  if (!copy.ok()) ThrowStatus(copy.status());
  absl::StatusOr<std::vector<at::Tensor>> sent = AwaitTensors(*std::move(copy), streams);
  if (!sent.ok()) ThrowStatus(sent.status());
  return sent->front();
}

at::Tensor SendToHost(const at::Tensor& tensor, DeviceStreams& streams) {
  if (!tensor.defined() || tensor.is_cpu()) return tensor;
  const at::NoGradGuard no_graph;
  return streams.NewHostTensor(tensor).copy_(tensor, /*non_blocking=*/true);
}

at::Tensor Unpinned(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_pinned() ? tensor.clone() : tensor;
}

}  // namespace penstock
