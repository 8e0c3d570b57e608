#pragma once

// Copies of a pipeline's parameters for those who read them.

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/serve/calls.h"

namespace penstock {

// Makes one copy of each content per version of it, shared by all who read it.
//
// Model:     A copy lives until its last reader lets go of it. At most kMaxSnapshots copies, of whatever content and
//            version, live at a time.
// Owns:      nothing but the count of what lives; a copy may outlive it.
// Threads:   Take() from one thread at a time, bytes() from any; copies are let go of on any.
// Fails:     RESOURCE_EXHAUSTED / STREAM_LIMIT where another copy would be one too many; as `make`.
class ParameterSnapshots {
 public:
  static constexpr int kMaxSnapshots = 4;
  using Make = std::function<absl::StatusOr<ParameterSnapshot>()>;

  ParameterSnapshots();

  // The copy of this version of the content; `make` makes it if there is none.
  absl::StatusOr<std::shared_ptr<const ParameterSnapshot>> Take(int64_t version, ReadContent content,
                                                                const Make& make) const;

  // Of all copies that live.
  int64_t bytes() const;

 private:
  struct Alive;
  const std::shared_ptr<Alive> alive_;  // shared with the copies
};

}  // namespace penstock
