#include "tests/transparency/written_out_models.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "absl/strings/str_cat.h"

namespace penstock::testing {
namespace {

// --- mlp ---

constexpr int64_t kMlpWidth = 6;
constexpr int kMlpBlocks = 4;
constexpr double kMlpDropout = 0.2;

at::Tensor Mlp(WrittenOutPass& pass, const at::Tensor& input) {
  at::Tensor x = input;
  for (int i = 0; i < kMlpBlocks; ++i) {
    const std::string block = absl::StrCat("block", i);
    x = pass.Dropout(Relu(pass.Linear(x, block + ".weight", block + ".bias")), kMlpDropout, i);
  }
  return x;
}

ModelSpec MlpSpec() {
  return {.name = "mlp",
          .options = {{"layers", int64_t{kMlpBlocks}}, {"width", kMlpWidth}, {"dropout", kMlpDropout}},
          .layers = {}};
}

// --- gpt ---

constexpr int64_t kVocabulary = 11;
constexpr int kGptBlocks = 2;
constexpr int64_t kGptWidth = 8;
constexpr int64_t kHeads = 2;
constexpr int64_t kSequence = 5;
constexpr double kGptDropout = 0.1;

at::Tensor Gpt(WrittenOutPass& pass, const at::Tensor& tokens) {
  const at::Tensor places = pass["embedding.position.weight"].slice(0, 0, tokens.size(1));
  at::Tensor x = pass.Dropout(at::embedding(pass["embedding.token.weight"], tokens) + places, kGptDropout, 0);
  for (int i = 0; i < kGptBlocks; ++i) {
    const std::string attention = absl::StrCat("block", i, ".attention.");
    const std::string feed = absl::StrCat("block", i, ".feed_forward.");
    at::Tensor y = pass.LayerNorm(x, attention + "norm");
    y = pass.Linear(y, attention + "query_key_value.weight", attention + "query_key_value.bias");
    y = pass.Linear(pass.Attention(y, kHeads), attention + "projection.weight", attention + "projection.bias");
    x = x + pass.Dropout(y, kGptDropout, i + 1);
    y = pass.Linear(pass.LayerNorm(x, feed + "norm"), feed + "expand.weight", feed + "expand.bias");
    y = pass.Linear(Gelu(y), feed + "contract.weight", feed + "contract.bias");
    x = x + pass.Dropout(y, kGptDropout, i + 1);
  }
  return pass.Linear(pass.LayerNorm(x, "head.norm"), "head.weight");
}

ModelSpec GptSpec() {
  return {.name = "gpt",
          .options = {{"vocab", kVocabulary},
                      {"blocks", int64_t{kGptBlocks}},
                      {"width", kGptWidth},
                      {"heads", kHeads},
                      {"sequence", kSequence},
                      {"dropout", kGptDropout}},
          .layers = {}};
}

// --- A convolutional net ---

constexpr int64_t kChannels = 2;
constexpr int64_t kImage = 6;
constexpr int64_t kClasses = 3;
constexpr double kChannelDropout = 0.25;

template <bool deferred>
at::Tensor ConvNet(WrittenOutPass& pass, const at::Tensor& images) {
  at::Tensor x = pass.BatchNorm(pass.Convolution(images, "conv1.weight"), "norm1", {.deferred = deferred});
  x = pass.Convolution(HalfSize(Relu(x)), "conv2.weight");
  x = Gelu(pass.BatchNorm(x, "norm2", {.cumulative = true, .deferred = deferred}));
  x = pass.Dropout2d(x, kChannelDropout, 7);
  return pass.Linear(x.mean({2, 3}), "head.weight", "head.bias");
}

ModelSpec ConvNetSpec(bool deferred) {
  ModelSpec model;
  const auto convolution = [](int64_t in, int64_t out) {
    return OptionMap{{"in", in}, {"out", out}, {"padding", int64_t{1}}, {"bias", false}, {"image", kImage}};
  };
  model.layers = {{"conv2d", "conv1", convolution(kChannels, 4)},
                  {"batch_norm", "norm1", {{"features", int64_t{4}}}},
                  {"relu", "relu", {}},
                  {"max_pool2d", "half", {}},
                  {"conv2d", "conv2", convolution(4, 5)},
                  {"batch_norm", "norm2", {{"features", int64_t{5}}, {"cumulative", true}}},
                  {"gelu", "gelu", {}},
                  {"dropout2d", "drop", {{"p", kChannelDropout}}},
                  {"global_avg_pool", "mean", {}},
                  {"flatten", "flat", {}},
                  {"linear", "head", {{"in", int64_t{5}}, {"out", kClasses}}}};
  model.deferred_batch_norm = deferred;
  return model;
}

// --- A U-Net of two levels ---

constexpr int64_t kUnetImage = 8;
constexpr double kUnetDropout = 0.1;

at::Tensor Unet(WrittenOutPass& pass, const at::Tensor& images) {
  const auto part = [&pass](const at::Tensor& input, const std::string& name, int64_t layer) {
    const at::Tensor x = pass.Convolution(input, name + "_0_conv.weight");
    return LeakyRelu(pass.InstanceNorm(pass.Dropout2d(x, kUnetDropout, layer + 1)));
  };
  const at::Tensor large = part(images, "encoder0", 0);
  const at::Tensor small = part(HalfSize(large), "encoder1", 6);
  at::Tensor x = part(HalfSize(small), "bottleneck", 12);
  x = part(at::cat({DoubleSize(x), small}, 1), "decoder1", 18);
  x = part(at::cat({DoubleSize(x), large}, 1), "decoder0", 24);
  return pass.Convolution(x, "segment.weight");
}

ModelSpec UnetSpec() {
  return {.name = "unet",
          .options = {{"depth", int64_t{2}},
                      {"convs", int64_t{1}},
                      {"channels", int64_t{2}},
                      {"in", int64_t{1}},
                      {"dropout", kUnetDropout},
                      {"image", kUnetImage}},
          .layers = {}};
}

// --- A residual net with tied weights ---

constexpr int64_t kTiedWidth = 4;

at::Tensor Tied(WrittenOutPass& pass, const at::Tensor& input) {
  const at::Tensor around = Gelu(pass.Linear(input, "a.weight", "a.bias"));
  at::Tensor x = pass.LayerNorm(pass.Linear(around, "a.weight", "b.bias"), "norm");
  x = pass.Dropout(x + around, 0.3, 6);
  return pass.Linear(x, "a.weight", "a.bias");
}

ModelSpec TiedSpec() {
  const OptionMap square = {{"in", kTiedWidth}, {"out", kTiedWidth}};
  ModelSpec model;
  model.layers = {{"linear", "a", square},
                  {"gelu", "gelu", {}},
                  {"stash", "stash", {}},
                  {"linear", "b", square},
                  {"layer_norm", "norm", {{"width", kTiedWidth}}},
                  {"pop_add", "pop", {}},
                  {"dropout", "drop", {{"p", 0.3}}},
                  {"linear", "c", square}};
  model.ties = {{{"a.weight", "b.weight", "c.weight"}}, {{"a.bias", "c.bias"}}};
  return model;
}

// --- How they train ---

// Adam divides a gradient by its own size, and so makes rounding errors of a gradient that is zero as large as any
// step: `epsilon` is above them.
OptimizerSpec Adam(double epsilon) {
  OptimizerSpec optimizer;
  optimizer.name = "adamw";
  optimizer.options = {{"learning_rate", 0.01}, {"weight_decay", 0.1}, {"epsilon", epsilon}};
  optimizer.clip_norm = 0.4;
  optimizer.learning_rate_schedule = {"warmup_cosine", 2, 6, 0.1};
  return optimizer;
}

OptimizerSpec Momentum() {
  OptimizerSpec optimizer;
  optimizer.name = "sgd";
  optimizer.options = {{"learning_rate", 0.1}, {"momentum", 0.9}, {"weight_decay", 0.05}, {"nesterov", true}};
  optimizer.learning_rate_schedule = {"warmup_cosine", 1, 4, 0.2};
  return optimizer;
}

OptimizerSpec Plain() {
  OptimizerSpec optimizer;
  optimizer.name = "sgd";
  optimizer.options = {{"learning_rate", 0.1}};
  return optimizer;
}

constexpr double kDoubleTolerance = 1e-10;
constexpr double kFloatTolerance = 1e-5;
constexpr double kNarrowTolerance = 1e-2;

}  // namespace

std::vector<WrittenOutCase> WrittenOutCases() {
  const std::vector<WrittenOutCase> models = {
      {"mlp", {.model = MlpSpec(), .loss = {"mean_squared_error", {}}}, Mlp, kMlpBlocks, "input"},
      {"gpt", {.model = GptSpec(), .loss = {"cross_entropy", {}}}, Gpt, kGptBlocks + 2, "tokens"},
      {"convolutions", {.model = ConvNetSpec(false), .loss = {"cross_entropy", {}}}, ConvNet<false>, 11, "image"},
      {"deferred", {.model = ConvNetSpec(true), .loss = {"cross_entropy", {}}}, ConvNet<true>, 11, "image"},
      {"unet", {.model = UnetSpec(), .loss = {"binary_cross_entropy", {}}}, Unet, 29, "image"},
      {"tied", {.model = TiedSpec(), .loss = {"mean_squared_error", {}}}, Tied, 8, "input"},
  };
  std::vector<WrittenOutCase> cases;
  for (const WrittenOutCase& model : models) {
    for (const std::string precision : {"fp64", "fp32", "bf16"}) {
      // What these two answer after a step differs by 1.5 %: roundings, but none that a bound of 1 % could tell from a
      // fault.
      if (precision == "bf16" && (model.name == "gpt" || model.name == "unet")) continue;
      WrittenOutCase one = model;
      one.name = absl::StrCat(model.name, "_", precision);
      one.spec.seed = 7;
      one.spec.optimizer = model.name == "tied" ? Momentum() : Adam(precision == "fp64" ? 1e-8 : 1e-3);
      // Norms and AdamW on small gradients blow up what bf16 rounds, in one run more than in another: no bound would
      // tell after several steps, nor of single weights.
      one.brief = precision == "bf16" && model.name != "mlp" && model.name != "tied";
      if (one.brief) one.spec.optimizer = Plain();
      one.spec.model.dtype = precision == "fp64" ? "fp64" : "fp32";
      one.spec.model.autocast = precision == "bf16" ? "bf16" : "";
      one.tolerance = precision == "fp64" ? kDoubleTolerance : precision == "fp32" ? kFloatTolerance : kNarrowTolerance;
      cases.push_back(one);
    }
  }
  return cases;
}

WrittenOutBatch WrittenOutBatchOf(const WrittenOutCase& one, int number, int64_t rows) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1000 + number));
  const auto normal = [&](std::vector<int64_t> shape) {
    return at::randn(shape, generator, one.spec.model.dtype == "fp64" ? at::kDouble : at::kFloat);
  };
  const auto labels = [&](int64_t classes, std::vector<int64_t> shape) {
    return at::randint(classes, shape, generator, at::kLong);
  };
  if (one.model == Mlp) return {normal({rows, kMlpWidth}), normal({rows, kMlpWidth})};
  if (one.model == Tied) return {normal({rows, kTiedWidth}), normal({rows, kTiedWidth})};
  if (one.model == Unet) {
    const at::Tensor images = normal({rows, 1, kUnetImage, kUnetImage});
    return {images, images.sigmoid()};
  }
  if (one.model == Gpt) {
    const at::Tensor tokens = labels(kVocabulary, {rows, kSequence});
    const at::Tensor next = labels(kVocabulary, {rows, kSequence});
    return {tokens, next.masked_fill(next < 3, -100)};  // about a quarter does not count
  }
  return {normal({rows, kChannels, kImage, kImage}), labels(kClasses, {rows})};
}

}  // namespace penstock::testing
