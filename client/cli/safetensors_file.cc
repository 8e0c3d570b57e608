#include "client/cli/safetensors_file.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/exit_code.h"
#include "client/cli/json_fault.h"
#include "client/cli/message_json.h"
#include "engine/base/status_macros.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as the format's own reader
constexpr int kLengthBytes = 8;

struct TypeName {
  DataType type;
  const char* name;
};
constexpr TypeName kTypeNames[] = {
    {DataType::kBool, "BOOL"},  {DataType::kUint8, "U8"},   {DataType::kInt8, "I8"},    {DataType::kFp16, "F16"},
    {DataType::kBf16, "BF16"},  {DataType::kInt16, "I16"},  {DataType::kUint16, "U16"}, {DataType::kFp32, "F32"},
    {DataType::kInt32, "I32"},  {DataType::kUint32, "U32"}, {DataType::kFp64, "F64"},   {DataType::kInt64, "I64"},
    {DataType::kUint64, "U64"},
};

const char* NameOfType(DataType type) {
  for (const TypeName& entry : kTypeNames) {
    if (entry.type == type) return entry.name;
  }
  return "U8";
}

std::optional<DataType> TypeOfName(const std::string& name) {
  for (const TypeName& entry : kTypeNames) {
    if (name == entry.name) return entry.type;
  }
  return std::nullopt;
}

absl::Status Broken(const std::string& what) { return UsageError("safetensors", what); }

absl::StatusOr<SafetensorsEntry> ReadEntry(const std::string& name, const Json& json) {
  const auto integers = [](const Json& list) {
    return list.is_array() &&
           std::all_of(list.begin(), list.end(), [](const Json& n) { return n.is_number_unsigned(); });
  };
  if (!json.is_object() || !json.contains("dtype") || !json["dtype"].is_string() || !json.contains("shape") ||
      !integers(json["shape"]) || !json.contains("data_offsets") || !integers(json["data_offsets"]) ||
      json["data_offsets"].size() != 2) {
    return Broken(Shortened(name) + ": needs dtype, shape and data_offsets");
  }
  SafetensorsEntry entry;
  const std::optional<DataType> type = TypeOfName(json["dtype"].get<std::string>());
  if (!type.has_value())
    return Broken(Shortened(name) + ": unknown dtype " + Shortened(json["dtype"].get<std::string>()));
  entry.header = {name, *type, json["shape"].get<std::vector<int64_t>>(), 0};
  entry.begin = json["data_offsets"][0].get<uint64_t>();
  entry.end = json["data_offsets"][1].get<uint64_t>();
  return entry;
}

}  // namespace

std::string WriteSafetensors(std::span<const HostTensor> tensors, const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const HostTensor& tensor : tensors) {
    header[tensor.name()] = {{"dtype", NameOfType(tensor.header().type)},
                             {"shape", tensor.header().shape},
                             {"data_offsets", {offset, offset + tensor.bytes().size()}}};
    offset += tensor.bytes().size();
  }
  std::string json = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  json.append((kLengthBytes - json.size() % kLengthBytes) % kLengthBytes, ' ');
  std::string file;
  file.reserve(kLengthBytes + json.size() + offset);
  uint64_t length = json.size();
  for (int i = 0; i < kLengthBytes; ++i, length >>= 8) file += static_cast<char>(length & 0xff);
  file += json;
  for (const HostTensor& tensor : tensors) file += tensor.bytes();
  return file;
}

absl::StatusOr<uint64_t> SafetensorsHeaderBytes(std::string_view start, std::optional<uint64_t> file_bytes) {
  if (start.size() < kLengthBytes) return Broken("shorter than its header's length");
  uint64_t length = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) length = length << 8 | static_cast<uint8_t>(start[i]);
  if (length > kMaxHeaderBytes || (file_bytes.has_value() && length > *file_bytes - kLengthBytes)) {
    return Broken(absl::StrCat("a header of ", length, " bytes does not fit"));
  }
  return kLengthBytes + length;
}

absl::StatusOr<std::vector<SafetensorsEntry>> ReadSafetensorsHeader(std::string_view header,
                                                                    std::optional<uint64_t> data_bytes) {
  const Json json = Json::parse(header.substr(kLengthBytes), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Broken("the header is no JSON object");
  if (const std::string fault = JsonFault(header.substr(kLengthBytes)); !fault.empty()) {
    return Broken("the header " + fault);
  }
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") continue;
    PENSTOCK_ASSIGN_OR_RETURN(SafetensorsEntry entry, ReadEntry(name, value));
    if (entry.begin > entry.end || (data_bytes.has_value() && entry.end > *data_bytes)) {
      return Broken(Shortened(name) + ": data_offsets outside the file");
    }
    entries.push_back(std::move(entry));
  }
  std::stable_sort(entries.begin(), entries.end(),
                   [](const SafetensorsEntry& a, const SafetensorsEntry& b) { return a.begin < b.begin; });
  uint64_t next = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != next) return Broken(Shortened(entry.header.name) + ": its bytes leave a gap or overlap");
    next = entry.end;
  }
  if (data_bytes.value_or(next) != next) return Broken("bytes behind the last tensor");
  return entries;
}

absl::StatusOr<std::vector<HostTensor>> ReadSafetensors(std::string_view file) {
  PENSTOCK_ASSIGN_OR_RETURN(const uint64_t header_bytes, SafetensorsHeaderBytes(file, file.size()));
  const std::string_view data = file.substr(header_bytes);
  PENSTOCK_ASSIGN_OR_RETURN(std::vector<SafetensorsEntry> entries,
                            ReadSafetensorsHeader(file.substr(0, header_bytes), data.size()));
  std::vector<HostTensor> tensors;
  for (SafetensorsEntry& entry : entries) {
    const std::string name = entry.header.name;
    // That of a slot of an optimizer has slashes; else it is as on the wire.
    absl::StrReplaceAll({{"/", "."}}, &entry.header.name);
    absl::StatusOr<HostTensor> tensor =
        HostTensor::FromBytes(std::move(entry.header), data.substr(entry.begin, entry.end - entry.begin));
    if (!tensor.ok()) return Broken(Shortened(name) + ": " + std::string(tensor.status().message()));
    tensor->set_name(name);
    tensors.push_back(*std::move(tensor));
  }
  return tensors;
}

}  // namespace penstock
