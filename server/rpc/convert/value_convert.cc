#include "server/rpc/convert/value_convert.h"

#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/tensor/codec.h"
#include "server/rpc/convert/proto_convert.h"

namespace penstock {
namespace {

constexpr int kMaxValueDepth = 16;
constexpr size_t kMaxValueTextBytes = 65'536;
constexpr size_t kMaxValueHandles = 1'024;

class ValueReader {
 public:
  explicit ValueReader(std::vector<HandleTensor>* inside, int max_depth = kMaxValueDepth,
                       size_t max_text_bytes = kMaxValueTextBytes)
      : inside_(inside), max_depth_(max_depth), max_text_bytes_(max_text_bytes) {}

  absl::StatusOr<Value> Read(const v1::Value& value, const std::string& field, int depth) {
    if (depth > max_depth_)
      return InvalidField(field, absl::StrCat("must be nested at most ", max_depth_, " deep"), "more");
    switch (value.kind_case()) {
      case v1::Value::kBoolValue:
        return Value(value.bool_value());
      case v1::Value::kIntValue:
        return Value(static_cast<int64_t>(value.int_value()));
      case v1::Value::kDoubleValue:
        return Value(value.double_value());
      case v1::Value::kStringValue:
        PENSTOCK_RETURN_IF_ERROR(CheckText(value.string_value(), field + ".string_value"));
        return Value(value.string_value());
      case v1::Value::kList: {
        PENSTOCK_ASSIGN_OR_RETURN(ValueList items, ReadItems(value.list(), field + ".list", depth));
        return Value::List(std::move(items));
      }
      case v1::Value::kTuple: {
        PENSTOCK_ASSIGN_OR_RETURN(ValueList items, ReadItems(value.tuple(), field + ".tuple", depth));
        return Value::Tuple(std::move(items));
      }
      case v1::Value::kDict:
        return ReadDict(value.dict(), field + ".dict", depth);
      case v1::Value::kTensor:
        return ReadTensor(value.tensor(), field + ".tensor", depth);
      case v1::Value::kHandle:
        return ReadHandle(value.handle(), field + ".handle", depth);
      case v1::Value::KIND_NOT_SET:
        break;
    }
    return Value();
  }

 private:
  absl::Status CheckText(const std::string& text, const std::string& field) const {
    if (text.size() <= max_text_bytes_) return absl::OkStatus();
    return InvalidField(field, absl::StrCat("must have at most ", max_text_bytes_, " bytes"),
                        absl::StrCat(text.size(), " bytes"));
  }

  // It would be split, as a tensor is.
  static absl::Status CheckInside(const std::string& field, int depth) {
    if (depth > 1) return absl::OkStatus();
    return InvalidField(field, "belongs into the input itself; a value has tensors in lists and dictionaries only",
                        "a tensor by itself");
  }

  absl::StatusOr<ValueList> ReadItems(const v1::ValueList& list, const std::string& field, int depth) {
    ValueList items;
    for (int i = 0; i < list.items_size(); ++i) {
      PENSTOCK_ASSIGN_OR_RETURN(Value item, Read(list.items(i), absl::StrCat(field, ".items[", i, "]"), depth + 1));
      items.push_back(std::move(item));
    }
    return items;
  }

  absl::StatusOr<Value> ReadDict(const v1::ValueDict& dict, const std::string& field, int depth) {
    ValueDict entries;
    std::set<std::string> keys;
    for (int i = 0; i < dict.entries_size(); ++i) {
      const v1::NamedValue& entry = dict.entries(i);
      const std::string place = absl::StrCat(field, ".entries[", i, "]");
      PENSTOCK_RETURN_IF_ERROR(CheckText(entry.name(), place + ".name"));
      if (!keys.insert(entry.name()).second) {
        return InvalidField(place + ".name", "must not repeat", Shortened(entry.name()));
      }
      PENSTOCK_ASSIGN_OR_RETURN(Value item, Read(entry.value(), place + ".value", depth + 1));
      entries.emplace_back(entry.name(), std::move(item));
    }
    return Value::Dict(std::move(entries));
  }

  absl::StatusOr<Value> ReadTensor(const v1::Tensor& tensor, const std::string& field, int depth) {
    PENSTOCK_RETURN_IF_ERROR(CheckInside(field, depth));
    WireLimits limits;
    limits.allow_empty_name = true;
    PENSTOCK_ASSIGN_OR_RETURN(at::Tensor decoded,
                              DecodeTensor(FromProto(tensor.header()), {tensor.data()}, field, limits));
    return Value(std::move(decoded));
  }

  absl::StatusOr<Value> ReadHandle(const v1::HandleTensor& handle, const std::string& field, int depth) {
    PENSTOCK_RETURN_IF_ERROR(CheckInside(field, depth));
    if (inside_->size() >= kMaxValueHandles) {
      return InvalidField(field, absl::StrCat("must be one of at most ", kMaxValueHandles, " in an input"), "more");
    }
    PENSTOCK_ASSIGN_OR_RETURN(HandleTensor named, penstock::FromProto(handle, field));
    inside_->push_back(std::move(named));
    return Value(at::Tensor());
  }

  std::vector<HandleTensor>* const inside_;
  const int max_depth_;
  const size_t max_text_bytes_;
};

// Writes the elements of tensors where they stand.
class RecordWriter {
 public:
  absl::Status Write(const Value& value, v1::Value* message) const {
    if (const bool* boolean = value.boolean()) message->set_bool_value(*boolean);
    if (const int64_t* integer = value.integer()) message->set_int_value(*integer);
    if (const double* number = value.number()) message->set_double_value(*number);
    if (const std::string* text = value.text()) message->set_string_value(*text);
    if (const at::Tensor* tensor = value.any_tensor()) return WriteTensor(*tensor, message->mutable_tensor());
    if (value.list() != nullptr) return WriteItems(*value.list(), message->mutable_list());
    if (value.tuple() != nullptr) return WriteItems(*value.tuple(), message->mutable_tuple());
    if (value.dict() == nullptr) return absl::OkStatus();
    for (const auto& [key, item] : *value.dict()) {
      v1::NamedValue* entry = message->mutable_dict()->add_entries();
      entry->set_name(key);
      PENSTOCK_RETURN_IF_ERROR(Write(item, entry->mutable_value()));
    }
    message->mutable_dict();
    return absl::OkStatus();
  }

 private:
  static absl::Status WriteTensor(const at::Tensor& tensor, v1::Tensor* message) {
    PENSTOCK_ASSIGN_OR_RETURN(const at::Tensor whole, SendableTensor(tensor));
    PENSTOCK_ASSIGN_OR_RETURN(const TensorHeader header, HeaderOf("", whole));
    *message->mutable_header() = ToProto(header);
    message->set_data(std::string(BytesOf(whole)));
    return absl::OkStatus();
  }

  absl::Status WriteItems(const ValueList& items, v1::ValueList* list) const {
    for (const Value& item : items) PENSTOCK_RETURN_IF_ERROR(Write(item, list->add_items()));
    return absl::OkStatus();
  }
};

class ValueWriter {
 public:
  explicit ValueWriter(const HeldValues& held) {
    for (size_t i = held.own_tensors; i < held.tensors.size(); ++i) {  // a result by itself is none of those inside
      names_.emplace(held.tensors[i].tensor.unsafeGetTensorImpl(), &held.tensors[i].name);
    }
  }

  void Write(const Value& value, v1::Value* message) const {
    if (const bool* boolean = value.boolean()) message->set_bool_value(*boolean);
    if (const int64_t* integer = value.integer()) message->set_int_value(*integer);
    if (const double* number = value.number()) message->set_double_value(*number);
    if (const std::string* text = value.text()) message->set_string_value(*text);
    if (const at::Tensor* tensor = value.any_tensor()) {
      const auto name = names_.find(tensor->unsafeGetTensorImpl());
      if (name != names_.end()) message->mutable_handle()->set_tensor(*name->second);
    }
    if (value.list() != nullptr) WriteItems(*value.list(), message->mutable_list());
    if (value.tuple() != nullptr) WriteItems(*value.tuple(), message->mutable_tuple());
    if (value.dict() == nullptr) return;
    v1::ValueDict* dict = message->mutable_dict();
    for (const auto& [key, item] : *value.dict()) {
      v1::NamedValue* entry = dict->add_entries();
      entry->set_name(key);
      Write(item, entry->mutable_value());
    }
  }

 private:
  void WriteItems(const ValueList& items, v1::ValueList* list) const {
    for (const Value& item : items) Write(item, list->add_items());
  }

  std::map<const void*, const std::string*> names_;
};

}  // namespace

absl::StatusOr<HandleTensor> FromProto(const v1::HandleTensor& handle, const std::string& field) {
  if (handle.put() != 0) {
    return InvalidField(field + ".put", "must be the tag of a complete put of the same StreamWork, without a handle",
                        absl::StrCat(handle.put()));
  }
  HandleTensor tensor;
  PENSTOCK_ASSIGN_OR_RETURN(tensor.handle, HandleName::Parse(handle.handle(), field + ".handle"));
  tensor.tensor = handle.tensor();
  tensor.field = field;
  return tensor;
}

absl::StatusOr<Value> FromProto(const v1::Value& value, const std::string& field, std::vector<HandleTensor>* inside) {
  return ValueReader(inside).Read(value, field, 1);
}

absl::StatusOr<Value> FromRecord(const v1::Value& value) {
  constexpr int kMaxResultDepth = 64;  // a result's, which may have become an input, is less
  std::vector<HandleTensor> none;
  return ValueReader(&none, kMaxResultDepth, std::numeric_limits<size_t>::max()).Read(value, "value", 1);
}

absl::StatusOr<v1::Value> ToRecord(const Value& value) {
  v1::Value message;
  PENSTOCK_RETURN_IF_ERROR(RecordWriter().Write(value, &message));
  return message;
}

std::string ValueText(const v1::Value& value) {
  switch (value.kind_case()) {
    case v1::Value::kBoolValue:
      return value.bool_value() ? "True" : "False";
    case v1::Value::kIntValue:
      return absl::StrCat(value.int_value());
    case v1::Value::kDoubleValue:
      return absl::StrCat(value.double_value());
    case v1::Value::kStringValue:
      return Shortened(value.string_value());
    case v1::Value::kList:
      return "list";
    case v1::Value::kTuple:
      return "tuple";
    case v1::Value::kDict:
      return "dict";
    case v1::Value::kTensor:
    case v1::Value::kHandle:
      return "Tensor";
    case v1::Value::KIND_NOT_SET:
      break;
  }
  return "None";
}

google::protobuf::RepeatedPtrField<v1::NamedValue> ToProto(const HeldValues& held, std::string_view name) {
  google::protobuf::RepeatedPtrField<v1::NamedValue> messages;
  const ValueWriter writer(held);
  for (const NamedValue& value : held.values) {
    if (!name.empty() && value.name != name) continue;
    v1::NamedValue* message = messages.Add();
    message->set_name(value.name);
    writer.Write(value.value, message->mutable_value());
  }
  return messages;
}

}  // namespace penstock
