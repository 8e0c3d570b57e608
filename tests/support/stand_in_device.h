#pragma once

// Accelerators without hardware, two of them: for LibTorch devices of the type PrivateUse1, called stand_in, which
// compute at once and with the CPU's own kernels, so that every result has the bits of a CPU.
//
// They are as strict as hardware. An operator refuses tensors of two devices, but for scalars of the host. Addresses of
// their memory are no addresses of the host: reading or writing through one ends the process.

#include <cstdint>

#include "tests/support/fake_streams.h"

namespace penstock::testing {

inline constexpr int kStandInDevices = 2;

// How often an operator has made the host wait for a device: to read one number, to learn how large its result is, or to
// copy between the two and not let it go on. A copy lets it go on only from or to pinned memory (NewHostTensor).
int64_t HostWaits();
// The bytes that have been copied between the host and a device, either way.
int64_t HostCopyBytes();
// The bytes that have been copied from one device to the other.
int64_t DeviceCopyBytes();

// The streams of one of them. What RunOn launches runs with the device current and backward passes stay on the thread,
// as on hardware.
class StandInStreams : public FakeStreams {
 public:
  // `log` must outlive it and its events.
  StandInStreams(int index, StreamLog* log);

  c10::Device device() const override { return device_; }
  void RunOn(StreamKind stream, const std::function<void()>& body) override;
  at::Tensor NewHostTensor(const at::Tensor& like) override;

 private:
  const c10::Device device_;
};

}  // namespace penstock::testing
