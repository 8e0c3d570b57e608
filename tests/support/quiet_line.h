#pragma once

#include <vector>

#include "server/peer/membership.h"

namespace penstock::testing {

// A way down to a member at whose end nobody listens. What a test wants to hear, it overrides.
class QuietLine : public MemberLine {
 public:
  void Welcome(Epoch, absl::Duration) override {}
  void Ping(int64_t) override {}
  void Prepare(const GroupIdentity&) override {}
  void Form(const Group&) override {}
  void Dissolve(const GroupIdentity&, Rank, const absl::Status&) override {}
  void Draining(bool) override {}
  void Tell(std::vector<MessagePart>) override {}
  void End(const absl::Status&) override {}
};

}  // namespace penstock::testing
