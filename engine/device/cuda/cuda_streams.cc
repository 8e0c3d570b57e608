#include "engine/device/cuda/cuda_streams.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/AutogradState.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <memory>

namespace penstock {
namespace {

using c10::cuda::CUDAStream;

// Only one with the flag cudaEventDefault keeps its time.
class CudaEvent : public TimedEvent {
 public:
  CudaEvent(const CUDAStream& stream, unsigned int flags) : event_(flags) { event_.record(stream); }
  bool Ready() const override { return event_.query(); }
  void Synchronize() const override { event_.synchronize(); }
  void Block(const CUDAStream& stream) const { event_.block(stream); }
  int64_t NanosSince(const TimedEvent& earlier) const override {
    // A 32-bit float of milliseconds: exact to half a microsecond between neighbours.
    const auto milliseconds = dynamic_cast<const CudaEvent&>(earlier).event_.elapsed_time(event_);
    return static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
  }

 private:
  mutable c10::cuda::CUDAEvent event_;  // its questions are not const, though they change nothing
};

// Backward passes of this thread stay on it; otherwise LibTorch gives every GPU's part to a thread of its own.
class BackwardHere {
 public:
  BackwardHere() : before_(State().get_multithreading_enabled()) { State().set_multithreading_enabled(false); }
  ~BackwardHere() { State().set_multithreading_enabled(before_); }
  BackwardHere(const BackwardHere&) = delete;
  BackwardHere& operator=(const BackwardHere&) = delete;

 private:
  static c10::AutogradState& State() { return c10::AutogradState::get_tls_state(); }
  const bool before_;
};

}  // namespace

CUDAStream CudaStreams::Stream(StreamKind kind) {
  std::call_once(made_, [&] {
    const c10::cuda::CUDAGuard current(index_);
    // Those of LibTorch's pool are not in order with the default stream, where whoever names no stream works.
    cudaStream_t compute = nullptr;
    C10_CUDA_CHECK(cudaStreamCreateWithFlags(&compute, cudaStreamDefault));
    compute_ = c10::cuda::getStreamFromExternal(compute, index_);
    copy_in_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index_);
    copy_out_ = c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index_);
  });
  return kind == StreamKind::kCompute ? *compute_ : kind == StreamKind::kCopyIn ? *copy_in_ : *copy_out_;
}

void CudaStreams::RunOn(StreamKind stream, const std::function<void()>& body) {
  const c10::cuda::CUDAStreamGuard current(Stream(stream));  // makes the device current too
  const BackwardHere backward_here;
  body();
}

EventPtr CudaStreams::Record(StreamKind stream) {
  return std::make_shared<const CudaEvent>(Stream(stream), cudaEventDisableTiming);
}

TimedEventPtr CudaStreams::RecordTimed(StreamKind stream) {
  return std::make_shared<const CudaEvent>(Stream(stream), cudaEventDefault);
}

void CudaStreams::Wait(StreamKind stream, const EventPtr& event) {
  if (event == nullptr) return;
  if (const auto* cuda = dynamic_cast<const CudaEvent*>(event.get())) {
    cuda->Block(Stream(stream));
  } else {
    event->Synchronize();
  }
}

void CudaStreams::RecordStream(const at::Tensor& tensor, StreamKind stream) {
  if (!tensor.is_cuda()) return;  // pinned memory waits for its copies by itself
  c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(), Stream(stream));
}

void CudaStreams::Synchronize() {
  const c10::cuda::CUDAGuard current(index_);
  C10_CUDA_CHECK(cudaDeviceSynchronize());
}

at::Tensor CudaStreams::NewHostTensor(const at::Tensor& like) {
  return at::empty_like(like, like.options().device(c10::kCPU).pinned_memory(true));
}

DeviceMemory CudaStreams::Memory() {
  const c10::cuda::CUDAGuard current(index_);
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const auto statistics = c10::cuda::CUDACachingAllocator::getDeviceStats(index_);
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const c10::CachingAllocator::Stat& allocated = statistics.allocated_bytes[kAll];
  const c10::CachingAllocator::Stat& reserved = statistics.reserved_bytes[kAll];  // kept for reuse: free to us
  return {.total_bytes = static_cast<int64_t>(total),
          .free_bytes = static_cast<int64_t>(free) + reserved.current - allocated.current,
          .allocated_bytes = allocated.current,
          .reserved_bytes = reserved.current,
          .peak_allocated_bytes = allocated.peak};
}

void CudaStreams::ResetPeak() { c10::cuda::CUDACachingAllocator::resetPeakStats(index_); }

}  // namespace penstock
