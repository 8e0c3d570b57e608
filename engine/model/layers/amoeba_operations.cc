#include "engine/model/layers/amoeba_operations.h"

#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>

#include "absl/strings/str_cat.h"

namespace penstock {

using enum AmoebaOperation;

// The joined states of a normal cell are those of the authors' TensorFlow code, not of the paper's drawing: only with
// them have the models the sizes that the GPipe paper tells.
const AmoebaGenotype& NormalCell() {
  static const auto* const cell = new AmoebaGenotype{{{1, kConv1x1},
                                                      {1, kMaxPool3x3},
                                                      {1, kNone},
                                                      {0, kConv1x7And7x1},
                                                      {0, kConv1x1},
                                                      {0, kConv1x7And7x1},
                                                      {2, kMaxPool3x3},
                                                      {2, kNone},
                                                      {1, kAveragePool3x3},
                                                      {5, kConv1x1}},
                                                     {0, 3, 4, 6}};
  return *cell;
}

const AmoebaGenotype& ReductionCell() {
  static const auto* const cell = new AmoebaGenotype{{{0, kMaxPool2x2},
                                                      {0, kMaxPool3x3},
                                                      {2, kNone},
                                                      {1, kConv3x3},
                                                      {2, kConv1x7And7x1},
                                                      {2, kMaxPool3x3},
                                                      {3, kNone},
                                                      {1, kMaxPool2x2},
                                                      {2, kAveragePool3x3},
                                                      {3, kConv1x1}},
                                                     {4, 5, 6}};
  return *cell;
}

AmoebaBlock::Unit AmoebaBlock::AddUnit(const std::string& name, const LayerRequest& request,
                                       const ConvolutionShape& shape) {
  const Convolution convolution = AddConvolution(name + ".conv", request, shape);
  return {convolution, AddBatchNorm(name + ".norm", request, shape.out)};
}

AmoebaBlock::Halving AmoebaBlock::AddHalving(const std::string& name, const LayerRequest& request, int64_t in,
                                             int64_t out) {
  const ConvolutionShape shape = ConvolutionShape::Square(in, out / 2, 1, 2);
  const Convolution even = AddConvolution(name + ".even", request, shape);
  const Convolution odd = AddConvolution(name + ".odd", request, shape);
  return {even, odd, AddBatchNorm(name + ".norm", request, out)};
}

AmoebaBlock::Operation AmoebaBlock::AddOperation(const std::string& name, const LayerRequest& request,
                                                 AmoebaOperation kind, int64_t channels, int64_t stride) {
  Operation operation{.kind = kind, .stride = stride, .units = {}, .halving = {}};
  const int64_t narrow = channels / 4;
  const auto add = [&](const ConvolutionShape& shape) {
    operation.units.push_back(AddUnit(absl::StrCat(name, ".unit", operation.units.size()), request, shape));
  };
  if (kind == kNone && stride > 1) operation.halving = AddHalving(name, request, channels, channels);
  if (kind == kConv1x1) add(ConvolutionShape::Square(channels, channels, 1, stride));
  if (kind == kConv3x3) {
    add(ConvolutionShape::Square(channels, narrow, 1));
    add(ConvolutionShape::Square(narrow, narrow, 3, stride, 1));
    add(ConvolutionShape::Square(narrow, channels, 1));
  }
  if (kind == kConv1x7And7x1) {
    add(ConvolutionShape::Square(channels, narrow, 1));
    add({.in = narrow, .out = narrow, .kernel = {1, 7}, .stride = {1, stride}, .padding = {0, 3}});
    add({.in = narrow, .out = narrow, .kernel = {7, 1}, .stride = {stride, 1}, .padding = {3, 0}});
    add(ConvolutionShape::Square(narrow, channels, 1));
  }
  return operation;
}

at::Tensor AmoebaBlock::Apply(const Unit& unit, const at::Tensor& input, const LayerContext& context) {
  return unit.norm->Apply(unit.convolution.Apply(at::relu(input)), context);
}

at::Tensor AmoebaBlock::Apply(const Halving& halving, const at::Tensor& input, const LayerContext& context) {
  const at::Tensor positive = at::relu(input);
  const at::Tensor shifted = at::constant_pad_nd(positive, {-1, 1, -1, 1});  // one pixel off before, a zero after
  return halving.norm->Apply(at::cat({halving.even.Apply(positive), halving.odd.Apply(shifted)}, 1), context);
}

at::Tensor AmoebaBlock::Apply(const Operation& operation, const at::Tensor& input, const LayerContext& context) {
  const int64_t stride = operation.stride;
  switch (operation.kind) {
    case kNone:
      return operation.halving.has_value() ? Apply(*operation.halving, input, context) : input;
    case kAveragePool3x3:
      return at::avg_pool2d(input, {3, 3}, {stride, stride}, {1, 1}, /*ceil_mode=*/false, /*count_include_pad=*/false);
    case kMaxPool2x2:  // an odd size is rounded up, as the other operations do
      return at::max_pool2d(input, {2, 2}, {stride, stride}, {0, 0}, {1, 1}, /*ceil_mode=*/true);
    case kMaxPool3x3:
      return at::max_pool2d(input, {3, 3}, {stride, stride}, {1, 1});
    case kConv1x1:
    case kConv3x3:
    case kConv1x7And7x1:
      break;
  }
  at::Tensor value = input;
  for (const Unit& unit : operation.units) value = Apply(unit, value, context);
  return value;
}

}  // namespace penstock
