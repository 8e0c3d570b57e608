#pragma once

// Models on their way in, kept apart from their streams: an upload that breaks off may go on from another stream.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "engine/base/job_thread.h"
#include "engine/base/resumable_upload.h"
#include "engine/base/timer_queue.h"
#include "server/models/model_root.h"

namespace penstock {

// Writes uploads into the model root.
//
// Model:     An upload is a file `.upload-N.part` in the root, whose name is no model's, with a digest of what has
//            come. The last chunk is followed by the checks: digest, sync, content; then the file gets its name in one
//            rename. Whatever fails, the file goes; only a stream that breaks off and a chunk that must be sent again
//            leave it, for 10 minutes. The latest stream has the upload; what an earlier one still sends is refused.
// Owns:      those files; nothing else makes such files. Root, TimerQueue and Clock outlive it.
// Threads:   Everything but Create() and Close() on the job thread; one may take as long as reading a model.
// Lifecycle: Create() removes what a crash has left. Close() removes what is open; after the job thread's end.
// Fails:     MODEL_EXISTS; NAME_INVALID, FIELD_INVALID; MODEL_TOO_LARGE, HOST_MEMORY, STORAGE_FULL; STREAM_LIMIT,
//            CALLER_QUOTA; CHUNK_SIZE, CHUNK_CHECKSUM; STREAM_PROTOCOL; DATA_LOSS / MODEL_DIGEST; for content as
//            ModelRoot.
class ModelUploads {
 public:
  static constexpr absl::Duration kBrokenLife = absl::Minutes(10);
  static constexpr absl::Duration kMaxAge = absl::Hours(12);
  // Of all callers; one has its share (CallerShare). So it is with the bytes that the root has room for, of which the
  // announced ones are taken: beside its first upload, which only needs room, a caller may announce its share.
  static constexpr int kMaxUploads = 8;
  static constexpr int kMaxModels = 1000;

  static absl::StatusOr<std::unique_ptr<ModelUploads>> Create(ModelRoot* root, std::shared_ptr<JobThread> jobs,
                                                              TimerQueue* timers, Clock* clock);
  ~ModelUploads();

  struct Request {
    std::string caller;
    std::string model;
    int64_t bytes = 0;
    std::string digest;
  };
  class Upload;
  using Hold = UploadHold<Upload>;  // without an upload the model was there already
  struct Position {
    int64_t offset = 0;
    std::optional<ModelDescription> model;  // the upload is over
  };

  absl::StatusOr<Position> Start(const Request& request, Hold* hold);
  absl::StatusOr<Position> Add(const Hold& hold, int64_t offset, const std::string& data, uint32_t checksum);
  // The stream is over.
  void Detach(const Hold& hold);

  void Close();

 private:
  using Key = std::tuple<std::string, std::string, int64_t, std::string>;

  ModelUploads(ModelRoot* root, std::shared_ptr<JobThread> jobs, TimerQueue* timers, Clock* clock)
      : root_(root), jobs_(std::move(jobs)), timers_(timers), clock_(clock) {}
  absl::Status CheckRoom(const Request& request);
  absl::StatusOr<ModelDescription> Finish(Upload& upload);
  // Removes its file, unless that has become a model.
  void Forget(const std::shared_ptr<Upload>& upload);
  FileSystem* files() const { return root_->options().files; }

  ModelRoot* const root_;
  const std::shared_ptr<JobThread> jobs_;
  TimerQueue* const timers_;
  Clock* const clock_;

  // The job thread's.
  std::map<Key, std::shared_ptr<Upload>> uploads_;
  int64_t next_number_ = 0;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for timers that fire late
};

}  // namespace penstock
