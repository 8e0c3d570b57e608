// Reference model `resnet`: stem, bottlenecks in four groups, head; each a layer.
// Options: depth (101; also 14, 26, 50, 152) or the numbers of bottlenecks in the groups, blocks1 to blocks4; width
// (64) of the first group, channels (3), classes (1000), image (224): the height and width that the model is measured
// with; others may be given.
// Source: He et al., "Deep residual learning for image recognition", 2015.

#include <array>
#include <map>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/model/reference/reference_models.h"

namespace penstock {
namespace {

constexpr size_t kGroups = 4;
constexpr int64_t kExpansion = 4;  // what a bottleneck gives is so much wider than it is

const std::map<int64_t, std::array<int64_t, kGroups>>& BlocksOfDepth() {
  static const auto* const blocks = new std::map<int64_t, std::array<int64_t, kGroups>>{
      {14, {1, 1, 1, 1}}, {26, {2, 2, 2, 2}}, {50, {3, 4, 6, 3}}, {101, {3, 4, 23, 3}}, {152, {3, 8, 36, 3}}};
  return *blocks;
}

}  // namespace

absl::StatusOr<std::vector<LayerSpec>> ExpandResnet(const OptionMap& options, const std::string& path) {
  OptionReader reader(options, path);
  const int64_t depth = reader.Int("depth", 101, 1, 1000);
  const auto known = BlocksOfDepth().find(depth);
  std::array<int64_t, kGroups> blocks = known == BlocksOfDepth().end() ? BlocksOfDepth().at(101) : known->second;
  for (size_t g = 0; g < kGroups; ++g) blocks[g] = reader.Int(absl::StrCat("blocks", g + 1), blocks[g], 1, 256);
  const int64_t width = reader.Int("width", 64, 1, 1024);
  const int64_t channels = reader.Int("channels", 3, 1, 1024);
  const int64_t classes = reader.Int("classes", 1000, 1, 1 << 24);
  const int64_t image = reader.Int("image", 224, 1, 1 << 14);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  if (known == BlocksOfDepth().end()) {
    const std::string field = absl::StrCat(path, "[depth]");
    return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
                 absl::StrCat(field, ": must be 14, 26, 50, 101 or 152, got ", depth))
        .With("field", field)
        .With("value", absl::StrCat(depth));
  }

  std::vector<LayerSpec> specs;
  specs.push_back({"resnet_stem", "stem", {{"in", channels}, {"out", width}, {"image", image}}});
  int64_t in = width;
  for (size_t g = 0; g < kGroups; ++g) {
    const int64_t group_width = width << g;
    for (int64_t b = 0; b < blocks[g]; ++b) {
      const int64_t stride = g > 0 && b == 0 ? 2 : 1;
      specs.push_back({"resnet_bottleneck",
                       absl::StrCat("group", g + 1, "_block", b),
                       {{"in", in}, {"width", group_width}, {"stride", stride}}});
      in = group_width * kExpansion;
    }
  }
  specs.push_back({"resnet_head", "head", {{"in", in}, {"classes", classes}}});
  return specs;
}

}  // namespace penstock
