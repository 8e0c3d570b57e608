#pragma once

// Plain numbers and texts in a row, as headers between ranks hold them: little-endian, without padding.

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"

namespace penstock {

static_assert(std::endian::native == std::endian::little, "headers between ranks are little-endian");

class PackedWriter {
 public:
  template <typename T>
  void Put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void PutText(std::string_view text) {
    Put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
  }
  size_t size() const { return bytes_.size(); }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what PackedWriter wrote, from bytes that may say anything.
//
// Owns:      nothing; texts that it returns point into the bytes.
// Fails:     INVALID_ARGUMENT / RANK_MESSAGE naming the field at which the bytes end too early.
class PackedReader {
 public:
  explicit PackedReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  absl::Status Get(std::string_view field, T* value) {
    static_assert(std::is_integral_v<T> || std::is_floating_point_v<T>);
    static_assert(!std::is_same_v<T, bool>, "any byte but 0 and 1 is no bool");
    if (bytes_.size() < sizeof(T)) return Short(field, sizeof(T));
    std::memcpy(value, bytes_.data(), sizeof(T));
    bytes_.remove_prefix(sizeof(T));
    return absl::OkStatus();
  }
  absl::Status GetBool(std::string_view field, bool* value);
  absl::Status GetText(std::string_view field, std::string_view* text);

  std::string_view rest() const { return bytes_; }

 private:
  absl::Status Short(std::string_view field, size_t wanted) const;

  std::string_view bytes_;
};

}  // namespace penstock
