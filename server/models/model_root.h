#pragma once

// Exported programs in a folder of the server, by name.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/file.h"
#include "engine/ledger/memory_ledger.h"
#include "server/models/model_description.h"

namespace penstock {

// The models of one folder.
//
// Model:     A model is a file whose name is a program name (program_file.h); nothing else in the folder is looked
//            at, and links are refused. What a file holds is read once for each size and time of change, and kept.
// Owns:      nothing on disk: an operator may put files there and take them away. FileSystem outlives it.
// Threads:   Any method from any thread; all but root() and limits() touch the disk and may take long. Load() of one
//            model and Delete() of it exclude each other.
// Fails:     NAME_INVALID for what is no name; MODEL_NOT_FOUND; for content SPEC_INVALID and TENSOR_TOO_LARGE as
//            ReadExportedProgram; MODEL_TOO_LARGE and HOST_MEMORY before a file is read.
class ModelRoot {
 public:
  struct Options {
    FileSystem* files = nullptr;
    std::string root;  // empty: there are no models
    int64_t max_model_bytes = 0;
    int64_t max_root_bytes = 0;                   // of all models together; for uploads
    int64_t max_list_bytes = int64_t{256} << 20;  // that one List() reads
    // Pipelines that were made from a model and live; also those that are being made.
    std::function<std::vector<std::string>(const std::string& model)> users;
    MemoryLedger* memory = nullptr;  // where the memory of what is read is reserved; null: it is not counted
  };
  explicit ModelRoot(Options options);

  const Options& options() const { return options_; }
  bool exists() const { return !options_.root.empty(); }

  absl::StatusOr<ModelDescription> Describe(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  struct Page {
    std::vector<ModelDescription> models = {};
    bool more = false;  // there are models after these
  };
  // By name, those after `after`, at most `limit`; those that can't be used have an error. The page is shorter where
  // more than max_list_bytes of files that are not known yet would be read for it; it has at least one model if there
  // is one.
  absl::StatusOr<Page> List(const std::string& after, int limit) ABSL_LOCKS_EXCLUDED(mu_);

  // Reads the program that a specification names, if any, and fills in its digest: from the file `kept` if that is
  // there, whatever the folder has by now; else from the folder, and puts a copy there. Empty: no copy is kept.
  //
  // Fails:     also MODEL_MISMATCH if the specification names a digest, and the file has another; STORAGE_FULL.
  absl::Status Load(ModelSpec* spec, const std::string& kept = "") ABSL_LOCKS_EXCLUDED(mu_);
  // The same of a file that is in no folder.
  absl::Status LoadBytes(ModelSpec* spec, std::string bytes) const;

  // Fails: also MODEL_IN_USE, naming a pipeline.
  absl::Status Delete(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);

  // The bytes of all models, and how many they are. For uploads.
  absl::StatusOr<std::pair<int64_t, int>> Usage();
  // A reservation to hold while a file of so many bytes is in memory. `caller`: who wants it; empty: nobody known.
  //
  // Fails:     MODEL_TOO_LARGE; HOST_MEMORY.
  absl::StatusOr<MemoryReservation> HoldMemory(const std::string& name, int64_t bytes,
                                               const std::string& caller = "") const;
  // Checks the content of a file that is not a model yet; `bytes` are all of it.
  absl::StatusOr<ModelDescription> Inspect(std::string bytes) const;

  std::string PathOf(const std::string& name) const { return options_.root + "/" + name; }

 private:
  absl::StatusOr<FileInfo> Find(const std::string& name);
  // What describing it would read: 0 if it is known, or can't be read.
  int64_t BytesToRead(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  // May return a description with an error.
  absl::StatusOr<ModelDescription> Known(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);

  const Options options_;

  absl::Mutex mu_;
  std::map<std::string, std::pair<FileInfo, ModelDescription>> known_ ABSL_GUARDED_BY(mu_);
  std::multiset<std::string> loading_ ABSL_GUARDED_BY(mu_);
};

// MODEL_NOT_FOUND, naming the field and the model.
absl::Status ModelNotFound(const std::string& name);

// Fails: NAME_INVALID naming `field`.
absl::Status CheckModelName(const std::string& name, const std::string& field);

}  // namespace penstock
