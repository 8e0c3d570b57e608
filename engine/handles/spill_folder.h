#pragma once

// Results in files: what memory has no room for.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tensor/held_values.h"

namespace penstock {

class ServerMetrics;

// Puts the elements of values into files of a folder, and maps the files.
//
// Model:     one file per result, without a name: nothing is left of it when the last tensor of the result goes, or the
//            process. The tensors have the same bits, sizes and strides as before. Who reads them has the kernel read
//            the file; what a reader writes goes into a copy of its own.
// Owns:      no file: the tensors do. It may go before they do.
// Threads:   any method from any thread.
// Units:     bytes.
// Fails:     RESOURCE_EXHAUSTED / STORAGE_FULL where the folder's limit, the number of files or the disk leaves no room;
//            INTERNAL for other faults of the machine. Open(): INVALID_ARGUMENT / FIELD_INVALID naming the flag.
class SpillFolder {
 public:
  static constexpr int64_t kMaxFiles = 16'384;  // a process may have some 65,000 mappings

  // `flag` names the folder in errors. `metrics` may be null.
  static absl::StatusOr<std::unique_ptr<SpillFolder>> Open(std::string path, int64_t limit_bytes,
                                                           const std::string& flag, ServerMetrics* metrics);

  ~SpillFolder();  // values that outlive it are in no metric any more

  // The same values on disk; tensors that are on a device stay there.
  absl::StatusOr<HeldValues> Put(const HeldValues& held);

  int64_t bytes() const;
  int64_t files() const;

 private:
  struct Use;
  struct Mapping;

  SpillFolder(std::string path, std::shared_ptr<Use> use) : path_(std::move(path)), use_(std::move(use)) {}
  absl::StatusOr<int> NewFile() const;  // its descriptor

  const std::string path_;
  const std::shared_ptr<Use> use_;
};

}  // namespace penstock
