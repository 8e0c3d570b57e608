// Reference model `amoebanet`: AmoebaNet-D with each cell a layer that takes and gives two tensors.
// Options: layers (18), normal cells, a multiple of 3; filters (208), a multiple of 8: "AmoebaNet-D (layers, filters)";
// channels (3), classes (1000), image (224): the height and width that it is measured with; others may be given.
// Source: Real et al., "Regularized evolution for image classifier architecture search", 2018, as Huang et al. scale it
// in "GPipe", 2018.

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/model/layers/amoeba_operations.h"
#include "engine/model/reference/reference_models.h"

namespace penstock {
namespace {

// Collects cells and knows what reaches the next one.
class AmoebaBuilder {
 public:
  explicit AmoebaBuilder(int64_t channels) : channels_(channels), nearer_(channels), further_(channels) {}

  void Add(const std::string& name, bool reduction) {
    if (reduction) channels_ *= 2;
    specs_.push_back({"amoeba_cell",
                      name,
                      {{"nearer", nearer_},
                       {"further", further_},
                       {"channels", channels_},
                       {"reduction", reduction},
                       {"after_reduction", after_reduction_},
                       {"first", specs_.empty()}}});
    const AmoebaGenotype& cell = reduction ? ReductionCell() : NormalCell();
    further_ = std::exchange(nearer_, channels_ * static_cast<int64_t>(cell.joined.size()));
    after_reduction_ = reduction;
  }

  int64_t nearer() const { return nearer_; }
  std::vector<LayerSpec> Finish() { return std::move(specs_); }

 private:
  int64_t channels_;
  int64_t nearer_;
  int64_t further_;
  bool after_reduction_ = false;
  std::vector<LayerSpec> specs_;
};

absl::Status NotAMultiple(const std::string& field, int64_t of, int64_t value) {
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
               absl::StrCat(field, ": must be a multiple of ", of, ", got ", value))
      .With("field", field)
      .With("value", absl::StrCat(value));
}

}  // namespace

absl::StatusOr<std::vector<LayerSpec>> ExpandAmoebanet(const OptionMap& options, const std::string& path) {
  OptionReader reader(options, path);
  const int64_t layers = reader.Int("layers", 18, 3, kMaxLayers - 16);
  const int64_t filters = reader.Int("filters", 208, 8, 1 << 12);
  const int64_t channels = reader.Int("channels", 3, 1, 1024);
  const int64_t classes = reader.Int("classes", 1000, 1, 1 << 24);
  const int64_t image = reader.Int("image", 224, 1, 1 << 14);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  if (layers % 3 != 0) return NotAMultiple(absl::StrCat(path, "[layers]"), 3, layers);
  if (filters % 8 != 0) return NotAMultiple(absl::StrCat(path, "[filters]"), 8, filters);

  std::vector<LayerSpec> specs;
  specs.push_back({"amoeba_stem", "stem", {{"in", channels}, {"out", filters / 4}, {"image", image}}});
  AmoebaBuilder cells(filters / 4);
  cells.Add("reduction0", true);
  cells.Add("reduction1", true);
  for (int group = 0; group < 3; ++group) {
    if (group > 0) cells.Add(absl::StrCat("reduction", group + 1), true);
    for (int64_t i = 0; i < layers / 3; ++i) cells.Add(absl::StrCat("group", group, "_normal", i), false);
  }
  const int64_t in = cells.nearer();
  for (LayerSpec& cell : cells.Finish()) specs.push_back(std::move(cell));
  specs.push_back({"amoeba_classify", "classify", {{"in", in}, {"classes", classes}}});
  return specs;
}

}  // namespace penstock
