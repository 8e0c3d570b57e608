#pragma once

// The answers to calls with a request_id: a retry gets the first one.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "engine/base/block_bytes.h"
#include "engine/base/caller_share.h"
#include "engine/base/error.h"
#include "engine/ledger/memory_ledger.h"

namespace penstock {

// Scope and identity of a call, within one pipeline.
struct RequestKey {
  std::string caller;
  std::string method;
  std::string request_id;

  auto operator<=>(const RequestKey&) const = default;
};

// INVALID_ARGUMENT / REQUEST_ID_REUSED.
inline absl::Status RequestIdReused(const std::string& request_id) {
  return Error(absl::StatusCode::kInvalidArgument, "REQUEST_ID_REUSED",
               "this request_id was used for a call with another payload")
      .With("field", "request_id")
      .With("value", request_id);
}

// What an answer takes of the heap beside itself. Answers that take some have an overload.
template <typename Answer>
int64_t HeapBytes(const Answer&) {
  return 0;
}

// Answers by caller, method and request_id.
//
// Model:     A map, and its keys in order of their recording. An answer is kept for kept_nanos or until `entries` newer
//            ones exist, but never less than min_nanos. A caller may have no more than its share (CallerShare) of
//            max_entries. It lives in memory, which is counted in `held`: a restart forgets it, and the journal
//            remembers.
// Threads:   Those of its owner, which holds its lock around every call.
// Units:     Monotonic nanoseconds.
// Fails:     INVALID_ARGUMENT / REQUEST_ID_REUSED for the same key with another payload; RESOURCE_EXHAUSTED /
//            REQUEST_LOG_FULL when even the youngest answers, of all or of the caller, are too many.
template <typename Answer>
class RequestLog {
 public:
  struct Options {
    int64_t entries = 100'000;
    int64_t max_entries = 1'000'000;
    int64_t kept_nanos = int64_t{24} * 3600 * 1'000'000'000;
    int64_t min_nanos = int64_t{600} * 1'000'000'000;
  };

  explicit RequestLog(Options options, MemoryReservation held = {}) : options_(options), held_(std::move(held)) {}

  // The recorded answer; nothing for a new key, or one without a request_id; an error as above.
  absl::StatusOr<std::optional<Answer>> Find(const RequestKey& key, const std::string& payload_digest,
                                             int64_t now_nanos) {
    if (key.request_id.empty()) return std::optional<Answer>();
    Forget(now_nanos);
    auto found = entries_.find(key);
    if (found != entries_.end()) {
      if (found->second.payload_digest == payload_digest) return std::optional<Answer>(found->second.answer);
      return RequestIdReused(key.request_id);
    }
    if (size() >= options_.max_entries) return Full("all callers", options_.max_entries);
    const auto own = callers_.find(key.caller);
    if (own == callers_.end()) return std::optional<Answer>();
    const int64_t share = CallerShare(options_.max_entries, /*others=*/callers_.size() > 1);
    if (own->second >= share) return Full("this caller", share);
    return std::optional<Answer>();
  }

  bool Contains(const RequestKey& key) const { return entries_.contains(key); }

  // Keeps an answer for a key that Find() did not know. If it throws, nothing is kept.
  void Record(const RequestKey& key, std::string payload_digest, Answer answer, int64_t now_nanos) {
    if (key.request_id.empty()) return;
    Erase(key);
    const uint64_t serial = ++serial_;
    const EntryPlace entry =
        entries_.emplace(key, Entry{std::move(payload_digest), std::move(answer), now_nanos, serial}).first;
    absl::Cleanup undo_entry = [&] { entries_.erase(entry); };
    order_.emplace(serial, entry);
    absl::Cleanup undo_order = [&] { order_.erase(serial); };
    ++callers_[key.caller];
    std::move(undo_order).Cancel();
    std::move(undo_entry).Cancel();
    entry->second.bytes = BytesOf(*entry);
    held_.ResizeAnyway(held_.bytes() + entry->second.bytes);
    Forget(now_nanos);
  }

  // The call had no effect and may be made again.
  void Erase(const RequestKey& key) {
    if (const auto found = entries_.find(key); found != entries_.end()) Remove(found);
  }

  // Keys that are held.
  int64_t size() const { return static_cast<int64_t>(order_.size()); }

 private:
  struct Entry {
    std::string payload_digest;
    Answer answer;
    int64_t at_nanos = 0;
    uint64_t serial = 0;
    int64_t bytes = 0;  // that it was counted with
  };
  using Entries = std::map<RequestKey, Entry>;
  using EntryPlace = typename Entries::iterator;

  static int64_t BytesOf(const typename Entries::value_type& recorded) {
    const auto& [key, entry] = recorded;
    return MapNodeBytes<RequestKey, Entry>() + MapNodeBytes<uint64_t, EntryPlace>() + BlockBytes(key.caller) +
           BlockBytes(key.method) + BlockBytes(key.request_id) + BlockBytes(entry.payload_digest) +
           HeapBytes(entry.answer);
  }

  static absl::Status Full(const std::string& whose, int64_t limit) {
    return Error(absl::StatusCode::kResourceExhausted, "REQUEST_LOG_FULL",
                 "too many calls of " + whose + " with a request_id in the last minutes: at most " +
                     std::to_string(limit) + " are kept")
        .With("limit", std::to_string(limit))
        .With("retry_after_ms", "60000");
  }

  void Remove(EntryPlace entry) {
    const auto own = callers_.find(entry->first.caller);
    if (--own->second == 0) callers_.erase(own);
    order_.erase(entry->second.serial);
    held_.ShrinkTo(held_.bytes() - entry->second.bytes);
    entries_.erase(entry);
  }

  void Forget(int64_t now_nanos) {
    while (!order_.empty()) {
      const EntryPlace oldest = order_.begin()->second;
      const int64_t age = now_nanos - oldest->second.at_nanos;
      const bool many = static_cast<int64_t>(entries_.size()) > options_.entries;
      if (age < (many ? options_.min_nanos : options_.kept_nanos)) return;
      Remove(oldest);
    }
  }

  const Options options_;
  MemoryReservation held_;
  Entries entries_;
  std::map<std::string, int64_t> callers_;  // how many entries each has that has any
  std::map<uint64_t, EntryPlace> order_;    // of their recording: by serial
  uint64_t serial_ = 0;
};

}  // namespace penstock
