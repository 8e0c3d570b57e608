#include "server/models/model_root.h"

#include <algorithm>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/durable_file.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "engine/program/program_file.h"
#include "engine/program/program_model.h"
#include "engine/wire/sha256.h"
#include "engine/wire/sha256_thread.h"

namespace penstock {
namespace {

// A file's bytes, reserved for as long as somebody has them.
struct HeldBytes {
  HeldBytes(MemoryReservation held, std::string bytes) : held(std::move(held)), bytes(std::move(bytes)) {}
  const MemoryReservation held;
  const std::string bytes;
};

absl::StatusOr<std::shared_ptr<const ProgramModel>> ReadProgram(const ModelSpec& spec,
                                                                const std::shared_ptr<const HeldBytes>& content) {
  PENSTOCK_ASSIGN_OR_RETURN(
      ExportedProgram program,
      ReadExportedProgram(std::shared_ptr<const std::string>(content, &content->bytes), ProgramLimits()));
  return ProgramModel::Create(std::move(program), spec.program_cuts);
}

// Makes the program of a file that a specification names, and fills in its digest. `which`: the file, for errors.
absl::Status TakeProgram(ModelSpec* spec, const std::shared_ptr<const HeldBytes>& content, const char* which,
                         Sha256Thread& digesting) {
  digesting.Arrived(content->bytes);
  absl::StatusOr<std::shared_ptr<const ProgramModel>> program = ReadProgram(*spec, content);
  PENSTOCK_ASSIGN_OR_RETURN(const std::string digest, digesting.Finish());
  if (!spec->program_digest.empty() && spec->program_digest != digest) {
    return Error(absl::StatusCode::kFailedPrecondition, "MODEL_MISMATCH",
                 absl::StrCat("spec.model.program_digest: ", which, " is another one, ", digest, ", got ",
                              spec->program_digest))
        .With("field", "spec.model.program_digest")
        .With("value", spec->program_digest)
        .With("model", spec->program);
  }
  PENSTOCK_ASSIGN_OR_RETURN(spec->loaded_program, std::move(program));
  spec->program_digest = digest;
  return absl::OkStatus();
}

bool SameFile(const FileInfo& one, const FileInfo& other) {
  return one.bytes == other.bytes && one.changed_unix_ns == other.changed_unix_ns;
}

}  // namespace

absl::Status ModelNotFound(const std::string& name) {
  return Error(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND",
               absl::StrCat("model: is not in the model root, got ", Shortened(name)))
      .With("field", "model")
      .With("value", Shortened(name));
}

absl::Status CheckModelName(const std::string& name, const std::string& field) {
  if (IsProgramName(name)) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "NAME_INVALID",
               absl::StrCat(field,
                            ": must be 1 to 128 letters, digits, _ . -, beginning with none of . and -, and end "
                            "in .pt2, got ",
                            Shortened(name)))
      .With("field", field)
      .With("value", Shortened(name));
}

ModelRoot::ModelRoot(Options options) : options_(std::move(options)) {}

absl::StatusOr<FileInfo> ModelRoot::Find(const std::string& name) {
  PENSTOCK_RETURN_IF_ERROR(CheckModelName(name, "model"));
  if (!exists()) return ModelNotFound(name);
  absl::StatusOr<FileInfo> info = options_.files->Info(PathOf(name));
  if (absl::IsNotFound(info.status())) return ModelNotFound(name);
  return info;
}

absl::StatusOr<MemoryReservation> ModelRoot::HoldMemory(const std::string& name, int64_t bytes,
                                                        const std::string& caller) const {
  if (bytes > options_.max_model_bytes) {
    return Error(absl::StatusCode::kResourceExhausted, "MODEL_TOO_LARGE",
                 absl::StrCat("model: must have at most --max-model-bytes, ", options_.max_model_bytes, " bytes, got ",
                              bytes))
        .With("field", "byte_size")
        .With("value", absl::StrCat(bytes))
        .With("model", Shortened(name))
        .With("limit_value", absl::StrCat(options_.max_model_bytes));
  }
  absl::StatusOr<MemoryReservation> held = TakeMemory(options_.memory, {MemoryClass::kModels, caller}, bytes);
  if (held.ok()) return held;
  return WithValue(WithValue(WithPrefix(held.status(), "model: "), "field", "byte_size"), "model", Shortened(name));
}

absl::StatusOr<ModelDescription> ModelRoot::Inspect(std::string bytes) const {
  const auto size = static_cast<int64_t>(bytes.size());
  std::string digest = Sha256::Of(bytes);
  PENSTOCK_ASSIGN_OR_RETURN(ModelDescription description, DescribeProgram(std::move(bytes), ProgramLimits()));
  description.bytes = size;
  description.digest = std::move(digest);
  return description;
}

absl::StatusOr<ModelDescription> ModelRoot::Known(const std::string& name) {
  PENSTOCK_ASSIGN_OR_RETURN(const FileInfo info, Find(name));
  {
    absl::MutexLock lock(&mu_);
    const auto found = known_.find(name);
    if (found != known_.end() && SameFile(found->second.first, info)) return found->second.second;
  }
  absl::StatusOr<ModelDescription> read = Guarded("reading a model", [&]() -> absl::StatusOr<ModelDescription> {
    if (!info.plain) {
      return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
                   absl::StrCat("model: must be a plain file, got ", name))
          .With("field", "model")
          .With("value", name);
    }
    PENSTOCK_ASSIGN_OR_RETURN(const MemoryReservation held, HoldMemory(name, info.bytes));
    PENSTOCK_ASSIGN_OR_RETURN(std::string bytes, options_.files->Read(PathOf(name)));
    return Inspect(std::move(bytes));
  });
  if (absl::IsNotFound(read.status())) return ModelNotFound(name);  // it went meanwhile
  ModelDescription description;
  if (read.ok()) {
    description = *std::move(read);
  } else {
    description.error = read.status();
  }
  description.name = name;
  description.bytes = info.bytes;
  description.changed = absl::FromUnixNanos(info.changed_unix_ns);
  // What failed for a want of memory may go next time.
  if (ReasonOf(description.error) != "HOST_MEMORY") {
    absl::MutexLock lock(&mu_);
    known_[name] = {info, description};
  }
  return description;
}

absl::StatusOr<ModelDescription> ModelRoot::Describe(const std::string& name) {
  PENSTOCK_ASSIGN_OR_RETURN(ModelDescription description, Known(name));
  PENSTOCK_RETURN_IF_ERROR(description.error);
  return description;
}

int64_t ModelRoot::BytesToRead(const std::string& name) {
  const absl::StatusOr<FileInfo> info = Find(name);
  if (!info.ok() || !info->plain || !HoldMemory(name, info->bytes).ok()) return 0;
  absl::MutexLock lock(&mu_);
  const auto found = known_.find(name);
  return found != known_.end() && SameFile(found->second.first, *info) ? 0 : info->bytes;
}

absl::StatusOr<ModelRoot::Page> ModelRoot::List(const std::string& after, int limit) {
  Page page;
  if (!exists()) return page;
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> files, options_.files->List(options_.root));
  {
    absl::MutexLock lock(&mu_);
    const auto gone = [&](const auto& entry) { return !std::binary_search(files.begin(), files.end(), entry.first); };
    for (auto it = known_.begin(); it != known_.end();) it = gone(*it) ? known_.erase(it) : std::next(it);
  }
  int64_t read = 0;
  for (const std::string& file : files) {
    if (!IsProgramName(file) || file <= after) continue;
    read += BytesToRead(file);
    page.more =
        static_cast<int>(page.models.size()) == limit || (read > options_.max_list_bytes && !page.models.empty());
    if (page.more) break;
    absl::StatusOr<ModelDescription> model = Known(file);
    if (model.ok()) page.models.push_back(*std::move(model));
  }
  return page;
}

absl::Status ModelRoot::LoadBytes(ModelSpec* spec, std::string bytes) const {
  PENSTOCK_ASSIGN_OR_RETURN(MemoryReservation held, HoldMemory(spec->program, static_cast<int64_t>(bytes.size())));
  const auto content = std::make_shared<const HeldBytes>(std::move(held), std::move(bytes));
  Sha256Thread digesting;
  return TakeProgram(spec, content, "the file that was sent", digesting);
}

absl::Status ModelRoot::Load(ModelSpec* spec, const std::string& kept) {
  if (spec->program.empty()) return absl::OkStatus();
  {
    absl::MutexLock lock(&mu_);
    loading_.insert(spec->program);
  }
  const absl::Cleanup loaded = [this, program = spec->program] {
    absl::MutexLock lock(&mu_);
    loading_.erase(loading_.find(program));
  };
  const absl::Status status = [&]() -> absl::Status {
    const bool has_copy = !kept.empty() && options_.files->Exists(kept);
    PENSTOCK_ASSIGN_OR_RETURN(const FileInfo info, has_copy ? options_.files->Info(kept) : Find(spec->program));
    if (!info.plain) return ModelNotFound(spec->program);
    PENSTOCK_ASSIGN_OR_RETURN(MemoryReservation held, HoldMemory(spec->program, info.bytes));
    // The thread of the digest ends before the bytes go.
    std::string bytes;
    std::shared_ptr<const HeldBytes> content;
    Sha256Thread digesting;
    const absl::Status read = options_.files->ReadInto(
        has_copy ? kept : PathOf(spec->program), [&](std::string_view so_far) { digesting.Arrived(so_far); }, &bytes);
    if (absl::IsNotFound(read)) return ModelNotFound(spec->program);
    PENSTOCK_RETURN_IF_ERROR(read);
    content = std::make_shared<const HeldBytes>(std::move(held), std::move(bytes));
    PENSTOCK_RETURN_IF_ERROR(
        TakeProgram(spec, content, has_copy ? "the file in the journal" : "the file in the model root", digesting));
    if (!kept.empty() && !has_copy) {
      PENSTOCK_RETURN_IF_ERROR(WriteDurable(options_.files, kept + ".unfinished", kept, content->bytes));
    }
    return absl::OkStatus();
  }();
  // Where a specification is read, a model's name is one of its fields.
  if (ReasonOf(status) == "NAME_INVALID" || ReasonOf(status) == "MODEL_NOT_FOUND") {
    const bool missing = ReasonOf(status) == "MODEL_NOT_FOUND";
    return Error(
               missing ? absl::StatusCode::kNotFound : absl::StatusCode::kInvalidArgument,
               missing ? "MODEL_NOT_FOUND" : "SPEC_INVALID",
               absl::StrCat("spec.model.program: ",
                            missing ? "is not in the model root" : "must be the name of a .pt2 file in the model root",
                            ", got ", Shortened(spec->program)))
        .With("field", "spec.model.program")
        .With("value", Shortened(spec->program));
  }
  return status;
}

absl::Status ModelRoot::Delete(const std::string& name) {
  PENSTOCK_RETURN_IF_ERROR(Find(name).status());
  absl::MutexLock lock(&mu_);  // so that nobody begins to load it
  std::vector<std::string> users = options_.users ? options_.users(name) : std::vector<std::string>();
  if (loading_.count(name) != 0 && users.empty()) users.emplace_back("one that is being made");
  if (!users.empty()) {
    return Error(absl::StatusCode::kFailedPrecondition, "MODEL_IN_USE",
                 absl::StrCat("model: is used by pipelines, delete them first: ", absl::StrJoin(users, ", "), ", got ",
                              name))
        .With("field", "name")
        .With("value", name)
        .With("pipeline", users.front());
  }
  known_.erase(name);
  return options_.files->RemoveAll(PathOf(name));
}

absl::StatusOr<std::pair<int64_t, int>> ModelRoot::Usage() {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<std::string> files, options_.files->List(options_.root));
  std::pair<int64_t, int> usage;
  for (const std::string& file : files) {
    if (!IsProgramName(file)) continue;
    const absl::StatusOr<FileInfo> info = options_.files->Info(PathOf(file));
    if (!info.ok()) continue;
    usage.first += info->bytes;
    ++usage.second;
  }
  return usage;
}

}  // namespace penstock
