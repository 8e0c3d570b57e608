#include "server/rpc/convert/message_entries.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr int kMaxDepth = 100;  // as protobuf's own limit

// The wire type of one value of a field.
uint32_t WireTypeOf(const FieldDescriptor& field) {
  switch (field.type()) {
    case FieldDescriptor::TYPE_DOUBLE:
    case FieldDescriptor::TYPE_FIXED64:
    case FieldDescriptor::TYPE_SFIXED64:
      return 1;
    case FieldDescriptor::TYPE_FLOAT:
    case FieldDescriptor::TYPE_FIXED32:
    case FieldDescriptor::TYPE_SFIXED32:
      return 5;
    case FieldDescriptor::TYPE_STRING:
    case FieldDescriptor::TYPE_BYTES:
    case FieldDescriptor::TYPE_MESSAGE:
      return 2;
    default:
      return 0;
  }
}

bool IsNumber(const FieldDescriptor& known, const WireField& field) {
  const uint32_t type = WireTypeOf(known);
  return type != 2 && (field.type == type || (field.type == 2 && known.is_repeated()));  // the latter is packed
}

class EntryCount {
 public:
  explicit EntryCount(int64_t most) : most_(most) {}

  absl::Status Add(const Pieces& message, const Descriptor* schema, int depth) {
    if (depth > kMaxDepth) {
      return InvalidField("message", absl::StrCat("must be nested at most ", kMaxDepth, " deep"), "more");
    }
    WireReader reader(message);
    while (!reader.AtEnd()) {
      PENSTOCK_ASSIGN_OR_RETURN(const WireField field, reader.Next());
      const FieldDescriptor* known = schema->FindFieldByNumber(static_cast<int>(field.number));
      if (known != nullptr && IsNumber(*known, field)) continue;
      if (++entries_ > most_) {
        return InvalidField("message", absl::StrCat("must have at most ", most_, " entries"), "more");
      }
      if (known != nullptr && known->type() == FieldDescriptor::TYPE_MESSAGE && field.type == 2) {
        PENSTOCK_RETURN_IF_ERROR(Add(field.bytes, known->message_type(), depth + 1));
      }
    }
    return absl::OkStatus();
  }

 private:
  const int64_t most_;
  int64_t entries_ = 0;
};

}  // namespace

absl::Status CheckMessageEntries(const Pieces& message, const Descriptor* schema, int64_t most) {
  return EntryCount(most).Add(message, schema, 1);
}

}  // namespace penstock
