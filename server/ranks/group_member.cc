#include "server/ranks/group_member.h"

#include "absl/status/statusor.h"
#include "engine/base/guard.h"

namespace penstock {

GroupMember::GroupMember(GroupCarriers::Options options, Answers answers)
    : carriers_([this, &options]() {
        options.on_lost = [this](const GroupIdentity& group, const absl::Status& why) {
          jobs_.Post([this, group, why] { answers_.failed(group, why); });
        };
        return std::move(options);
      }()),
      answers_(std::move(answers)) {}

void GroupMember::Close() {
  Dissolve(kNobody, absl::CancelledError("the group is closed"));
  jobs_.Close();
}

void GroupMember::Prepare(const GroupIdentity& group) {
  jobs_.Post([this, group] {
    const absl::StatusOr<std::string> address = Guarded("a carrier", [&] { return carriers_.Prepare(group); });
    if (!address.ok()) return answers_.failed(group, address.status());
    answers_.prepared(group, *address);
  });
}

void GroupMember::Form(const Group& group) {
  jobs_.Post([this, group] {
    const absl::Status formed = Guarded("a carrier", [&] { return carriers_.Form(group); });
    if (!formed.ok()) return answers_.failed(group.identity, formed);
    answers_.formed(group.identity);
  });
}

void GroupMember::Dissolve(Rank cause, const absl::Status& why) {
  jobs_.Post([this, cause, why] { carriers_.Dissolve(cause, why); });
}

}  // namespace penstock
