#include "server/device_descriptions.h"

#include <optional>

#include "absl/status/status.h"
#include "engine/device/device_streams.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

std::optional<AllocatorBytes> AllocatorOf(DeviceStreams& streams) {
  if (streams.lost()) return std::nullopt;
  DeviceMemory memory;
  const absl::Status read = RunTorch([&] { memory = streams.Memory(); });
  if (!read.ok()) streams.CheckAlive();                               // so that it is told once
  if (!read.ok() || memory.allocated_bytes < 0) return std::nullopt;  // no number is better than a wrong one
  return AllocatorBytes{.allocated = memory.allocated_bytes, .cached = memory.reserved_bytes - memory.allocated_bytes};
}

}  // namespace

std::vector<DeviceDescription> DescribeDevices(const std::vector<Device>& devices, Rank self) {
  std::vector<DeviceDescription> described;
  for (const Device& device : devices) {
    DeviceDescription& one = described.emplace_back();
    one.name = NameOnRank(self, device.name);
    one.memory_limit_bytes = device.memory_limit_bytes > 0 ? device.memory_limit_bytes : MachineMemoryBytes();
    if (device.kind == DeviceKind::kCpu) continue;
    one.allocator = [&streams = StreamsOf(device)] { return AllocatorOf(streams); };
  }
  return described;
}

}  // namespace penstock
