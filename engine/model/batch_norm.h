#pragma once

// Batch normalisation whose running statistics change with the step, not with the forward: what layers with batch norms
// own.
//
// LibTorch's own changes them in the middle of a forward. A forward that is repeated, or whose mini-batch fails, would
// leave its trace there, and results would depend on the order in which a schedule runs micro-batches.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>

#include "engine/base/ids.h"
#include "engine/model/layer.h"

namespace penstock {

struct BatchNormOptions {
  int64_t features = 0;
  double eps = 1e-5;
  std::optional<double> momentum = 0.1;  // unset: the running statistics are the plain average of all that was seen
  bool affine = true;                    // whether it has a weight and a bias
  bool track = true;                     // whether it has running statistics; without, evaluation uses the batch's own
  std::optional<bool> deferred = {};     // unset: as the model says
};

// Normalises each feature (dimension 1) over all other dimensions.
//
// Model:     training normalises with the statistics of the micro-batch, evaluation with the running ones. Plain: each
//            micro-batch counts as one update of the running statistics. Deferred: all micro-batches of a mini-batch
//            are merged into one update, as if it had come in one piece. The stored variance is the unbiased one.
// Owns:      the notes of training forwards since the last Discard; the tensors are the layer's.
// Threads:   one at a time: the thread of the stage that holds the layer.
// Lifecycle: any number of Apply; then Commit with the step, and Discard when it is over or its mini-batch failed.
// Fails:     Apply throws (RunTorch) INVALID_ARGUMENT / TENSOR_SIGNATURE; SetNotes throws MODEL_MISMATCH.
class BatchNorm {
 public:
  // The layer's tensors; all but `options` may be undefined, as the options say.
  struct Tensors {
    at::Tensor weight;
    at::Tensor bias;
    at::Tensor running_mean;
    at::Tensor running_var;
    at::Tensor num_batches_tracked;
  };
  BatchNorm(const BatchNormOptions& options, bool deferred, Tensors tensors)
      : options_(options), deferred_(deferred), tensors_(std::move(tensors)) {}

  // A training forward notes what it saw, unless it is a recomputation.
  at::Tensor Apply(const at::Tensor& input, const LayerContext& context);

  // Brings the notes into the running statistics, in ascending order of micro-batches. They stay until Discard.
  void Commit();
  // Forgets the notes of micro-batches from `first` on.
  void Discard(MicroBatchIndex first);

  // The notes, each micro-batch a row of every tensor; none: no tensors. And back.
  NamedTensors Notes() const;
  void SetNotes(const NamedTensors& notes);

  bool deferred() const { return deferred_; }

 private:
  // What one micro-batch said of every feature.
  struct Note {
    at::Tensor mean;      // double
    at::Tensor variance;  // double, unbiased; 0 for a single value
    int64_t count;        // of values per feature
  };

  static Note Merged(const Note& left, const Note& right);
  void Update(const Note& note);

  const BatchNormOptions options_;
  const bool deferred_;
  const Tensors tensors_;
  std::map<MicroBatchIndex, Note> notes_;
};

}  // namespace penstock
