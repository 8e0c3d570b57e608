#pragma once

// The order of work on a device: streams, events, copies. One interface; a CPU does everything at once and in order, so
// that its implementation has nothing to do (cpu_streams.cc). CUDA's stands in a module of its own
// (engine/device/cuda).

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace penstock {

struct Device;

// A device's streams. kCompute is in order with the device's default stream, but is not that stream: work that any thread
// gives the device without naming a stream is in order with the stages', and the stages wait for nobody else's. Copies have
// one stream per direction, so that they overlap with it.
enum class StreamKind { kCompute, kCopyIn, kCopyOut };

// A place in a stream's order of work.
//
// Threads:   any method from any thread.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Whether everything before it is done.
  virtual bool Ready() const = 0;
  // Blocks the calling thread until it is.
  virtual void Synchronize() const = 0;
};

// Null where there is nothing to wait for: a CPU has done its work before it can record it.
using EventPtr = std::shared_ptr<const DeviceEvent>;

// A place that also keeps the time at which the device passed it.
//
// Units:     nanoseconds of the device's clock, which has no zero in common with the host's.
class TimedEvent : public DeviceEvent {
 public:
  // Between `earlier`, an event of the same device, and this one. Both must be Ready().
  virtual int64_t NanosSince(const TimedEvent& earlier) const = 0;
};
using TimedEventPtr = std::shared_ptr<const TimedEvent>;

// Units: bytes. -1: not counted (CPUs have no allocator of ours).
struct DeviceMemory {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;             // for everybody on the device
  int64_t allocated_bytes = -1;       // by tensors of this process
  int64_t reserved_bytes = -1;        // by this process: those, and what its allocator keeps for reuse
  int64_t peak_allocated_bytes = -1;  // since ResetPeak()
};

// Puts work in order on one device.
//
// Model:     a compute stream and a copy stream per direction, made once. Work on one stream runs in order; streams
//            wait for each other by events.
// Threads:   any method from any thread. RunOn() concerns the calling thread only.
// Lifecycle: lives as long as the process.
// Fails:     throws LibTorch's errors: call it under RunTorch.
// Example:   the stream `kCopyOut` of `a` waits for what `a` computes:
//            a.Wait(StreamKind::kCopyOut, a.Record(StreamKind::kCompute));
class DeviceStreams {
 public:
  virtual ~DeviceStreams() = default;

  virtual c10::Device device() const = 0;

  // Runs `body` with this device current and what it launches on `stream`. Backward passes inside stay on this thread.
  virtual void RunOn(StreamKind stream, const std::function<void()>& body) = 0;

  // Marks the present end of a stream.
  virtual EventPtr Record(StreamKind stream) = 0;
  // The same with its time. Null on a CPU: the host's clock tells when it gets there.
  virtual TimedEventPtr RecordTimed(StreamKind stream) = 0;
  // What is put on `stream` from now on begins after `event`, whichever device recorded it. A CPU waits itself.
  virtual void Wait(StreamKind stream, const EventPtr& event) = 0;

  // Keeps the whole storage of a tensor of this device from reuse until what `stream` has been given by the time of its
  // release is done. Needed where a tensor is used on another stream than it was allocated on.
  virtual void RecordStream(const at::Tensor& tensor, StreamKind stream) = 0;

  // Blocks the calling thread until every stream is done.
  virtual void Synchronize() = 0;

  // An uninitialized tensor on the host, with the type, sizes and strides of `like`, that this device copies to and
  // from without waiting (pinned memory, for CUDA).
  virtual at::Tensor NewHostTensor(const at::Tensor& like) = 0;

  virtual DeviceMemory Memory() = 0;
  virtual void ResetPeak() = 0;

  // Asks the device, after work on it has failed, whether it does anything at all: a GPU whose context has ended
  // fails every call with the same error until the process ends. Throws nothing.
  void CheckAlive();
  // Whether it was ever found to do nothing any more.
  bool lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> lost_ = false;
};

// The streams of a device. All CPUs share one object. A device of kind kCuda must be one that OpenAccelerators() found.
DeviceStreams& StreamsOf(const Device& device);
DeviceStreams& CpuStreams();
// How LibTorch names the device; it has one CPU only.
c10::Device TorchDevice(const Device& device);

// `source` goes on after what `target` has been given so far: between accelerators by an event, on a CPU by blocking; a
// CPU as the target has nothing outstanding.
void WaitStream(DeviceStreams& source, StreamKind source_stream, DeviceStreams& target, StreamKind target_stream);

}  // namespace penstock
