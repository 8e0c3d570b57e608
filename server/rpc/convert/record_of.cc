#include "server/rpc/convert/record_of.h"

#include <memory>
#include <vector>

#include "google/protobuf/descriptor.h"
#include "penstock/v1/tensor.pb.h"
#include "server/rpc/convert/payload_digest.h"

namespace penstock {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// What stands beside the record in the journal, or means nothing there.
constexpr const char* kNotKept[] = {"inputs",  "target", "weights",    "gradients",        "graph",
                                    "handles", "reply",  "request_id", "after_request_id", "expected_state"};
// Fields with the names of handles, beside HandleTensor.
constexpr const char* kHandleNames[] = {"graph", "handles"};

void Clear(const char* name, Message* message) {
  const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(name);
  if (field != nullptr) message->GetReflection()->ClearField(message, field);
}

// Blanks the names of handles at any depth; returns whether there were any.
bool BlankHandles(Message* message) {
  if (message->GetDescriptor() == v1::HandleTensor::descriptor()) {
    static_cast<v1::HandleTensor*>(message)->clear_handle();
    return true;
  }
  bool found = false;
  const google::protobuf::Reflection* reflection = message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field->is_map()) continue;
    if (!field->is_repeated()) {
      found |= BlankHandles(reflection->MutableMessage(message, field));
      continue;
    }
    for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
      found |= BlankHandles(reflection->MutableRepeatedMessage(message, field, i));
    }
  }
  return found;
}

}  // namespace

std::string RecordOf(const Message& request) {
  std::unique_ptr<Message> kept(request.New());
  std::vector<const FieldDescriptor*> fields;
  request.GetReflection()->ListFields(request, &fields);
  kept->CopyFrom(request);
  for (const char* name : kNotKept) Clear(name, kept.get());
  return kept->SerializeAsString();
}

std::string RecordedDigest(const Message& request, const std::string& payload_digest) {
  std::unique_ptr<Message> blank(request.New());
  blank->CopyFrom(request);
  bool found = BlankHandles(blank.get());
  for (const char* name : kHandleNames) {
    const FieldDescriptor* field = request.GetDescriptor()->FindFieldByName(name);
    if (field == nullptr) continue;
    found = true;
    Clear(name, blank.get());
  }
  return found ? PayloadDigest(*blank, {"request_id", "reply", "expected_state"}) : payload_digest;
}

}  // namespace penstock
