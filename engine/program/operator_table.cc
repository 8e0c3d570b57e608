#include "engine/program/operator_table.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "absl/strings/str_cat.h"

namespace penstock {
namespace {

constexpr std::string_view kAten = "torch.ops.aten.";

// Operators that compute values from values and do nothing else: no files, no storages, no callbacks, no process-wide
// state. An operator in place stands here by its own name.
constexpr std::string_view kPlainOperators[] = {
    // sizes and views
    "alias as_strided atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to chunk contiguous detach "
    "detach_ diagonal expand expand_as flatten flip movedim moveaxis narrow numpy_T mT permute pixel_shuffle "
    "pixel_unshuffle ravel repeat repeat_interleave reshape reshape_as roll rot90 select slice split "
    "split_with_sizes squeeze squeeze_ swapaxes swapdims t t_ tensor_split tile transpose transpose_ unbind "
    "unflatten unfold unsqueeze unsqueeze_ view view_as _unsafe_view channel_shuffle im2col col2im",
    // copies and types
    "_to_copy clone copy copy_ lift_fresh lift_fresh_copy to type_as _cast_Float _cast_Half _cast_Int _cast_Long",
    // new tensors
    "arange empty empty_like empty_permuted eye fill fill_ full full_like linspace new_empty new_full new_ones "
    "new_zeros ones ones_like scalar_tensor zero zero_ zeros zeros_like tril_indices triu_indices one_hot "
    "meshgrid complex polar view_as_complex view_as_real real imag",
    // joining, choosing, writing by index
    "cat concat column_stack dstack embedding gather hstack index index_add index_add_ index_copy index_copy_ "
    "index_fill index_fill_ index_put index_put_ index_select masked_fill masked_fill_ masked_scatter "
    "masked_select scatter scatter_ scatter_add scatter_add_ scatter_reduce select_scatter slice_scatter "
    "diagonal_scatter stack take take_along_dim tril tril_ triu triu_ vstack where nonzero argwhere "
    "constant_pad_nd pad reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d",
    // element by element
    "__and__ __iand__ __ior__ __or__ __xor__ __lshift__ __rshift__ abs abs_ absolute acos acosh add add_ addcdiv "
    "addcdiv_ addcmul addcmul_ asin asinh atan atan2 atanh bitwise_and bitwise_and_ bitwise_left_shift "
    "bitwise_not bitwise_or bitwise_or_ bitwise_right_shift bitwise_xor ceil ceil_ clamp clamp_ clamp_max "
    "clamp_max_ clamp_min clamp_min_ clip clip_ copysign cos cos_ cosh deg2rad div div_ divide eq eq_ erf erf_ "
    "erfc erfinv exp exp2 exp_ expm1 floor floor_ floor_divide fmax fmin fmod frac ge greater greater_equal gt "
    "hypot isclose isfinite isinf isnan le lerp lerp_ less less_equal log log10 log1p log2 log_ logaddexp "
    "logical_and logical_and_ logical_not logical_not_ logical_or logical_or_ logical_xor lt maximum minimum mul "
    "mul_ multiply nan_to_num nan_to_num_ ne neg neg_ negative not_equal positive pow pow_ reciprocal reciprocal_ "
    "remainder round round_ rsqrt rsqrt_ rsub sgn sigmoid sigmoid_ sign sin sin_ sinc sinh sqrt sqrt_ square "
    "square_ sub sub_ subtract tan tanh tanh_ true_divide trunc xlogy lgamma digamma heaviside",
    // activations
    "celu elu elu_ gelu gelu_ glu hardshrink hardsigmoid hardsigmoid_ hardswish hardswish_ hardtanh hardtanh_ "
    "leaky_relu leaky_relu_ log_sigmoid mish mish_ prelu _prelu_kernel relu relu6 relu6_ relu_ selu selu_ silu "
    "silu_ softplus softshrink softsign threshold threshold_",
    // sums over dimensions
    "all amax amin aminmax any argmax argmin argsort bincount count_nonzero cummax cummin cumprod cumsum cumsum_ "
    "diff linalg_norm linalg_vector_norm log_softmax logcumsumexp logsumexp max mean median min nanmean nansum "
    "norm prod _softmax _log_softmax softmax sort std std_mean sum topk var var_mean kthvalue searchsorted "
    "bucketize _safe_softmax",
    // products
    "addbmm addmm addmm_ addmv baddbmm bilinear bmm chain_matmul cdist cosine_similarity cross dot einsum inner "
    "kron linalg_cross linear matmul mm mv outer pairwise_distance tensordot trace diag diag_embed diagflat",
    // normalisation
    "group_norm instance_norm layer_norm native_group_norm native_layer_norm rms_norm _fused_rms_norm "
    "local_response_norm renorm _weight_norm",
    // convolutions, pooling, resizing
    "_adaptive_avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d "
    "adaptive_max_pool2d adaptive_max_pool3d affine_grid_generator avg_pool1d avg_pool2d avg_pool3d conv1d conv2d "
    "conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution grid_sampler grid_sampler_2d "
    "grid_sampler_3d max_pool1d max_pool2d max_pool2d_with_indices max_pool3d upsample_bicubic2d "
    "upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa max_unpool2d",
    // losses
    "binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy_loss "
    "hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss nll_loss nll_loss2d nll_loss_nd "
    "poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss multilabel_margin_loss "
    "multi_margin_loss gaussian_nll_loss",
};

struct SpecialOperator {
  std::string_view name;
  OperatorKind kind;
};

constexpr SpecialOperator kSpecialOperators[] = {
    {"_assert_async", OperatorKind::kAssertion},
    {"_assert_scalar", OperatorKind::kAssertion},
    {"_assert_tensor_metadata", OperatorKind::kAssertion},
    {"sym_constrain_range", OperatorKind::kAssertion},
    {"sym_constrain_range_for_size", OperatorKind::kAssertion},
    {"batch_norm", OperatorKind::kBatchNorm},
    {"dropout", OperatorKind::kDropout},
    {"dropout_", OperatorKind::kDropout},
    {"feature_dropout", OperatorKind::kFeatureDropout},
    {"feature_dropout_", OperatorKind::kFeatureDropout},
    {"scaled_dot_product_attention", OperatorKind::kAttention},
    {"bernoulli", OperatorKind::kRandom},
    {"bernoulli_", OperatorKind::kRandom},
    {"exponential_", OperatorKind::kRandom},
    {"multinomial", OperatorKind::kRandom},
    {"normal_", OperatorKind::kRandom},
    {"rand", OperatorKind::kRandom},
    {"rand_like", OperatorKind::kRandom},
    {"randint", OperatorKind::kRandom},
    {"randint_like", OperatorKind::kRandom},
    {"randn", OperatorKind::kRandom},
    {"randn_like", OperatorKind::kRandom},
    {"random_", OperatorKind::kRandom},
    {"randperm", OperatorKind::kRandom},
    {"uniform_", OperatorKind::kRandom},
    {"gru", OperatorKind::kRecurrent},
    {"lstm", OperatorKind::kRecurrent},
    {"rnn_relu", OperatorKind::kRecurrent},
    {"rnn_tanh", OperatorKind::kRecurrent},
    {"sym_numel", OperatorKind::kSymbol},
    {"sym_size", OperatorKind::kSymbol},
};

// Python's functions on sizes.
constexpr std::string_view kSymbolTargets[] = {
    "_operator.add",  "_operator.and_", "_operator.eq",  "_operator.floordiv", "_operator.ge",  "_operator.gt",
    "_operator.le",   "_operator.lt",   "_operator.mod", "_operator.mul",      "_operator.ne",  "_operator.neg",
    "_operator.not_", "_operator.or_",  "_operator.pos", "_operator.pow",      "_operator.sub", "_operator.truediv",
    "math.ceil",      "math.floor",     "math.trunc",    "torch.sym_float",    "torch.sym_int", "torch.sym_ite",
    "torch.sym_max",  "torch.sym_min",  "torch.sym_not"};

}  // namespace

OperatorNames NamesOfOperator(std::string_view target) {
  if (target.substr(0, kAten.size()) != kAten) return {};
  const std::string_view rest = target.substr(kAten.size());
  const size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return {};
  const std::string_view overload = rest.substr(dot + 1);
  return {std::string("aten::").append(rest.substr(0, dot)), std::string(overload == "default" ? "" : overload)};
}

OperatorKind KindOfOperator(std::string_view target) {
  static const auto* const table = [] {
    auto* const kinds = new std::unordered_map<std::string_view, OperatorKind>;
    for (const std::string_view group : kPlainOperators) {
      for (size_t begin = 0; begin < group.size();) {
        const size_t end = std::min(group.find(' ', begin), group.size());
        kinds->emplace(group.substr(begin, end - begin), OperatorKind::kPlain);
        begin = end + 1;
      }
    }
    for (const SpecialOperator& special : kSpecialOperators) kinds->emplace(special.name, special.kind);
    return kinds;
  }();
  if (std::count(std::begin(kSymbolTargets), std::end(kSymbolTargets), target) != 0) return OperatorKind::kSymbol;
  const std::string name = NamesOfOperator(target).name;
  if (name.empty()) return OperatorKind::kUnknown;
  const auto found = table->find(std::string_view(name).substr(6));
  return found == table->end() ? OperatorKind::kUnknown : found->second;
}

std::vector<std::string> UnknownOperators(const ProgramGraph& graph) {
  std::set<std::string> unknown;
  for (const ProgramNode& node : graph.nodes) {
    if (KindOfOperator(node.target) == OperatorKind::kUnknown) unknown.insert(node.target);
  }
  return {unknown.begin(), unknown.end()};
}

}  // namespace penstock
