// Feeds foreign requests to the writer of a call's record, and the record to its reader: what the edge accepts can be read
// again, nothing of this attempt is kept, and another attempt has the same digest. The first byte says whose request it is.

#include <google/protobuf/descriptor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/journal/v1/journal.pb.h"
#include "penstock/v1/state.pb.h"
#include "penstock/v1/tensor.pb.h"
#include "penstock/v1/work.pb.h"
#include "server/rpc/convert/call_record_convert.h"
#include "server/rpc/convert/payload_digest.h"
#include "server/rpc/convert/record_of.h"
#include "server/rpc/convert/state_convert.h"
#include "server/rpc/convert/work_convert.h"
#include "tests/fuzz/fuzz_checks.h"

namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using penstock::testing::Demand;
namespace v1 = penstock::v1;

void SetText(const char* name, Message& message) {
  const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name);
  if (field == nullptr || field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) return;
  if (field->is_repeated()) {
    for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
      message.GetReflection()->SetRepeatedString(&message, field, i, "another");
    }
  } else if (!message.GetReflection()->GetString(message, field).empty()) {
    message.GetReflection()->SetString(&message, field, "another");
  }
}

// Gives each handle another name.
void RenameHandles(Message& message) {
  if (message.GetDescriptor() == v1::HandleTensor::descriptor()) return SetText("handle", message);
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map()) continue;
    if (!field->is_repeated()) {
      RenameHandles(*message.GetReflection()->MutableMessage(&message, field));
      continue;
    }
    for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
      RenameHandles(*message.GetReflection()->MutableRepeatedMessage(&message, field, i));
    }
  }
}

// Another attempt at the same call, after a restart.
template <typename Request>
void TryAgain(const Request& request) {
  const std::string digest = penstock::RecordedDigest(request, penstock::PayloadDigest(request));
  Request again = request;
  again.set_request_id("another");
  if constexpr (requires { again.mutable_reply(); }) again.clear_reply();
  RenameHandles(again);
  for (const char* name : {"graph", "handles"}) SetText(name, again);
  Demand(penstock::RecordedDigest(again, penstock::PayloadDigest(again)) == digest, "a retry has another digest");
}

template <typename Request, typename Accept>
void Try(const char* method, std::string_view bytes, Accept accepts) {
  Request request;
  if (!request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  TryAgain(request);
  const std::string record = penstock::RecordOf(request);
  Request kept;
  Demand(kept.ParseFromString(record), "a record is no request");
  for (const char* name : {"inputs", "target", "weights", "gradients", "graph", "handles", "reply", "request_id"}) {
    const FieldDescriptor* field = kept.GetDescriptor()->FindFieldByName(name);
    if (field == nullptr) continue;
    const bool there = field->is_repeated() ? kept.GetReflection()->FieldSize(kept, field) > 0
                                            : kept.GetReflection()->HasField(kept, field);
    Demand(!there, "a record has what belongs to one attempt");
  }
  Demand(penstock::PayloadDigest(kept, {}) == penstock::PayloadDigest(
                                                  [&] {
                                                    Request twice;
                                                    Demand(twice.ParseFromString(penstock::RecordOf(kept)),
                                                           "a record of a record is no request");
                                                    return twice;
                                                  }(),
                                                  {}),
         "a record of a record is another one");
  if (!accepts(request)) return;
  static const penstock::WireCallRecords records(nullptr);
  penstock::journal::v1::Call row;
  row.set_request(record);
  Demand(records.ReadCall(method, row.SerializeAsString(), {}).ok(), "a call that was accepted can't be made again");
}

template <typename Request>
bool Converts(const Request& request) {
  return penstock::CallOf(request).ok();
}

template <typename Request>
bool Always(const Request&) {
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 9) {
    case 0:
      Try<v1::ForwardRequest>("Forward", bytes, Converts<v1::ForwardRequest>);
      break;
    case 1:
      Try<v1::BackwardRequest>("Backward", bytes, Converts<v1::BackwardRequest>);
      break;
    case 2:
      Try<v1::ForwardBackwardRequest>("ForwardBackward", bytes, Converts<v1::ForwardBackwardRequest>);
      break;
    case 3:
      Try<v1::OptimizerStepRequest>("OptimizerStep", bytes, Converts<v1::OptimizerStepRequest>);
      break;
    case 4:
      Try<v1::TrainStepRequest>("TrainStep", bytes, Converts<v1::TrainStepRequest>);
      break;
    case 5:
      Try<v1::SaveCheckpointRequest>("SaveCheckpoint", bytes, Always<v1::SaveCheckpointRequest>);
      break;
    case 6:
      Try<v1::RestoreCheckpointRequest>("RestoreCheckpoint", bytes, Converts<v1::RestoreCheckpointRequest>);
      break;
    case 7:
      Try<v1::DeleteCheckpointRequest>("DeleteCheckpoint", bytes, Converts<v1::DeleteCheckpointRequest>);
      break;
    default:
      Try<v1::WriteParametersRequest>("WriteParameters", bytes, Always<v1::WriteParametersRequest>);
  }
  return 0;
}
