#pragma once

// Uploads under way, kept apart from their streams: one that breaks off may go on from another.

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/resumable_upload.h"
#include "engine/base/timer_queue.h"
#include "engine/handles/handle_store.h"
#include "server/rpc/streams/tensor_stream.h"

namespace penstock {

// Finds the upload that a stream starts or goes on with.
//
// Model:     An upload is a reserved handle and a TensorReceiver. The handle holds memory for what has come and for the
//            credit of the stream that sends, not for what was announced; while no stream sends, for what has come. One
//            with a request id is found by (caller, pipeline, request id): while it is under way, for 60 s after it
//            broke off, and for 10 minutes after it was complete; there may be a million of these, and of one caller
//            its share (CallerShare). An upload that is not complete after an hour is given up. The latest stream
//            has it; what an earlier one still sends is refused. Of one that is complete only its name and a digest of
//            its headers are kept, once, however often it is asked for.
// Owns:      the uploads; HandleStore, TimerQueue and Clock outlive it.
// Threads:   Any method from any thread; of one upload, receiving is serialized by its lock.
// Lifecycle: Close() before destruction, when no stream is left.
// Fails:     REQUEST_ID_REUSED for other tensors under the same id; RESOURCE_EXHAUSTED / REQUEST_LOG_FULL;
//            INVALID_ARGUMENT / STREAM_PROTOCOL for an upload that another stream has taken over; what Reserve() and
//            the receiver fail with.
class TensorUploads : public std::enable_shared_from_this<TensorUploads> {
 public:
  static constexpr absl::Duration kBrokenLife = absl::Seconds(60);
  static constexpr absl::Duration kCompleteLife = absl::Minutes(10);
  static constexpr absl::Duration kMaxAge = absl::Hours(1);
  static constexpr size_t kMaxComplete = 1'000'000;

  TensorUploads(HandleStore* handles, TimerQueue* timers, Clock* clock, size_t max_complete = kMaxComplete)
      : handles_(handles), timers_(timers), clock_(clock), max_complete_(max_complete) {}

  struct Request {
    std::string caller;
    std::string pipeline;
    std::string request_id;  // empty: can't be resumed
    std::vector<TensorHeader> headers;
    absl::Duration lease;
  };
  class Upload;
  using Hold = UploadHold<Upload>;
  struct Position {
    int tensor = 0;
    int64_t offset = 0;
    bool complete = false;
  };

  absl::StatusOr<Hold> Attach(Request request) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Position> Where(const Hold& hold);
  // Takes a chunk; the last one makes the handle READY.
  absl::StatusOr<Position> Add(const Hold& hold, const ChunkMessage& chunk) ABSL_LOCKS_EXCLUDED(mu_);
  // The stream is over. An upload that is not complete is kept for a while if it can be resumed.
  void Detach(const Hold& hold) ABSL_LOCKS_EXCLUDED(mu_);
  HandleName NameOf(const Hold& hold) const;

  void Close() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Key = std::pair<std::string, std::string>;  // caller; pipeline and request id

  // One that is complete, in the order of these.
  struct Complete {
    std::shared_ptr<Upload> upload;
    int64_t until_nanos = 0;
  };

  // The upload that is known under the key; none where there is none.
  absl::StatusOr<std::optional<Hold>> Join(const Key& key, const std::string& request_id, const std::string& digest)
      ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveFromMap(const std::shared_ptr<Upload>& upload) ABSL_LOCKS_EXCLUDED(mu_);
  void ForgetBroken(const Hold& hold);
  void KeepComplete(const std::shared_ptr<Upload>& upload) ABSL_LOCKS_EXCLUDED(mu_);
  // Lets those go whose time is over; refuses where another one of the caller may not be kept.
  absl::Status CheckRoom(const std::string& caller) ABSL_LOCKS_EXCLUDED(mu_);
  void Forget(const std::shared_ptr<Upload>& upload, int64_t turn) ABSL_LOCKS_EXCLUDED(mu_);

  HandleStore* const handles_;
  TimerQueue* const timers_;
  Clock* const clock_;
  const size_t max_complete_;

  absl::Mutex mu_;
  std::map<Key, std::shared_ptr<Upload>> uploads_ ABSL_GUARDED_BY(mu_);
  std::deque<Complete> complete_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, int64_t> complete_of_ ABSL_GUARDED_BY(mu_);  // how many of these each caller has that has any
};

}  // namespace penstock
