#include "engine/checkpoint/checkpoint_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/resource_id.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_quota.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(FileSystem* files, Clock* clock,
                                                                       std::string state_dir, CheckpointQuota* quota) {
  std::unique_ptr<CheckpointStore> store(new CheckpointStore(files, clock, std::move(state_dir), quota));
  const std::string above = store->state_dir_ + "/pipelines";
  if (!files->Exists(above)) return store;
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> pipelines, files->List(above));
  for (const std::string& pipeline : pipelines) {
    if (!IsResourceId(pipeline) || !files->Exists(absl::StrCat(above, "/", pipeline, "/checkpoints"))) continue;
    if (absl::Status read = store->FolderOf(pipeline).status(); !read.ok()) {
      LogError("can't read the checkpoints of a pipeline",
               {{"pipeline", pipeline}, {"error", std::string(read.message())}});
    }
  }
  return store;
}

absl::StatusOr<std::shared_ptr<CheckpointFolder>> CheckpointStore::FolderOf(const std::string& pipeline,
                                                                            const std::string& owner) {
  if (quota_ != nullptr && !owner.empty()) quota_->SetOwner(pipeline, owner);
  std::shared_ptr<CheckpointFolder> folder = FindFolder(pipeline);
  if (folder != nullptr) {
    PENSTOCK_RETURN_IF_ERROR(folder->Reopen());
    return folder;
  }
  PENSTOCK_ASSIGN_OR_RETURN(folder, CheckpointFolder::Open(files_, clock_, state_dir_, pipeline, quota_));
  absl::MutexLock lock(&mu_);
  return folders_.emplace(pipeline, std::move(folder)).first->second;
}

std::shared_ptr<CheckpointFolder> CheckpointStore::FindFolder(const std::string& pipeline) const {
  absl::MutexLock lock(&mu_);
  const auto found = folders_.find(pipeline);
  return found == folders_.end() ? nullptr : found->second;
}

absl::StatusOr<CheckpointInfo> CheckpointStore::Find(const std::string& pipeline, const std::string& id) const {
  const std::shared_ptr<CheckpointFolder> folder = FindFolder(pipeline);
  absl::StatusOr<CheckpointInfo> info = CheckpointNotFound(id);
  if (folder != nullptr) info = folder->Find(id);
  if (!info.ok()) return WithValue(info.status(), "pipeline", pipeline);
  return info;
}

std::vector<CheckpointInfo> CheckpointStore::List(const std::string& pipeline, const std::string& id,
                                                  size_t limit) const {
  std::vector<std::shared_ptr<CheckpointFolder>> folders;
  {
    absl::MutexLock lock(&mu_);
    for (auto it = folders_.lower_bound(pipeline); it != folders_.end(); ++it) folders.push_back(it->second);
  }
  std::vector<CheckpointInfo> list;
  for (const std::shared_ptr<CheckpointFolder>& folder : folders) {
    for (CheckpointInfo& info : folder->List()) {
      if (list.size() == limit) return list;
      if (info.pipeline > pipeline || info.id > id) list.push_back(std::move(info));
    }
  }
  return list;
}

}  // namespace penstock
