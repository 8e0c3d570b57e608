#include "engine/journal/request_index.h"

#include "engine/base/block_bytes.h"

namespace penstock {

int64_t RequestIndex::BytesOf(const Sequences::value_type& entry) {
  // Its place in the table; beside it the pointer to the next one and the hash.
  return static_cast<int64_t>(sizeof(void*)) + BlockBytes(sizeof(void*) + sizeof(size_t) + sizeof(entry)) +
         BlockBytes(entry.first);
}

// The length comes first: an identity may hold any byte.
std::string RequestIndex::Key(std::string_view identity, std::string_view method, std::string_view request_id) {
  std::string key = std::to_string(identity.size());
  key.append(":").append(identity).append(":").append(method).append(":").append(request_id);
  return key;
}

void RequestIndex::Add(std::string_view identity, std::string_view method, std::string_view request_id,
                       int64_t sequence) {
  if (request_id.empty()) return;
  const auto [entry, fresh] = sequences_.insert_or_assign(Key(identity, method, request_id), sequence);
  if (fresh) bytes_ += BytesOf(*entry);
}

void RequestIndex::Remove(std::string_view identity, std::string_view method, std::string_view request_id,
                          int64_t sequence) {
  const auto found = sequences_.find(Key(identity, method, request_id));
  if (found == sequences_.end() || found->second != sequence) return;
  bytes_ -= BytesOf(*found);
  sequences_.erase(found);
}

std::optional<int64_t> RequestIndex::Find(std::string_view identity, std::string_view method,
                                          std::string_view request_id) const {
  const auto found = sequences_.find(Key(identity, method, request_id));
  return found == sequences_.end() ? std::nullopt : std::optional<int64_t>(found->second);
}

}  // namespace penstock
