// Reference model `unet`: U-Net with each operator a layer of its own, so that it can be cut anywhere; its long skips
// are skip connections over layers.
//
//   encoder 0 ------------------- decoder 0 - segment      an encoder: convolutions, stash, half the size
//      encoder 1 ------------ decoder 1                    a decoder: twice the size, pop and join, convolutions
//          ...  bottleneck  ...
//
// Options: depth (5), convs (5) in each part, channels (64) of the first encoder: "U-Net (convs, channels)"; in (3),
// out (1), dropout (0.1) of channels, image (192): the height and width that it is measured with; others may be given.
// Source: Ronneberger et al., "U-Net", 2015, in the simplified form of torchgpipe's benchmarks.

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/model/layers/built_in_layers.h"
#include "engine/model/reference/reference_models.h"

namespace penstock {
namespace {

// Collects layers in order.
class UnetBuilder {
 public:
  UnetBuilder(int64_t convs, double dropout, int64_t image) : convs_(convs), dropout_(dropout), image_(image) {}

  void Add(const std::string& kind, const std::string& name, OptionMap options) {
    specs_.push_back({kind, name, std::move(options)});
  }

  // The convolutions of one part, each with dropout, norm and ReLU.
  void AddConvolutions(const std::string& part, int64_t in, int64_t middle, int64_t out) {
    for (int64_t i = 0; i < convs_; ++i) {
      const std::string name = absl::StrCat(part, "_", i, "_");
      Add("conv2d", name + "conv",
          {{"in", i == 0 ? in : middle},
           {"out", i == convs_ - 1 ? out : middle},
           {"kernel", int64_t{3}},
           {"padding", int64_t{1}},
           {"bias", false},
           {"image", image_}});
      Add("dropout2d", name + "dropout", {{"p", dropout_}});
      Add("instance_norm", name + "norm", {});
      Add("leaky_relu", name + "relu", {});
    }
  }

  std::vector<LayerSpec> Finish() { return std::move(specs_); }

 private:
  const int64_t convs_;
  const double dropout_;
  const int64_t image_;
  std::vector<LayerSpec> specs_;
};

}  // namespace

absl::StatusOr<std::vector<LayerSpec>> ExpandUnet(const OptionMap& options, const std::string& path) {
  OptionReader reader(options, path);
  const int64_t depth = reader.Int("depth", 5, 1, 10);
  const int64_t convs = reader.Int("convs", 5, 1, 80);
  const int64_t channels = reader.Int("channels", 64, 2, 1 << 12);
  const int64_t in = reader.Int("in", 3, 1, 1024);
  const int64_t out = reader.Int("out", 1, 1, 1024);
  const double dropout = reader.Double("dropout", 0.1, 0, 1);
  const int64_t image = reader.Int("image", 192, 1, 1 << 14);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  if ((channels << depth) > kMaxWidth) {
    const std::string field = absl::StrCat(path, "[channels]");
    return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
                 absl::StrCat(field, ": doubled ", depth, " times must be at most ", kMaxWidth, ", got ", channels))
        .With("field", field)
        .With("value", absl::StrCat(channels));
  }

  UnetBuilder unet(convs, dropout, image);
  for (int64_t level = 0; level < depth; ++level) {
    const int64_t wide = channels << level;
    unet.AddConvolutions(absl::StrCat("encoder", level), level == 0 ? in : wide / 2, wide, wide);
    unet.Add("stash", absl::StrCat("encoder", level, "_stash"), {{"name", absl::StrCat("level", level)}});
    unet.Add("max_pool2d", absl::StrCat("encoder", level, "_down"), {});
  }
  const int64_t deepest = channels << (depth - 1);
  unet.AddConvolutions("bottleneck", deepest, 2 * deepest, deepest);
  for (int64_t level = depth - 1; level >= 0; --level) {
    const int64_t wide = channels << level;
    unet.Add("upsample", absl::StrCat("decoder", level, "_up"), {});
    unet.Add("pop_cat", absl::StrCat("decoder", level, "_pop"), {{"name", absl::StrCat("level", level)}});
    unet.AddConvolutions(absl::StrCat("decoder", level), 2 * wide, wide / 2, wide / 2);
  }
  unet.Add("conv2d", "segment", {{"in", channels / 2}, {"out", out}, {"kernel", int64_t{1}}, {"bias", false}});
  return unet.Finish();
}

}  // namespace penstock
