#include "engine/handles/spill_folder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"
#include "engine/observe/metrics.h"

namespace penstock {
namespace {

constexpr int64_t kAlignment = 64;  // of each tensor, as LibTorch's allocator has it
constexpr size_t kMaxWriteBytes = size_t{64} << 20;

absl::Status Fault(const char* operation, int error) {
  const std::string message = absl::StrCat("can't ", operation, " a file of results: ", std::strerror(error));
  const bool full =
      error == ENOSPC || error == EDQUOT || error == EFBIG || error == ENOMEM || error == EMFILE || error == ENFILE;
  return full ? Error(absl::StatusCode::kResourceExhausted, "STORAGE_FULL", message)
              : Error(absl::StatusCode::kInternal, "BUG", message);
}

absl::Status WriteAt(int file, const char* bytes, size_t count, int64_t offset) {
  while (count > 0) {
    const ssize_t written = pwrite(file, bytes, std::min(count, kMaxWriteBytes), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Fault("write", written < 0 ? errno : ENOSPC);
    bytes += written;
    count -= static_cast<size_t>(written);
    offset += written;
  }
  return absl::OkStatus();
}

// Its elements without gaps, in the order of its strides where that is possible: they are those of memory from its data on.
at::Tensor Dense(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().resolve_conj().resolve_neg();
  return plain.is_non_overlapping_and_dense() ? plain : plain.contiguous();
}

}  // namespace

struct SpillFolder::Use {
  Use(int64_t limit, ServerMetrics* its_metrics) : limit_bytes(limit), metrics(its_metrics) {}

  const int64_t limit_bytes;
  absl::Mutex mu;
  ServerMetrics* metrics ABSL_GUARDED_BY(mu);
  int64_t bytes ABSL_GUARDED_BY(mu) = 0;
  int64_t files ABSL_GUARDED_BY(mu) = 0;

  bool Add(int64_t more_bytes) {
    absl::MutexLock lock(&mu);
    if (files >= kMaxFiles || more_bytes > limit_bytes - bytes) return false;
    Change(more_bytes, 1);
    return true;
  }
  void Remove(int64_t less_bytes) {
    absl::MutexLock lock(&mu);
    Change(-less_bytes, -1);
  }

 private:
  void Change(int64_t more_bytes, int64_t more_files) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    bytes += more_bytes;
    files += more_files;
    if (metrics != nullptr) metrics->handle_bytes[HandleTier::kFile].Set(static_cast<double>(bytes));
  }
};

// A file's place in the sums, and its memory once it is mapped.
struct SpillFolder::Mapping {
  Mapping(std::shared_ptr<Use> its_use, int64_t its_bytes) : use(std::move(its_use)), bytes(its_bytes) {}
  Mapping(const Mapping&) = delete;
  ~Mapping() {
    if (memory != MAP_FAILED) munmap(memory, static_cast<size_t>(bytes));
    if (counted) use->Remove(bytes);
  }

  const std::shared_ptr<Use> use;
  const int64_t bytes;
  bool counted = false;
  void* memory = MAP_FAILED;
};

absl::StatusOr<std::unique_ptr<SpillFolder>> SpillFolder::Open(std::string path, int64_t limit_bytes,
                                                               const std::string& flag, ServerMetrics* metrics) {
  if (metrics != nullptr) metrics->handle_limit_bytes[HandleTier::kFile].Set(static_cast<double>(limit_bytes));
  auto use = std::make_shared<Use>(limit_bytes, metrics);
  std::unique_ptr<SpillFolder> folder(new SpillFolder(std::move(path), std::move(use)));
  const absl::StatusOr<int> file = folder->NewFile();
  if (!file.ok()) {
    return InvalidField(flag, absl::StrCat("must be a folder for files: ", std::string(file.status().message())),
                        folder->path_);
  }
  close(*file);
  struct statfs system = {};
  if (statfs(folder->path_.c_str(), &system) == 0 && system.f_type == TMPFS_MAGIC) {
    LogWarning("a folder for results that memory has no room for is itself in memory", {{"flag", flag}});
  }
  return folder;
}

absl::StatusOr<int> SpillFolder::NewFile() const {
  int file = open(path_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);
  if (file >= 0) return file;
  if (errno != EOPNOTSUPP && errno != EISDIR) return Fault("make", errno);
  std::string name = path_ + "/penstock-result-XXXXXX";  // a file system without files that never had a name
  file = mkostemp(name.data(), O_CLOEXEC);
  if (file < 0) return Fault("make", errno);
  unlink(name.c_str());
  return file;
}

absl::StatusOr<HeldValues> SpillFolder::Put(const HeldValues& held) {
  int64_t bytes = 0;
  for (const NamedTensor& tensor : held.tensors) {
    if (tensor.tensor.is_cpu())
      bytes += (static_cast<int64_t>(tensor.tensor.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (bytes == 0) return held;
  const auto mapping = std::make_shared<Mapping>(use_, bytes);
  mapping->counted = use_->Add(bytes);
  if (!mapping->counted) {
    return Error(absl::StatusCode::kResourceExhausted, "STORAGE_FULL", "the folder for results is full");
  }
  PENSTOCK_ASSIGN_OR_RETURN(const int file, NewFile());
  const absl::Cleanup close_file = [file] { close(file); };
  // Blocks now: a write into a mapping whose file has none ends the process where the disk is full.
  int error = EINTR;
  while (error == EINTR) error = posix_fallocate(file, 0, bytes);
  if (error != 0) return Fault("make", error);
  mapping->memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  if (mapping->memory == MAP_FAILED) return Fault("map", errno);
  HeldValues there;
  int64_t offset = 0;
  absl::Status written;
  const auto move = [&](const at::Tensor& tensor) {
    if (!tensor.is_cpu() || !written.ok()) return tensor;
    const at::Tensor dense = Dense(tensor);
    const auto size = static_cast<int64_t>(dense.nbytes());
    written = WriteAt(file, static_cast<const char*>(dense.const_data_ptr()), static_cast<size_t>(size), offset);
    char* const data = static_cast<char*>(mapping->memory) + offset;
    offset += (size + kAlignment - 1) / kAlignment * kAlignment;
    // An empty one has no place; the mapping goes with the last tensor.
    return size == 0 ? tensor
                     : at::from_blob(
                           data, dense.sizes(), dense.strides(), [mapping](void*) {}, dense.options());
  };
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] {
    const at::NoGradGuard no_graph;
    there = MoveValues(held, move);
  }));
  PENSTOCK_RETURN_IF_ERROR(written);
  there.in_file = true;
  return there;
}

SpillFolder::~SpillFolder() {
  absl::MutexLock lock(&use_->mu);
  use_->metrics = nullptr;
}

int64_t SpillFolder::bytes() const {
  absl::MutexLock lock(&use_->mu);
  return use_->bytes;
}

int64_t SpillFolder::files() const {
  absl::MutexLock lock(&use_->mu);
  return use_->files;
}

}  // namespace penstock
