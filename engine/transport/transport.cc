#include "engine/transport/transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/copy_tensors.h"

namespace penstock {

std::string ToString(const MessageKey& key) {
  return absl::StrCat(key.gradient ? "gradient" : "activation", " for stage ", key.stage, ", micro-batch ",
                      key.micro_batch);
}

absl::StatusOr<ValuesInFlight> Carry(Batch values, DeviceStreams& from, DeviceStreams& to) {
  if (&from == &to) return ValuesInFlight{std::move(values), nullptr};
  PENSTOCK_ASSIGN_OR_RETURN(TensorsInFlight copies, CopyTensors(values.AllTensors(), from, to));
  auto next = copies.tensors.begin();
  return ValuesInFlight{values.MapTensors([&next](const at::Tensor&) { return *next++; }), std::move(copies.ready)};
}

}  // namespace penstock
