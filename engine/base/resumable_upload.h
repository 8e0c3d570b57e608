#pragma once

// What uploads have in common that go on from another stream when theirs breaks off.

#include <cstdint>
#include <memory>

namespace penstock {

// Which stream has an upload: the latest that took it, until the upload is over. What an earlier one still sends is
// refused.
//
// Threads:   those of the upload that it is a part of.
class UploadTurns {
 public:
  // The turn of a stream that begins the upload, or goes on with it.
  int64_t Take() { return ++latest_; }
  // The upload is complete, has failed, or is given up: no stream has it any more.
  void End() { over_ = true; }

  bool Has(int64_t turn) const { return !over_ && turn == latest_; }
  bool over() const { return over_; }

 private:
  int64_t latest_ = 0;
  bool over_ = false;
};

// A stream's hold on an upload.
template <typename Upload>
struct UploadHold {
  std::shared_ptr<Upload> upload = {};
  int64_t turn = 0;
  int64_t end_nanos = 0;  // by then the upload must be over, however many streams it takes
};

}  // namespace penstock
