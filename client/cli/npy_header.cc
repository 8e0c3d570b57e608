#include "client/cli/npy_header.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/cli/exit_code.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr absl::string_view kMagic = "\x93NUMPY";
constexpr int64_t kVersionBytes = 8;  // the magic, major, minor
constexpr int64_t kMaxTextBytes = 1 << 20;

struct NamedType {
  std::string_view name;
  DataType type;
};
constexpr NamedType kNumpyTypes[] = {
    {"b1", DataType::kBool},   {"u1", DataType::kUint8},  {"i1", DataType::kInt8},  {"f2", DataType::kFp16},
    {"i2", DataType::kInt16},  {"u2", DataType::kUint16}, {"f4", DataType::kFp32},  {"i4", DataType::kInt32},
    {"u4", DataType::kUint32}, {"f8", DataType::kFp64},   {"i8", DataType::kInt64}, {"u8", DataType::kUint64},
};

absl::Status Refused(absl::string_view what) { return absl::InvalidArgumentError(what); }

// Reads the parts of a Python literal; each method takes what it returns, or returns nothing.
class Literal {
 public:
  explicit Literal(absl::string_view text) : rest_(text) {}

  bool Take(absl::string_view token) {
    SkipBlanks();
    return absl::ConsumePrefix(&rest_, token);
  }

  std::optional<std::string> Text() {
    if (!Take("'")) return std::nullopt;
    const size_t end = rest_.find('\'');
    if (end == absl::string_view::npos) return std::nullopt;
    std::string text(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return text;
  }

  std::optional<bool> Bool() {
    if (Take("True")) return true;
    if (Take("False")) return false;
    return std::nullopt;
  }

  std::optional<std::vector<int64_t>> Sizes() {
    if (!Take("(")) return std::nullopt;
    std::vector<int64_t> sizes;
    while (!Take(")")) {
      SkipBlanks();
      size_t digits = 0;
      while (digits < rest_.size() && absl::ascii_isdigit(static_cast<unsigned char>(rest_[digits]))) ++digits;
      int64_t size = 0;
      if (!absl::SimpleAtoi(rest_.substr(0, digits), &size)) return std::nullopt;
      rest_.remove_prefix(digits);
      sizes.push_back(size);
      if (Take(",")) continue;
      if (!Take(")")) return std::nullopt;
      break;
    }
    return sizes;
  }

  bool AtEnd() {
    SkipBlanks();
    return rest_.empty();
  }

 private:
  void SkipBlanks() { rest_ = absl::StripLeadingAsciiWhitespace(rest_); }

  absl::string_view rest_;
};

absl::StatusOr<DataType> TypeOf(const std::string& name) {
  if (!name.empty() && name[0] == '>') {
    return Refused(
        absl::StrCat("must be little-endian, is of dtype '", name, "'; save its .astype('<", name.substr(1), "')"));
  }
  for (const NamedType& entry : kNumpyTypes) {
    if (name.size() == 3 && (name[0] == '<' || name[0] == '|') && name.substr(1) == entry.name) return entry.type;
  }
  if (name == "|O") return Refused("holds objects of Python (dtype '|O'), not numbers");
  return Refused(absl::StrCat("is of dtype '", name.substr(0, 64), "', which no tensor has"));
}

absl::StatusOr<TensorHeader> ParseText(absl::string_view text) {
  const absl::Status broken = Refused("has a header that numpy does not write");
  Literal literal(text);
  std::optional<std::string> type;
  std::optional<bool> fortran;
  std::optional<std::vector<int64_t>> shape;
  if (!literal.Take("{")) return broken;
  while (!literal.Take("}")) {
    const std::optional<std::string> key = literal.Text();
    if (!key.has_value() || !literal.Take(":")) return broken;
    if (*key == "descr") {
      if (literal.Take("[")) return Refused("holds records (a structured dtype), not numbers");
      type = literal.Text();
    } else if (*key == "fortran_order") {
      fortran = literal.Bool();
    } else if (*key == "shape") {
      shape = literal.Sizes();
    } else {
      return broken;
    }
    if (literal.Take(",")) continue;
    if (!literal.Take("}")) return broken;
    break;
  }
  if (!literal.AtEnd() || !type.has_value() || !fortran.has_value() || !shape.has_value()) return broken;
  PENSTOCK_ASSIGN_OR_RETURN(const DataType known, TypeOf(*type));
  if (*fortran) return Refused("must be in C order, is in Fortran order; save numpy.ascontiguousarray of it");
  return TensorHeader{"", known, *std::move(shape), 0};
}

}  // namespace

std::string_view NumpyType(DataType type) {
  for (const NamedType& entry : kNumpyTypes) {
    if (entry.type == type) return entry.name;
  }
  return {};
}

absl::StatusOr<NpyHeader> ReadNpyHeader(const std::string& name, const ByteRange& bytes) {
  const auto refused = [&](absl::string_view what) { return UsageError(bytes.path(), absl::StrCat(name, ": ", what)); };
  if (bytes.size() < kVersionBytes) return refused("is no array that numpy wrote");
  PENSTOCK_ASSIGN_OR_RETURN(const std::string start, bytes.Read(0, kVersionBytes));
  if (!absl::StartsWith(start, kMagic)) return refused("is no array that numpy wrote");
  const int major = static_cast<uint8_t>(start[6]);
  if (major != 1 && major != 2) {
    return refused(absl::StrCat("must be of version 1 or 2 of numpy's format, is of version ", major));
  }
  const int length_bytes = major == 1 ? 2 : 4;
  PENSTOCK_ASSIGN_OR_RETURN(const std::string digits, bytes.Read(kVersionBytes, length_bytes));
  int64_t length = 0;
  for (int i = length_bytes - 1; i >= 0; --i) {
    length = length << 8 | static_cast<uint8_t>(digits[static_cast<size_t>(i)]);
  }
  if (length > kMaxTextBytes) return refused(absl::StrCat("has a header of ", length, " bytes, which is too long"));
  const int64_t text_begin = kVersionBytes + length_bytes;
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, bytes.Read(text_begin, length));
  absl::StatusOr<TensorHeader> tensor = ParseText(text);
  if (!tensor.ok()) return refused(tensor.status().message());
  tensor->name = name;
  return NpyHeader{*std::move(tensor), text_begin + length};
}

}  // namespace penstock
