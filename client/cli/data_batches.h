#pragma once

// Mini-batches of a file's arrays, by the names of a pipeline's signature.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/array_file.h"
#include "client/cli/batch.h"
#include "penstock/v1/pipeline.pb.h"

namespace penstock {

// The arrays that a pipeline learns from.
//
// Model:     Each input of the signature is the array of its name. The target, where the pipeline's loss has one, is the
//            array that is named for it, else the one of the target's name in the signature, else `target`, else
//            `labels`, if that is no input. Other arrays are not read. Rows are in the model's type, as CastTo() makes
//            them.
// Threads:   any method from any thread.
// Fails:     usage errors that name the file and the array: it is not there, or has other rows than the first input.
class DataRows {
 public:
  // `target` is the array's name; empty: as the model says.
  static absl::StatusOr<DataRows> Create(const ArrayFile& file, const v1::ModelSignature& signature,
                                         const std::string& target);

  int64_t rows() const { return rows_; }
  absl::StatusOr<Batch> BatchOf(std::span<const int64_t> rows) const;

 private:
  struct Column {
    std::string name;  // of the input
    FileArray array;
    DataType type;  // that the model takes; kUnspecified: any
  };
  absl::StatusOr<Column> Open(const ArrayFile& file, const std::string& array, const std::string& name, DataType type);

  int64_t rows_ = -1;  // of all columns
  std::vector<Column> inputs_;
  std::optional<Column> target_;
};

// Mini-batches of `batch` rows for training, in RowOrder.
//
// Fails: a usage error of --batch if there are not so many rows.
absl::StatusOr<BatchSource> ShuffledBatches(DataRows data, int64_t batch, uint64_t seed);

// All rows once, in their order; the last mini-batch may have fewer.
BatchSource BatchesInOrder(DataRows data, int64_t batch);

}  // namespace penstock
