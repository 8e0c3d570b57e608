// Layer kinds of AmoebaNet-D. A cell takes the outputs of the two cells before it, the nearer one first, and gives its
// own and the nearer one's; the first cell takes one tensor as both.
//   amoeba_stem      ReLU, 3 x 3 convolution, batch norm; half the size. Options: in (3), out (needed), image (224):
//                    the height and width that it is measured with
//   amoeba_cell      options: nearer, further (channels of its inputs), channels (all needed), reduction (false): it
//                    halves the size, after_reduction (false): so did the nearer cell, first (false): it takes one
//                    tensor
//   amoeba_classify  average of all pixels of the nearer one, linear map. Options: in, classes (both needed)

#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mean.h>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/model/initial_values.h"
#include "engine/model/input_checks.h"
#include "engine/model/layers/amoeba_operations.h"
#include "engine/model/layers/built_in_layers.h"

namespace penstock {
namespace {

class AmoebaStemLayer : public AmoebaBlock {
 public:
  AmoebaStemLayer(const LayerRequest& request, int64_t in, int64_t out, int64_t image)
      : image_(image), unit_(AddUnit("stem", request, ConvolutionShape::Square(in, out, 3, 2, 1))) {}

  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    const Convolution& convolution = unit_.convolution;
    return {Apply(unit_, ImageInput(inputs, "amoeba_stem", convolution.weight.scalar_type(), convolution.shape.in),
                  context)};
  }
  std::vector<TensorSignature> InputSignature() const override { return {Images("image", unit_.convolution.shape.in)}; }
  int64_t LargestOpenDimension() const override { return image_; }
  std::vector<TensorSignature> OutputSignature() const override {
    return {Images("output", unit_.convolution.shape.out)};
  }

 private:
  const int64_t image_;
  const Unit unit_;
};

struct CellOptions {
  int64_t nearer;
  int64_t further;
  int64_t channels;
  bool reduction;
  bool after_reduction;
  bool first;
};

class AmoebaCellLayer : public AmoebaBlock {
 public:
  AmoebaCellLayer(const LayerRequest& request, const CellOptions& options)
      : options_(options),
        genotype_(options.reduction ? ReductionCell() : NormalCell()),
        nearer_(AddUnit("nearer", request, ConvolutionShape::Square(options.nearer, options.channels, 1))) {
    if (options.after_reduction) {
      halving_ = AddHalving("further", request, options.further, options.channels);
    } else if (options.further != options.channels) {
      further_ = AddUnit("further", request, ConvolutionShape::Square(options.further, options.channels, 1));
    }
    for (const AmoebaStep& step : genotype_.steps) {
      const int64_t stride = options.reduction && step.state < 2 ? 2 : 1;
      operations_.push_back(AddOperation(absl::StrCat("operation", operations_.size()), request, step.operation,
                                         options.channels, stride));
    }
  }

  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    const Batch states = Arguments(inputs);
    if (states.size() < 1 || states.size() > 2) {
      ThrowInputError("amoeba_cell", "inputs", "must be one tensor or two", static_cast<int64_t>(states.size()));
    }
    const at::Tensor& nearer = states.TensorAt(0);
    const at::Tensor& further = states.TensorAt(states.size() - 1);
    CheckImage(nearer, "amoeba_cell", options_.nearer);
    CheckImage(further, "amoeba_cell", options_.further);

    std::vector<at::Tensor> made = {Apply(nearer_, nearer, context), Further(further, context)};
    for (size_t i = 0; i < operations_.size(); i += 2) {
      made.push_back(Apply(operations_[i], made[genotype_.steps[i].state], context)
                         .add(Apply(operations_[i + 1], made[genotype_.steps[i + 1].state], context)));
    }
    std::vector<at::Tensor> joined;
    for (int state : genotype_.joined) joined.push_back(made[state]);
    return Batch::Tuple(std::vector<Value>{at::cat(joined, 1), nearer});
  }
  std::vector<TensorSignature> InputSignature() const override {
    if (options_.first) return {Images("image", options_.nearer)};
    return {Images("nearer", options_.nearer), Images("further", options_.further)};
  }
  std::vector<TensorSignature> OutputSignature() const override {
    return {Images("output0", options_.channels * static_cast<int64_t>(genotype_.joined.size())),
            Images("output1", options_.nearer)};
  }

 private:
  at::Tensor Further(const at::Tensor& further, const LayerContext& context) const {
    if (halving_.has_value()) return Apply(*halving_, further, context);
    return further_.has_value() ? Apply(*further_, further, context) : further;
  }

  const CellOptions options_;
  const AmoebaGenotype& genotype_;
  const Unit nearer_;
  std::optional<Halving> halving_;
  std::optional<Unit> further_;
  std::vector<Operation> operations_;
};

class AmoebaClassifyLayer : public AmoebaBlock {
 public:
  AmoebaClassifyLayer(const LayerRequest& request, int64_t in, int64_t classes)
      : in_(in),
        classes_(classes),
        weight_(AddParameter("weight", InitialLinearWeight(request, in, classes))),
        bias_(AddParameter("bias", InitialLinearBias(request, in, classes))) {}

  Batch Forward(const Batch& inputs, const LayerContext&) override {
    const at::Tensor nearer = Arguments(inputs).TensorAt(0);
    CheckImage(nearer, "amoeba_classify", in_);
    return {at::linear(nearer.mean({2, 3}), weight_, bias_)};
  }
  // The further one may be anything: it is not used.
  std::vector<TensorSignature> InputSignature() const override {
    return {Images("nearer", in_), Images("further", -1)};
  }
  std::vector<TensorSignature> OutputSignature() const override { return {{"logits", float_type(), {-1, classes_}}}; }

 private:
  const int64_t in_;
  const int64_t classes_;
  const at::Tensor weight_;
  const at::Tensor bias_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeAmoebaStem(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  const int64_t in = reader.Int("in", 3, 1, kMaxWidth);
  const int64_t out = reader.NeededInt("out", 1, kMaxWidth);
  const int64_t image = reader.Int("image", 224, 1, kMaxWidth);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<AmoebaStemLayer>(request, in, out, image);
}

absl::StatusOr<std::unique_ptr<Layer>> MakeAmoebaCell(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  CellOptions options = {};
  options.nearer = reader.NeededInt("nearer", 1, kMaxWidth);
  options.further = reader.NeededInt("further", 1, kMaxWidth);
  options.channels = reader.NeededInt("channels", 4, kMaxWidth);
  options.reduction = reader.Bool("reduction", false);
  options.after_reduction = reader.Bool("after_reduction", false);
  options.first = reader.Bool("first", false);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  if (options.channels % 4 != 0) {
    const std::string field = absl::StrCat(request.path, "[channels]");
    return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
                 absl::StrCat(field, ": must be a multiple of 4, got ", options.channels))
        .With("field", field)
        .With("value", absl::StrCat(options.channels));
  }
  return std::make_unique<AmoebaCellLayer>(request, options);
}

absl::StatusOr<std::unique_ptr<Layer>> MakeAmoebaClassify(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  const int64_t in = reader.NeededInt("in", 1, kMaxWidth);
  const int64_t classes = reader.NeededInt("classes", 1, 1 << 24);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<AmoebaClassifyLayer>(request, in, classes);
}

}  // namespace penstock
