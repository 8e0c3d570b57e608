#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "engine/base/ids.h"
#include "engine/base/job_thread.h"
#include "server/peer/group.h"
#include "server/ranks/group_carriers.h"

namespace penstock {

// What every rank does as generations of its group come and go, the leader's own rank too: opens a carrier, connects it,
// gives it up.
//
// Owns:      the carriers.
// Threads:   any method from any thread; none blocks: the work is done in order on a thread of its own, `ps-group`, which
//            calls the answers.
// Lifecycle: Close() once, when nobody has a share of the edges any more; nothing is called afterwards.
class GroupMember {
 public:
  struct Answers {
    std::function<void(const GroupIdentity&, const std::string& carrier_address)> prepared;
    std::function<void(const GroupIdentity&)> formed;
    std::function<void(const GroupIdentity&, const absl::Status& why)> failed;
  };
  GroupMember(GroupCarriers::Options options, Answers answers);
  ~GroupMember() { Close(); }

  void Prepare(const GroupIdentity& group);
  void Form(const Group& group);
  void Dissolve(Rank cause, const absl::Status& why);
  void Close();

  const GroupCarriers& carriers() const { return carriers_; }

 private:
  GroupCarriers carriers_;
  const Answers answers_;
  JobThread jobs_{"ps-group"};  // last: its jobs use all of the above
};

}  // namespace penstock
