#include "server/identity/followed_files.h"

#include <utility>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/read_to_end.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread.h"

namespace penstock {

FollowedFiles::FollowedFiles(Clock* clock, std::function<void()> told) : clock_(clock), told_(std::move(told)) {}

FollowedFiles::~FollowedFiles() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  thread_.reset();
}

absl::StatusOr<std::vector<std::string>> FollowedFiles::Read(const Group& group) {
  std::vector<std::string> contents;
  for (const std::string& path : group.paths) {
    absl::StatusOr<std::string> content = ReadToEnd(path, kMaxBytes);
    if (!content.ok()) {
      return InvalidField(group.flag,
                          "must name files that can be read (" + std::string(content.status().message()) + ")", path);
    }
    contents.push_back(*std::move(content));
  }
  return contents;
}

absl::Status FollowedFiles::Follow(std::string flag, std::vector<std::string> paths, Take take) {
  Group group{
      .flag = std::move(flag), .paths = std::move(paths), .take = std::move(take), .contents = {}, .unreadable = {}};
  PENSTOCK_ASSIGN_OR_RETURN(group.contents, Read(group));
  PENSTOCK_RETURN_IF_ERROR(group.take(group.contents));
  groups_.push_back(std::move(group));
  return absl::OkStatus();
}

void FollowedFiles::Start() {
  thread_ = std::make_unique<Thread>("ps-identity", [this] { Run(); });
}

void FollowedFiles::Refuse(const Group& group, const absl::Status& why) {
  if (told_) told_();
  LogWarning("a credential file was refused, the last good one stays",
             {{"flag", group.flag}, {"why", std::string(why.message())}});
}

bool FollowedFiles::LookAt(Group& group) {
  absl::StatusOr<std::vector<std::string>> contents = Read(group);
  if (!contents.ok()) {
    const std::string why(contents.status().message());
    if (std::exchange(group.unreadable, why) != why) Refuse(group, contents.status());
    return false;
  }
  group.unreadable.clear();
  if (*contents == group.contents) return false;
  group.contents = *std::move(contents);
  const absl::Status taken = Guarded("a credential file", [&] { return group.take(group.contents); });
  if (!taken.ok()) {
    Refuse(group, taken);
    return false;
  }
  LogInfo("a credential file was read again", {{"flag", group.flag}});
  return true;
}

int FollowedFiles::Look() {
  int taken = 0;
  for (Group& group : groups_) taken += LookAt(group) ? 1 : 0;
  return taken;
}

void FollowedFiles::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      const int64_t next = clock_->NowNanos() + absl::ToInt64Nanoseconds(kInterval);
      if (clock_->AwaitUntil(&mu_, absl::Condition(&closed_), next)) return;
    }
    Guarded("the credential files", [this] { Look(); }).IgnoreError();
  }
}

}  // namespace penstock
