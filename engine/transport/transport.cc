#include "engine/transport/transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/device/copy_tensors.h"

namespace penstock {
namespace {

const char* NameOf(MessageKind kind) {
  switch (kind) {
    case MessageKind::kActivation:
      return "activation";
    case MessageKind::kGradient:
      return "gradient";
    case MessageKind::kInput:
      return "input";
    case MessageKind::kTarget:
      return "target";
    case MessageKind::kOutputGradient:
      return "gradient of the output";
    case MessageKind::kOutput:
      return "output";
    case MessageKind::kInputGradient:
      return "gradient of the input";
  }
  return "message";
}

}  // namespace

std::string ToString(const MessageKey& key) {
  return absl::StrCat(NameOf(key.kind), IsToLeader(key.kind) ? " of stage " : " for stage ", key.stage,
                      ", micro-batch ", key.micro_batch);
}

absl::StatusOr<ValuesInFlight> Carry(Batch values, DeviceStreams& from, DeviceStreams& to) {
  if (&from == &to) return ValuesInFlight{std::move(values), nullptr};
  PENSTOCK_ASSIGN_OR_RETURN(TensorsInFlight copies, CopyTensors(values.AllTensors(), from, to));
  auto next = copies.tensors.begin();
  return ValuesInFlight{values.MapTensors([&next](const at::Tensor&) { return *next++; }), std::move(copies.ready)};
}

}  // namespace penstock
