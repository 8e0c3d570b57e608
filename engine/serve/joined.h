#pragma once

// Calls that repeat one another: the first does the work, the others wait for it or get its answer.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/block_bytes.h"
#include "engine/base/guard.h"
#include "engine/serve/request_log.h"

namespace penstock {

// The callers who wait for one piece of work, a call and its repetitions, and what it gave once it is done.
//
// Model:     the request log knows it from the first call on. A failure is not kept: the repetition of what had no
//            effect is a first attempt.
// Threads:   any thread that holds the lock that guards the log; TellAll() without that lock.
template <typename Answer>
struct Joined {
  using Callback = std::function<void(absl::StatusOr<Answer>)>;

  std::optional<Answer> answer;  // never changes once it is set
  std::vector<Callback> callbacks;
};

template <typename Answer>
int64_t HeapBytes(const std::shared_ptr<Joined<Answer>>&) {
  return BlockBytes(2 * sizeof(void*) + sizeof(Joined<Answer>));  // with its counts
}

// What becomes of a call: it is the first and has work to do, it is answered now, or it waits (neither).
template <typename Answer>
struct JoinedCall {
  std::shared_ptr<Joined<Answer>> first;
  std::optional<absl::StatusOr<Answer>> now;
};

// Looks for an earlier attempt in the log, whose records are joins of this kind, or variants that hold one. If there is
// none, and `start` returns OK, the call is the first; its join is recorded. `done` is taken unless the call is
// answered now.
template <typename Answer, typename Log, typename Start>
JoinedCall<Answer> JoinOrAnswer(Log& log, const RequestKey& key, const std::string& payload_digest, int64_t now_nanos,
                                typename Joined<Answer>::Callback& done, Start&& start) {
  using Pointer = std::shared_ptr<Joined<Answer>>;
  const auto recorded = log.Find(key, payload_digest, now_nanos);
  if (!recorded.ok()) return {nullptr, recorded.status()};
  if (recorded->has_value()) {
    Pointer join;
    if constexpr (std::is_same_v<std::decay_t<decltype(**recorded)>, Pointer>) {
      join = **recorded;
    } else {
      join = std::get<Pointer>(**recorded);
    }
    if (join->answer.has_value()) return {nullptr, *join->answer};
    join->callbacks.push_back(std::move(done));
    return {};
  }
  // All that takes memory comes before the start.
  auto join = std::make_shared<Joined<Answer>>();
  join->callbacks.reserve(1);
  log.Record(key, payload_digest, join, now_nanos);
  absl::Cleanup forget = [&] { log.Erase(key); };
  if (absl::Status started = start(); !started.ok()) return {nullptr, std::move(started)};
  std::move(forget).Cancel();
  join->callbacks.push_back(std::move(done));
  return {std::move(join), std::nullopt};
}

// The work is over. Keeps the answer if it is one; else forgets the attempt, unless it has been answered before.
// Returns the callbacks of those that wait, for TellAll().
template <typename Answer, typename Log>
std::vector<typename Joined<Answer>::Callback> Settle(Log& log, const RequestKey& key, Joined<Answer>& join,
                                                      absl::StatusOr<Answer> answer) {
  if (!answer.ok()) {
    if (!join.answer.has_value() && !join.callbacks.empty()) log.Erase(key);
  } else if (!join.answer.has_value()) {
    join.answer = *std::move(answer);
  }
  return std::exchange(join.callbacks, {});
}

// Calls each callback with `answer(last)`, where `last` is true for the last callback. A callback that
// throws does not keep the others from being called.
template <typename Callback, typename MakeAnswer>
void TellAll(std::string_view work, const std::vector<Callback>& callbacks, const MakeAnswer& answer) {
  for (size_t i = 0; i < callbacks.size(); ++i) {
    Guarded(work, [&] { callbacks[i](answer(i + 1 == callbacks.size())); }).IgnoreError();
  }
}

}  // namespace penstock
