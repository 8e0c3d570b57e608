#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace penstock {

// Finds the call of a request id. It is made of verified rows when a journal is opened: an index of the database that
// is damaged would hide a call from its retry, which would then be done twice.
//
// Model:     a map from identity, method and request id to a sequence. A call without a request id is in none.
// Threads:   one at a time.
class RequestIndex {
 public:
  void Add(std::string_view identity, std::string_view method, std::string_view request_id, int64_t sequence);
  void Remove(std::string_view identity, std::string_view method, std::string_view request_id, int64_t sequence);
  std::optional<int64_t> Find(std::string_view identity, std::string_view method, std::string_view request_id) const;
  int64_t size() const { return static_cast<int64_t>(sequences_.size()); }
  int64_t bytes() const { return bytes_; }  // of the heap

 private:
  using Sequences = std::unordered_map<std::string, int64_t>;

  static int64_t BytesOf(const Sequences::value_type& entry);
  static std::string Key(std::string_view identity, std::string_view method, std::string_view request_id);

  Sequences sequences_;
  int64_t bytes_ = 0;
};

}  // namespace penstock
