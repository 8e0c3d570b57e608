// Saving, replacing, listing, loading and removing. They stand in one file, for each relies on the order in which the
// others write, sync and rename; the manifest's content stands in checkpoint_manifest.

#include "engine/checkpoint/checkpoint_file.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/cancel_token.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/resource_id.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/checkpoint/checkpoint_quota.h"
#include "engine/model/safetensors.h"
#include "engine/wire/checksum.h"

namespace penstock {
namespace {

constexpr char kManifestFile[] = "manifest.json";
// A folder under a name that no checkpoint can have is not a checkpoint yet.
constexpr char kUnfinished[] = ".unfinished-";
// More than any specification and any names of tensors take: a larger file is no manifest, and is not read.
constexpr int64_t kMaxManifestBytes = int64_t{64} << 20;
// How much goes to the disk between two looks at a cancel token.
constexpr size_t kPieceBytes = 16 << 20;

absl::Status Taken(const std::string& id) {
  return Error(absl::StatusCode::kAlreadyExists, "CHECKPOINT_EXISTS", absl::StrCat("checkpoint ", id, " exists"))
      .With("checkpoint", id);
}

std::string FilePath(const std::string& checkpoint, std::string_view file) {
  return absl::StrCat(checkpoint, "/", absl::string_view(file.data(), file.size()));
}

int64_t FileBytes(FileSystem* files, const std::string& path) {
  const absl::StatusOr<FileInfo> info = files->Info(path);
  return info.ok() ? info->bytes : 0;
}

// Bytes of all files of a checkpoint that hold tensors.
int64_t TensorBytes(FileSystem* files, const std::string& checkpoint) {
  int64_t bytes = 0;
  for (const std::string_view file : kStateFiles) bytes += FileBytes(files, FilePath(checkpoint, file));
  return bytes;
}

// What is wrong with a file whose reading has failed; empty where it is no damage, but a fault of the disk. A file that
// is not what was written is INVALID_ARGUMENT.
std::string DamageOf(const absl::Status& read, std::string_view file, std::string_view not_as_written) {
  const absl::string_view name(file.data(), file.size());
  if (absl::IsNotFound(read)) return absl::StrCat(name, " is missing");
  if (!absl::IsInvalidArgument(read)) return "";
  return absl::StrCat(name, absl::string_view(not_as_written.data(), not_as_written.size()));
}

std::string DamageOfManifest(const absl::Status& read) {
  return DamageOf(read, kManifestFile, " is not what was written");
}

std::string DamageOfSize(const CheckpointManifest& manifest, int64_t bytes) {
  return absl::StrCat(manifest.file, " must have ", manifest.bytes, " bytes, got ", bytes);
}

// Fails: NOT_FOUND if it is missing; INVALID_ARGUMENT if it is no manifest.
absl::StatusOr<CheckpointManifest> ReadManifest(FileSystem* files, const std::string& checkpoint) {
  const std::string path = FilePath(checkpoint, kManifestFile);
  PENSTOCK_ASSIGN_OR_RETURN(const FileInfo info, files->Info(path));
  if (info.bytes > kMaxManifestBytes) return InvalidField("manifest", "is too large", std::to_string(info.bytes));
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, files->Read(path));
  return ParseManifest(text);
}

// Makes one folder whose existence survives a loss of power: a rename syncs the folder above.
absl::Status MakeDurableFolder(FileSystem* files, const std::string& above, const std::string& name) {
  const std::string folder = absl::StrCat(above, "/", name);
  if (files->Exists(folder)) return absl::OkStatus();
  const std::string made = absl::StrCat(above, "/.new-", name);
  PENSTOCK_RETURN_IF_ERROR(files->CreateDirectories(made));
  return files->Rename(made, folder);
}

// Writes one file and makes its bytes durable.
absl::Status WriteWhole(FileSystem* files, const std::string& path, std::string_view bytes) {
  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files->Create(path));
  PENSTOCK_RETURN_IF_ERROR(file->Append(bytes));
  PENSTOCK_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

// What the tensors' file repeats of its manifest, so that each vouches for the other.
std::map<std::string, std::string> MetadataOf(const CheckpointManifest& manifest) {
  return {{"penstock.step", std::to_string(manifest.step)},
          {"penstock.spec_digest", manifest.spec_digest},
          {"penstock.created_unix_ms", std::to_string(manifest.created_unix_ms)}};
}

}  // namespace

absl::Status CheckpointNotFound(const std::string& id) {
  return Error(absl::StatusCode::kNotFound, "CHECKPOINT_NOT_FOUND", absl::StrCat("there is no checkpoint ", id))
      .With("checkpoint", id);
}

absl::Status CheckpointCorrupt(const std::string& id, std::string_view damage) {
  return Error(absl::StatusCode::kDataLoss, "CHECKPOINT_CORRUPT",
               absl::StrCat("checkpoint ", id, " is damaged: ", absl::string_view(damage.data(), damage.size())))
      .With("checkpoint", id);
}

CheckpointFolder::CheckpointFolder(FileSystem* files, Clock* clock, const std::string& state_dir, std::string pipeline,
                                   CheckpointQuota* quota)
    : files_(files),
      clock_(clock),
      state_dir_(state_dir),
      pipeline_(std::move(pipeline)),
      folder_(absl::StrCat(state_dir_, "/pipelines/", pipeline_, "/checkpoints")),
      quota_(quota) {}

absl::StatusOr<std::unique_ptr<CheckpointFolder>> CheckpointFolder::Open(FileSystem* files, Clock* clock,
                                                                         const std::string& state_dir,
                                                                         const std::string& pipeline,
                                                                         CheckpointQuota* quota) {
  std::unique_ptr<CheckpointFolder> folder(new CheckpointFolder(files, clock, state_dir, pipeline, quota));
  PENSTOCK_RETURN_IF_ERROR(folder->Reopen());
  return folder;
}

absl::Status CheckpointFolder::Reopen() {
  absl::MutexLock disk_lock(&disk_mu_);
  PENSTOCK_RETURN_IF_ERROR(files_->CreateDirectories(state_dir_));
  PENSTOCK_RETURN_IF_ERROR(MakeDurableFolder(files_, state_dir_, "pipelines"));
  const std::string above = absl::StrCat(state_dir_, "/pipelines");
  PENSTOCK_RETURN_IF_ERROR(MakeDurableFolder(files_, above, pipeline_));
  PENSTOCK_RETURN_IF_ERROR(MakeDurableFolder(files_, absl::StrCat(above, "/", pipeline_), "checkpoints"));
  return Scan();
}

absl::Status CheckpointFolder::Scan() {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_->List(folder_));
  std::map<std::string, CheckpointInfo> found;
  int64_t bytes = 0;
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(folder_, "/", name);
    if (name.starts_with(kUnfinished)) {
      LogWarning("removing a checkpoint that a crash left unfinished",
                 {{"pipeline", pipeline_}, {"checkpoint", name.substr(sizeof(kUnfinished) - 1)}});
      PENSTOCK_RETURN_IF_ERROR(files_->RemoveAll(path));
      continue;
    }
    if (!IsResourceId(name)) continue;
    PENSTOCK_RETURN_IF_ERROR(RemoveReplaced(name));
    found[name] = Describe(name);
    bytes += TensorBytes(files_, path);
    if (const std::string& damage = found[name].damage; !damage.empty()) {
      LogWarning("a checkpoint is damaged", {{"pipeline", pipeline_}, {"checkpoint", name}, {"damage", damage}});
    }
  }
  if (quota_ != nullptr) quota_->Set(pipeline_, bytes);
  absl::MutexLock lock(&mu_);
  index_ = std::move(found);
  return absl::OkStatus();
}

CheckpointInfo CheckpointFolder::InfoOf(const std::string& id, const CheckpointManifest& manifest) const {
  CheckpointInfo info{.pipeline = pipeline_,
                      .id = id,
                      .step = manifest.step,
                      .bytes = manifest.bytes,
                      .digest = absl::StrFormat("crc32c:%08x", manifest.crc32c),
                      .spec_digest = manifest.spec_digest,
                      .rotating = manifest.rotating,
                      .place = {manifest.life, manifest.sequence, manifest.version, manifest.whole, manifest.automatic},
                      .create_time = absl::FromUnixMillis(manifest.created_unix_ms)};
  if (manifest.specification.empty()) return info;
  absl::MutexLock lock(&mu_);
  if (specification_ == nullptr || *specification_ != manifest.specification) {
    specification_ = std::make_shared<const std::string>(manifest.specification);
  }
  info.specification = specification_;
  return info;
}

// What can be known without reading the tensors.
CheckpointInfo CheckpointFolder::Describe(const std::string& id) const {
  const std::string path = absl::StrCat(folder_, "/", id);
  const absl::StatusOr<CheckpointManifest> manifest = ReadManifest(files_, path);
  if (!manifest.ok()) {
    const std::string damage = DamageOfManifest(manifest.status());
    const std::string unread = absl::StrCat(kManifestFile, " can't be read");
    return {.pipeline = pipeline_, .id = id, .damage = damage.empty() ? unread : damage};
  }
  CheckpointInfo info = InfoOf(id, *manifest);
  const std::string tensors = FilePath(path, manifest->file);
  const int64_t bytes = FileBytes(files_, tensors);
  if (!files_->Exists(tensors)) {
    info.damage = manifest->file + " is missing";
  } else if (bytes != manifest->bytes) {
    info.damage = DamageOfSize(*manifest, bytes);
  }
  return info;
}

absl::Status CheckpointFolder::RemoveReplaced(const std::string& id) {
  const std::string path = absl::StrCat(folder_, "/", id);
  const std::string unfinished = FilePath(path, kManifestFile) + ".new";
  if (files_->Exists(unfinished)) PENSTOCK_RETURN_IF_ERROR(files_->RemoveAll(unfinished));
  for (const std::string_view file : kStateFiles) {
    const std::string other = FilePath(path, file);
    const absl::StatusOr<CheckpointManifest> manifest = ReadManifest(files_, path);
    if (!manifest.ok() || manifest->file == file || !files_->Exists(other)) continue;
    // The manifest may have come by a rename that was not synced: a loss of power would bring back one that needs it.
    PENSTOCK_RETURN_IF_ERROR(WriteManifest(path, *manifest));
    PENSTOCK_RETURN_IF_ERROR(files_->RemoveAll(other));
  }
  return absl::OkStatus();
}

absl::Status CheckpointFolder::CheckFree(const std::string& id) const {
  if (!IsResourceId(id)) {
    return Error(absl::StatusCode::kInvalidArgument, "NAME_INVALID",
                 "a checkpoint's identifier has 1 to 63 of a-z, 0-9, _ and -, begins with a letter and ends with none "
                 "of _ and -")
        .With("field", "checkpoint_id")
        .With("value", id.substr(0, 64));
  }
  absl::MutexLock lock(&mu_);
  return index_.count(id) == 0 ? absl::OkStatus() : Taken(id);
}

absl::Status CheckpointFolder::CheckRoom(const std::string& id, int64_t bytes) const {
  return quota_ == nullptr ? absl::OkStatus() : WithValue(quota_->CheckRoom(pipeline_, bytes), "checkpoint", id);
}

absl::StatusOr<CheckpointInfo> CheckpointFolder::Save(const std::string& id, const CheckpointFacts& facts,
                                                      const NamedTensors& state, const SaveOptions& options) {
  absl::MutexLock disk_lock(&disk_mu_);
  const bool over = options.replace && Find(id).ok();
  if (!over) PENSTOCK_RETURN_IF_ERROR(CheckFree(id));
  CheckpointManifest manifest{.format = facts.place.life.empty() ? 2
                                        : facts.training.empty() ? 3
                                                                 : 4,
                              .step = facts.step,
                              .spec_digest = facts.spec_digest,
                              .rotating = facts.rotating,
                              .life = facts.place.life,
                              .sequence = facts.place.sequence,
                              .version = facts.place.version,
                              .whole = facts.place.whole,
                              .automatic = facts.place.automatic,
                              .training = facts.training,
                              .created_unix_ms = absl::ToUnixMillis(clock_->WallNow())};
  if (facts.specification != nullptr) manifest.specification = *facts.specification;
  for (const NamedTensor& tensor : state) {
    if (!IsManifestText(tensor.name)) return InvalidField("state", "has a tensor with an unusable name", tensor.name);
    manifest.names.push_back(tensor.name);
  }
  const std::string path = absl::StrCat(folder_, "/", id);
  const std::string unfinished = absl::StrCat(folder_, "/", kUnfinished, id);
  if (over) PENSTOCK_RETURN_IF_ERROR(RemoveReplaced(id));
  if (files_->Exists(unfinished)) PENSTOCK_RETURN_IF_ERROR(Clear(unfinished));  // a removal has left it
  const int64_t before = over ? TensorBytes(files_, path) : 0;
  int64_t taken = 0;  // for the elements; the few bytes of the header are known when they are written
  for (const NamedTensor& tensor : state) taken += static_cast<int64_t>(tensor.tensor.nbytes());
  if (quota_ != nullptr) {
    PENSTOCK_RETURN_IF_ERROR(WithValue(quota_->Take(pipeline_, taken, options.beyond_quota), "checkpoint", id));
  }
  // Whatever fails or throws, the quota counts what is there.
  const absl::Cleanup count = [&] {
    int64_t now = before;
    Guarded("the count of a checkpoint's bytes", [&] {
      now = TensorBytes(files_, path) + TensorBytes(files_, unfinished);  // that of a failed save may have stayed
    }).IgnoreError();
    if (quota_ != nullptr) quota_->Return(pipeline_, taken + before - now);
  };
  absl::StatusOr<CheckpointInfo> saved =
      over ? SaveOver(id, manifest, state, options.cancel) : SaveNew(id, manifest, state, options.cancel);
  if (!saved.ok()) return WithValue(saved.status(), "checkpoint", id);
  return saved;
}

absl::StatusOr<CheckpointInfo> CheckpointFolder::SaveNew(const std::string& id, CheckpointManifest& manifest,
                                                         const NamedTensors& state, const CancelToken* cancel) {
  const std::string unfinished = absl::StrCat(folder_, "/", kUnfinished, id);
  const std::string finished = absl::StrCat(folder_, "/", id);
  // Whatever fails or throws from here on, nothing of the save stays.
  absl::Cleanup give_up = [&] {
    Guarded("the end of a failed save", [&] {
      if (absl::Status removed = files_->RemoveAll(unfinished); !removed.ok()) {
        LogError("can't remove an unfinished checkpoint", {{"pipeline", pipeline_}, {"checkpoint", id}});
      }
    }).IgnoreError();
  };
  PENSTOCK_RETURN_IF_ERROR(files_->CreateDirectories(unfinished));
  PENSTOCK_RETURN_IF_ERROR(WriteState(unfinished, manifest, state, cancel));
  PENSTOCK_RETURN_IF_ERROR(WriteManifest(unfinished, manifest));
  CheckpointInfo info = InfoOf(id, manifest);
  std::map<std::string, CheckpointInfo> listed;  // made before the rename: after it, nothing can fail
  listed.emplace(id, info);
  if (absl::Status renamed = files_->Rename(unfinished, finished); !renamed.ok()) {
    // A rename whose sync failed may have happened: what nobody was told of must not come back.
    files_->RemoveAll(finished).IgnoreError();
    return renamed;
  }
  std::move(give_up).Cancel();
  absl::MutexLock lock(&mu_);
  index_.merge(listed);
  return info;
}

absl::StatusOr<CheckpointInfo> CheckpointFolder::SaveOver(const std::string& id, CheckpointManifest& manifest,
                                                          const NamedTensors& state, const CancelToken* cancel) {
  const std::string path = absl::StrCat(folder_, "/", id);
  const absl::StatusOr<CheckpointManifest> old = ReadManifest(files_, path);
  // Of one without a manifest nothing is known; its tensors stay until the new ones are there, if they can.
  const std::string_view old_file = old.ok() ? std::string_view(old->file) : kStateFiles[0];
  manifest.file = std::string(old_file == kStateFiles[0] ? kStateFiles[1] : kStateFiles[0]);
  const std::string old_tensors = FilePath(path, old_file);
  const auto remove = [&](const std::string& tensors) {
    Guarded("the end of a save", [&] {
      if (absl::Status removed = files_->RemoveAll(tensors); !removed.ok()) {
        LogError("can't remove replaced tensors", {{"pipeline", pipeline_}, {"checkpoint", id}});
      }
    }).IgnoreError();
  };
  // Whatever fails or throws before the new manifest is there, the old one stays.
  absl::Cleanup give_up = [&] {
    Guarded("the end of a failed save", [&] {
      // After a rename whose sync failed, either manifest may be there after a loss of power, and needs its tensors.
      const absl::StatusOr<CheckpointManifest> now = ReadManifest(files_, path);
      if (!now.ok() || now->file != manifest.file) remove(FilePath(path, manifest.file));
      const CheckpointInfo left = Describe(id);
      absl::MutexLock lock(&mu_);
      index_[id] = left;
    }).IgnoreError();
  };
  PENSTOCK_RETURN_IF_ERROR(files_->CreateDirectories(path));
  PENSTOCK_RETURN_IF_ERROR(WriteState(path, manifest, state, cancel));
  CheckpointInfo info = InfoOf(id, manifest);
  CheckpointInfo listed = info;  // made before the rename: after it, nothing can fail
  PENSTOCK_RETURN_IF_ERROR(WriteManifest(path, manifest));
  std::move(give_up).Cancel();
  {
    absl::MutexLock lock(&mu_);
    index_.at(id) = std::move(listed);
  }
  remove(old_tensors);
  return info;
}

std::string CheckpointFolder::FreeId(int64_t step) const {
  absl::MutexLock lock(&mu_);
  const std::string plain = absl::StrCat("step-", step);
  std::string id = plain;
  for (int i = 1; index_.count(id) != 0; ++i) id = absl::StrCat(plain, "-end", i == 1 ? "" : absl::StrCat("-", i));
  return id;
}

absl::Status CheckpointFolder::WriteState(const std::string& folder, CheckpointManifest& manifest,
                                          const NamedTensors& state, const CancelToken* cancel) {
  const auto cancelled = [cancel] {
    if (cancel == nullptr || !cancel->cancelled()) return absl::OkStatus();
    return absl::Status(Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "the save was given up"));
  };

  PENSTOCK_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files_->Create(FilePath(folder, manifest.file)));
  PENSTOCK_RETURN_IF_ERROR(WriteSafetensors(state, MetadataOf(manifest), [&](std::string_view bytes) {
    manifest.bytes += static_cast<int64_t>(bytes.size());
    manifest.crc32c = ExtendCrc32c(manifest.crc32c, bytes);
    for (; !bytes.empty(); bytes.remove_prefix(std::min(bytes.size(), kPieceBytes))) {
      PENSTOCK_RETURN_IF_ERROR(cancelled());
      PENSTOCK_RETURN_IF_ERROR(file->Append(bytes.substr(0, kPieceBytes)));
    }
    return absl::OkStatus();
  }));
  PENSTOCK_RETURN_IF_ERROR(cancelled());
  PENSTOCK_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

// It comes last and by a rename, which syncs the folder with all of its files.
absl::Status CheckpointFolder::WriteManifest(const std::string& folder, const CheckpointManifest& manifest) {
  const std::string path = FilePath(folder, kManifestFile);
  PENSTOCK_RETURN_IF_ERROR(WriteWhole(files_, path + ".new", FormatManifest(manifest)));
  return files_->Rename(path + ".new", path);
}

absl::StatusOr<LoadedCheckpoint> CheckpointFolder::Load(const std::string& id) {
  absl::MutexLock disk_lock(&disk_mu_);
  PENSTOCK_RETURN_IF_ERROR(Find(id).status());
  std::string damage;
  absl::StatusOr<LoadedCheckpoint> loaded = Read(id, &damage);
  absl::MutexLock lock(&mu_);
  if (loaded.ok()) {
    index_[id] = loaded->info;
  } else if (!damage.empty()) {
    index_[id].damage = damage;
  }
  return loaded;
}

absl::StatusOr<LoadedCheckpoint> CheckpointFolder::Read(const std::string& id, std::string* damage) {
  const std::string folder = absl::StrCat(folder_, "/", id);
  const auto corrupt = [&](std::string what) {
    *damage = std::move(what);
    return CheckpointCorrupt(id, *damage);
  };
  // A file that is gone is damage too; other faults of the disk are told as they are.
  const absl::StatusOr<CheckpointManifest> manifest = ReadManifest(files_, folder);
  if (std::string what = DamageOfManifest(manifest.status()); !what.empty()) return corrupt(std::move(what));
  PENSTOCK_RETURN_IF_ERROR(manifest.status());
  const absl::StatusOr<std::string> read = files_->Read(FilePath(folder, manifest->file));
  std::string what = DamageOf(read.status(), manifest->file, " is no regular file");
  if (!what.empty()) return corrupt(std::move(what));
  PENSTOCK_RETURN_IF_ERROR(read.status());
  const std::string& bytes = *read;
  if (static_cast<int64_t>(bytes.size()) != manifest->bytes) {
    return corrupt(DamageOfSize(*manifest, static_cast<int64_t>(bytes.size())));
  }
  if (Crc32c(bytes) != manifest->crc32c) return corrupt(manifest->file + " does not match its checksum");
  absl::StatusOr<Safetensors> file = ReadSafetensors(bytes);
  if (absl::IsResourceExhausted(file.status())) return file.status();
  if (!file.ok()) return corrupt(absl::StrCat(manifest->file, ": ", file.status().message()));
  if (file->metadata != MetadataOf(*manifest)) return corrupt(absl::StrCat(kManifestFile, " belongs to another file"));
  std::vector<std::string> names;
  for (const NamedTensor& tensor : file->tensors) names.push_back(tensor.name);
  if (names != manifest->names) {
    return corrupt(absl::StrCat(kManifestFile, " names other tensors than ", manifest->file));
  }
  LoadedCheckpoint loaded{.info = InfoOf(id, *manifest), .state = {}, .training = manifest->training};
  for (NamedTensor& tensor : file->tensors) {
    const bool of_training = manifest->format > 3 && tensor.name.starts_with(kTrainingTensors);
    if (of_training) tensor.name.erase(0, kTrainingTensors.size());
    (of_training ? loaded.training_tensors : loaded.state).push_back(std::move(tensor));
  }
  return loaded;
}

absl::StatusOr<CheckpointInfo> CheckpointFolder::Find(const std::string& id) const {
  absl::MutexLock lock(&mu_);
  auto found = index_.find(id);
  if (found == index_.end()) return CheckpointNotFound(id);
  return found->second;
}

std::vector<CheckpointInfo> CheckpointFolder::List() const {
  absl::MutexLock lock(&mu_);
  std::vector<CheckpointInfo> list;
  for (const auto& [id, info] : index_) list.push_back(info);
  return list;
}

absl::Status CheckpointFolder::Remove(const std::string& id) {
  absl::MutexLock disk_lock(&disk_mu_);
  return RemoveOne(id);
}

// It loses its name before its files go, as it got the name after they came.
absl::Status CheckpointFolder::RemoveOne(const std::string& id) {
  PENSTOCK_RETURN_IF_ERROR(Find(id).status());
  const std::string finished = absl::StrCat(folder_, "/", id);
  const std::string unfinished = absl::StrCat(folder_, "/", kUnfinished, id);
  PENSTOCK_RETURN_IF_ERROR(Clear(unfinished));
  const absl::Status renamed = files_->Rename(finished, unfinished);
  // A rename whose sync failed may have happened.
  if (!renamed.ok() && files_->Exists(finished)) return WithValue(renamed, "checkpoint", id);
  {
    absl::MutexLock lock(&mu_);
    index_.erase(id);
  }
  PENSTOCK_RETURN_IF_ERROR(Clear(unfinished));
  return absl::IsNotFound(renamed) ? absl::OkStatus() : renamed;
}

// What can't be removed counts until it can.
absl::Status CheckpointFolder::Clear(const std::string& unfinished) {
  const int64_t bytes = TensorBytes(files_, unfinished);
  absl::Status removed = files_->RemoveAll(unfinished);
  if (quota_ != nullptr) quota_->Return(pipeline_, bytes - (removed.ok() ? 0 : TensorBytes(files_, unfinished)));
  return removed;
}

absl::Status CheckpointFolder::Purge() {
  absl::MutexLock disk_lock(&disk_mu_);
  for (const CheckpointInfo& info : List()) PENSTOCK_RETURN_IF_ERROR(RemoveOne(info.id));
  PENSTOCK_RETURN_IF_ERROR(files_->RemoveAll(folder_));
  if (quota_ != nullptr) quota_->Set(pipeline_, 0);
  return absl::OkStatus();
}

}  // namespace penstock
