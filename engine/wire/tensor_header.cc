#include "engine/wire/tensor_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/shape_text.h"
#include "engine/base/status_macros.h"
#include "engine/base/utf8.h"
#include "engine/wire/tensor_name.h"

namespace penstock {
namespace {

struct DataTypeInfo {
  std::string_view name;
  int64_t item_size;
};

constexpr std::array<DataTypeInfo, kDataTypeCount> kTable = {{
    {"UNSPECIFIED", 0},
    {"BOOL", 1},
    {"UINT8", 1},
    {"INT8", 1},
    {"FP16", 2},
    {"BF16", 2},
    {"INT16", 2},
    {"UINT16", 2},
    {"FP32", 4},
    {"INT32", 4},
    {"UINT32", 4},
    {"FP64", 8},
    {"INT64", 8},
    {"UINT64", 8},
}};

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

absl::Status Refuse(absl::StatusCode code, std::string_view reason, const std::string& field, std::string_view problem,
                    const std::string& value) {
  return Error(code, reason, field + ": " + std::string(problem) + ", got " + value)
      .With("field", field)
      .With("value", value);
}

absl::Status BadHeader(const std::string& field, std::string_view problem, const std::string& value) {
  return Refuse(absl::StatusCode::kInvalidArgument, "TENSOR_HEADER", field, problem, value);
}

absl::Status TooLarge(const std::string& field, int64_t limit, int64_t value) {
  return Refuse(absl::StatusCode::kResourceExhausted, "TENSOR_TOO_LARGE", field,
                absl::StrCat("must be at most ", limit, " bytes"), absl::StrCat(value));
}

bool IsNamePart(char c) { return absl::ascii_isprint(static_cast<unsigned char>(c)); }

absl::Status ValidateName(const std::string& name, const std::string& field, const WireLimits& limits) {
  if (name.empty()) {
    if (limits.allow_empty_name) return absl::OkStatus();
    return BadHeader(field, "must not be empty", "an empty name");
  }
  if (name.size() > static_cast<size_t>(limits.max_name_bytes)) {
    return BadHeader(field, absl::StrCat("must have at most ", limits.max_name_bytes, " bytes"),
                     absl::StrCat(name.size(), " bytes"));
  }
  if (!std::all_of(name.begin(), name.end(), IsNamePart)) {
    return BadHeader(field, "must hold printable ASCII characters only", Shortened(name));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsKnown(DataType type) {
  const auto number = static_cast<int32_t>(type);
  return number > 0 && number < kDataTypeCount;
}

std::string_view DataTypeName(DataType type) { return kTable[IsKnown(type) ? static_cast<size_t>(type) : 0].name; }

std::optional<DataType> DataTypeFromName(std::string_view name) {
  for (int number = 1; number < kDataTypeCount; ++number) {
    if (kTable[number].name == name) return static_cast<DataType>(number);
  }
  return std::nullopt;
}

int64_t ItemSize(DataType type) { return kTable[IsKnown(type) ? static_cast<size_t>(type) : 0].item_size; }

std::string Shortened(std::string_view text) {
  constexpr size_t kMaxBytes = 64;
  std::string shown;
  size_t whole = 0;  // of the pieces that leave room for the dots
  while (!text.empty()) {
    const size_t length = std::max<size_t>(PrintableLength(text), 1);
    const absl::string_view piece(text.data(), length);
    absl::StrAppend(&shown, length > 1 ? std::string(piece) : absl::CHexEscape(piece));
    if (shown.size() > kMaxBytes) return shown.substr(0, whole) + "...";
    if (shown.size() <= kMaxBytes - 3) whole = shown.size();
    text.remove_prefix(length);
  }
  return shown;
}

absl::StatusOr<int64_t> ElementCount(const std::vector<int64_t>& shape, std::string_view field) {
  const std::string shape_field = std::string(field) + ".shape";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 0) {
      return BadHeader(absl::StrCat(shape_field, "[", i, "]"), "must not be negative", absl::StrCat(shape[i]));
    }
  }
  int64_t product = 1;
  bool empty = false;
  for (int64_t dimension : shape) {
    empty |= dimension == 0;
    const int64_t factor = std::max<int64_t>(dimension, 1);
    if (product > kNoLimit / factor) {
      return BadHeader(shape_field, "must have a product below 2^63", Shortened(ShapeText(shape)));
    }
    product *= factor;
  }
  return empty ? 0 : product;
}

absl::StatusOr<int64_t> PayloadBytes(DataType type, const std::vector<int64_t>& shape, std::string_view field) {
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t elements, ElementCount(shape, field));
  const int64_t item_size = ItemSize(type);
  if (item_size > 1 && elements > kNoLimit / item_size) {
    return BadHeader(std::string(field) + ".shape", "must have fewer than 2^63 bytes", Shortened(ShapeText(shape)));
  }
  return elements * item_size;
}

bool IsTensorName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxTensorNameBytes && std::all_of(name.begin(), name.end(), IsNamePart);
}

absl::Status ValidateTensorHeader(const TensorHeader& header, std::string_view field, const WireLimits& limits) {
  const std::string prefix(field);
  PENSTOCK_RETURN_IF_ERROR(ValidateName(header.name, prefix + ".name", limits));
  if (!IsKnown(header.type)) {
    return BadHeader(prefix + ".type", "must be a known type", absl::StrCat(static_cast<int32_t>(header.type)));
  }
  if (header.shape.size() > static_cast<size_t>(limits.max_rank)) {
    return BadHeader(prefix + ".shape", absl::StrCat("must have at most ", limits.max_rank, " dimensions"),
                     absl::StrCat(header.shape.size()));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const int64_t bytes, PayloadBytes(header.type, header.shape, field));
  if (header.byte_size != bytes) {
    return BadHeader(prefix + ".byte_size", absl::StrCat("must be ", bytes, ", as type and shape say"),
                     absl::StrCat(header.byte_size));
  }
  if (bytes > limits.max_tensor_bytes) return TooLarge(prefix + ".byte_size", limits.max_tensor_bytes, bytes);
  return absl::OkStatus();
}

absl::Status ValidateTensorHeaders(const std::vector<TensorHeader>& headers, std::string_view field,
                                   const WireLimits& limits) {
  const std::string prefix(field);
  if (headers.size() > static_cast<size_t>(limits.max_tensors)) {
    return BadHeader(prefix, absl::StrCat("must have at most ", limits.max_tensors, " tensors"),
                     absl::StrCat(headers.size()));
  }
  std::set<std::string_view> names;
  int64_t total = 0;
  for (size_t i = 0; i < headers.size(); ++i) {
    const std::string element = absl::StrCat(prefix, "[", i, "]");
    PENSTOCK_RETURN_IF_ERROR(ValidateTensorHeader(headers[i], element, limits));
    if (!headers[i].name.empty() && !names.insert(headers[i].name).second) {
      return BadHeader(element + ".name", "must not repeat", Shortened(headers[i].name));
    }
    total += headers[i].byte_size;  // at most max_tensors * max_tensor_bytes
  }
  if (total > limits.max_request_bytes) return TooLarge(prefix, limits.max_request_bytes, total);
  return absl::OkStatus();
}

}  // namespace penstock
