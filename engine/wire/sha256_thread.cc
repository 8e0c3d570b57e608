#include "engine/wire/sha256_thread.h"

#include <utility>

#include "engine/wire/sha256.h"

namespace penstock {
namespace {

// Of bytes that are digested at a time: a thread that is no longer wanted goes soon.
constexpr size_t kPieceBytes = 4 << 20;

}  // namespace

Sha256Thread::~Sha256Thread() { End(/*drop=*/true); }

void Sha256Thread::Arrived(std::string_view bytes) {
  absl::MutexLock lock(&mu_);
  arrived_ = bytes;
}

absl::StatusOr<std::string> Sha256Thread::Finish() {
  End(/*drop=*/false);
  if (!thread_.status().ok()) return thread_.status();
  return std::move(digest_);
}

void Sha256Thread::End(bool drop) {
  {
    absl::MutexLock lock(&mu_);
    complete_ = true;
    if (drop) arrived_ = arrived_.substr(0, taken_);
  }
  thread_.Join();
}

void Sha256Thread::Run() {
  Sha256 digest;
  const auto more = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return complete_ || taken_ < arrived_.size(); };
  while (true) {
    std::string_view piece;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&more));
      piece = arrived_.substr(taken_, kPieceBytes);
      taken_ += piece.size();
    }
    if (piece.empty()) break;
    digest.Update(piece);
  }
  digest_ = digest.Finish();
}

}  // namespace penstock
