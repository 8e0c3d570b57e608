#include "engine/model/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/tensor/codec.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr char kMetadataKey[] = "__metadata__";

// The format's spelling of the element types, which are those of the wire.
struct TypeName {
  std::string_view name;
  DataType type;
};
constexpr std::array<TypeName, 13> kTypeNames = {{{"BOOL", DataType::kBool},
                                                  {"U8", DataType::kUint8},
                                                  {"I8", DataType::kInt8},
                                                  {"F16", DataType::kFp16},
                                                  {"BF16", DataType::kBf16},
                                                  {"I16", DataType::kInt16},
                                                  {"U16", DataType::kUint16},
                                                  {"F32", DataType::kFp32},
                                                  {"I32", DataType::kInt32},
                                                  {"U32", DataType::kUint32},
                                                  {"F64", DataType::kFp64},
                                                  {"I64", DataType::kInt64},
                                                  {"U64", DataType::kUint64}}};

absl::Status Invalid(std::string_view field, std::string_view problem, std::string_view value) {
  const std::string shown = Shortened(value);
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
               absl::StrCat("safetensors ", absl::string_view(field.data(), field.size()), ": ",
                            absl::string_view(problem.data(), problem.size()), ", got ", shown))
      .With("field", field)
      .With("value", shown);
}

// One tensor as the header tells it.
struct HeaderEntry {
  std::string name;
  std::optional<std::string> type = {};
  std::optional<std::vector<uint64_t>> shape = {};
  std::optional<std::vector<uint64_t>> offsets = {};

  std::string Field(std::string_view key = "") const {
    std::string field = absl::StrCat("tensors[", Shortened(name), "]");
    if (!key.empty()) field.append(".").append(key);
    return field;
  }
};

// Takes the header's JSON event by event, so that depth, repeated keys and sizes are refused before they cost memory.
//
// Model:     The only legal form is {name: {"dtype": string, "shape": [numbers], "data_offsets": [numbers]}} with
//            {"__metadata__": {string: string}} among them; `place_` says where in it the parser stands.
class HeaderParser : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderParser(const SafetensorsLimits& limits) : limits_(limits) {}

  absl::Status status;
  std::map<std::string, std::string> metadata;
  std::vector<HeaderEntry> entries;
  bool complete = false;

  bool null() override { return Refuse("null"); }
  bool boolean(bool) override { return Refuse("true or false"); }
  bool number_integer(number_integer_t value) override { return Refuse(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { return Refuse(text); }
  bool binary(binary_t&) override { return Refuse("binary"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (static_cast<int>(entries.back().shape->size()) == limits_.rank) {
        return Fail(entries.back().Field("shape"), absl::StrCat("has more than ", limits_.rank, " dimensions"), "more");
      }
      entries.back().shape->push_back(value);
      return true;
    }
    if (place_ == Place::kOffsets && entries.back().offsets->size() < 2) {
      entries.back().offsets->push_back(value);
      return true;
    }
    return Refuse(std::to_string(value));
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      metadata[key_] = value;
      return true;
    }
    if (place_ == Place::kTensor && key_ == "dtype") {
      entries.back().type = value;
      return true;
    }
    return Refuse(value);
  }

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        place_ = key_ == kMetadataKey ? Place::kMetadata : Place::kTensor;
        return true;
      default:
        return Refuse("an object");
    }
  }

  bool key(string_t& value) override {
    std::set<std::string>& seen = place_ == Place::kTop ? top_keys_ : inner_keys_;
    if (!seen.insert(value).second) return Fail(Path(), "repeats a key", value);
    key_ = value;
    if (place_ == Place::kTop) {
      inner_keys_.clear();
      if (value == kMetadataKey) return true;
      if (value.empty() || static_cast<int>(value.size()) > limits_.name_bytes) {
        return Fail("header", absl::StrCat("a name must have 1 to ", limits_.name_bytes, " bytes"), value);
      }
      if (static_cast<int64_t>(entries.size()) == limits_.tensors) {
        return Fail("header", absl::StrCat("holds more than ", limits_.tensors, " tensors"), value);
      }
      entries.push_back({.name = value});
    } else if (place_ == Place::kTensor && value != "dtype" && value != "shape" && value != "data_offsets") {
      return Fail(Path(), "has an unknown key", value);
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      const HeaderEntry& entry = entries.back();
      if (!entry.type || !entry.shape || !entry.offsets) {
        return Fail(entry.Field(), "must have dtype, shape and data_offsets",
                    !entry.type ? "no dtype" : (!entry.shape ? "no shape" : "no data_offsets"));
      }
    }
    complete = place_ == Place::kTop;
    place_ = complete ? Place::kEnd : Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::kTensor && key_ == "shape") {
      entries.back().shape.emplace();
      place_ = Place::kShape;
      return true;
    }
    if (place_ == Place::kTensor && key_ == "data_offsets") {
      entries.back().offsets.emplace();
      place_ = Place::kOffsets;
      return true;
    }
    return Refuse("an array");
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && entries.back().offsets->size() != 2) return Refuse("fewer than two offsets");
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string& token, const nlohmann::json::exception&) override {
    return Fail("header", absl::StrCat("is no valid JSON at byte ", position), token);
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  std::string Path() const {
    if (place_ == Place::kMetadata) return kMetadataKey;
    const bool inside = place_ == Place::kTensor || place_ == Place::kShape || place_ == Place::kOffsets;
    return inside ? entries.back().Field() : "header";
  }

  bool Refuse(std::string_view value) {
    if (place_ == Place::kTensor || place_ == Place::kShape || place_ == Place::kOffsets) {
      return Fail(entries.back().Field(key_), "has a value of the wrong kind", value);
    }
    return Fail(place_ == Place::kStart ? "header" : absl::StrCat("header[", Shortened(key_), "]"),
                "has a value of the wrong kind", value);
  }

  bool Fail(std::string_view field, std::string_view problem, std::string_view value) {
    if (status.ok()) status = Invalid(field, problem, value);
    return false;  // stops the parser
  }

  const SafetensorsLimits limits_;
  Place place_ = Place::kStart;
  std::string key_;
  std::set<std::string> top_keys_;
  std::set<std::string> inner_keys_;
};

// What one entry says, checked by itself: the header that the wire would have for it, and where its elements begin.
struct PlacedTensor {
  TensorHeader header;
  uint64_t begin = 0;
  uint64_t end = 0;
};

absl::StatusOr<PlacedTensor> CheckEntry(const HeaderEntry& entry) {
  PlacedTensor placed;
  placed.header.name = entry.name;
  const auto type = std::find_if(kTypeNames.begin(), kTypeNames.end(),
                                 [&](const TypeName& candidate) { return candidate.name == *entry.type; });
  if (type == kTypeNames.end()) return Invalid(entry.Field("dtype"), "is not a known element type", *entry.type);
  placed.header.type = type->type;
  for (const uint64_t dimension : *entry.shape) {
    if (dimension > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Invalid(entry.Field("shape"), "has a dimension that is too large", std::to_string(dimension));
    }
    placed.header.shape.push_back(static_cast<int64_t>(dimension));
  }
  const absl::StatusOr<int64_t> bytes = PayloadBytes(placed.header.type, placed.header.shape, entry.Field());
  if (!bytes.ok()) {
    return Invalid(entry.Field("shape"), "has more elements than memory can hold",
                   absl::StrCat(placed.header.shape.size(), " dimensions"));
  }
  placed.begin = entry.offsets->at(0);
  placed.end = entry.offsets->at(1);
  if (placed.end < placed.begin || placed.end - placed.begin != static_cast<uint64_t>(*bytes)) {
    return Invalid(entry.Field("data_offsets"), absl::StrCat("must span the ", *bytes, " bytes of its type and shape"),
                   absl::StrCat(placed.begin, "-", placed.end));
  }
  placed.header.byte_size = *bytes;
  return placed;
}

uint64_t ReadLength(std::string_view bytes) {
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return length;
}

}  // namespace

absl::StatusOr<Safetensors> ReadSafetensors(std::string_view bytes, const SafetensorsLimits& limits) {
  if (bytes.size() < kLengthBytes) {
    return Invalid("file", "must have at least 8 bytes", std::to_string(bytes.size()));
  }
  const uint64_t length = ReadLength(bytes);
  if (length > static_cast<uint64_t>(limits.header_bytes) || length > bytes.size() - kLengthBytes) {
    return Invalid("header length", "goes beyond the file or the limit", std::to_string(length));
  }
  const std::string_view header = bytes.substr(kLengthBytes, length);
  const std::string_view data = bytes.substr(kLengthBytes + length);
  HeaderParser parser(limits);
  const bool parsed = nlohmann::json::sax_parse(header.begin(), header.end(), &parser);
  PENSTOCK_RETURN_IF_ERROR(parser.status);
  if (!parsed || !parser.complete) return Invalid("header", "is not complete", std::to_string(length));

  std::vector<PlacedTensor> placed;
  for (const HeaderEntry& entry : parser.entries) {
    PENSTOCK_ASSIGN_OR_RETURN(PlacedTensor tensor, CheckEntry(entry));
    placed.push_back(std::move(tensor));
  }
  std::stable_sort(placed.begin(), placed.end(), [](const PlacedTensor& a, const PlacedTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t end = 0;
  for (const PlacedTensor& tensor : placed) {
    if (tensor.begin != end) {
      return Invalid(absl::StrCat("tensors[", Shortened(tensor.header.name), "].data_offsets"),
                     tensor.begin < end ? "overlaps another tensor" : "leaves a gap",
                     absl::StrCat(tensor.begin, "-", tensor.end));
    }
    end = tensor.end;
  }
  if (end != data.size()) {
    return Invalid("file", absl::StrCat("must hold ", end, " bytes of elements"), std::to_string(data.size()));
  }

  Safetensors file{.metadata = std::move(parser.metadata)};
  for (PlacedTensor& tensor : placed) {
    PENSTOCK_ASSIGN_OR_RETURN(at::Tensor elements, AllocateTensor(tensor.header));
    if (tensor.header.byte_size > 0) {
      std::memcpy(MutableBytesOf(elements), data.data() + tensor.begin, static_cast<size_t>(tensor.header.byte_size));
    }
    if (!CheckElements(elements, "tensor").ok()) {
      return Invalid(absl::StrCat("tensors[", Shortened(tensor.header.name), "]"), "has a BOOL that is not 0 or 1",
                     "another byte");
    }
    file.tensors.push_back({std::move(tensor.header.name), std::move(elements)});
  }
  return file;
}

absl::Status WriteSafetensors(const NamedTensors& tensors, const std::map<std::string, std::string>& metadata,
                              const std::function<absl::Status(std::string_view)>& append) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  std::vector<at::Tensor> elements;
  std::set<std::string> names;
  int64_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name == kMetadataKey || !names.insert(tensor.name).second) {
      return Invalid("tensors", "repeats a name", tensor.name);
    }
    const std::optional<DataType> type = ToDataType(tensor.tensor.scalar_type());
    if (!type) return Invalid("tensors", "has an element type that the format does not know", tensor.name);
    const auto name = std::find_if(kTypeNames.begin(), kTypeNames.end(),
                                   [&](const TypeName& candidate) { return candidate.type == *type; });
    PENSTOCK_ASSIGN_OR_RETURN(elements.emplace_back(), SendableTensor(tensor.tensor));
    const auto bytes = static_cast<int64_t>(BytesOf(elements.back()).size());
    header[tensor.name] = {
        {"dtype", name->name}, {"shape", tensor.tensor.sizes().vec()}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text;
  try {  // dump() throws for names and metadata that are not UTF-8
    text = header.dump();
  } catch (const nlohmann::json::exception& error) {
    return Invalid("header", "must be UTF-8", error.what());
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the elements begin at a multiple of 8
  std::string length(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  PENSTOCK_RETURN_IF_ERROR(append(length));
  PENSTOCK_RETURN_IF_ERROR(append(text));
  for (const at::Tensor& tensor : elements) PENSTOCK_RETURN_IF_ERROR(append(BytesOf(tensor)));
  return absl::OkStatus();
}

}  // namespace penstock
