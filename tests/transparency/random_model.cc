#include "tests/transparency/random_model.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/model/layer_registry.h"

namespace penstock::testing {
namespace {

constexpr int64_t kMaxSide = 4;       // of an image that is made larger
constexpr int64_t kMaxChannels = 12;  // of an image, before a convolution reduces them

using Shape = std::vector<int64_t>;  // of one row

// One value on its way through the model.
struct Item {
  char letter = 't';  // t, i, w or a plain one
  Shape shape;        // of a tensor with rows
};

// A stash that still waits for its pop.
struct OpenSkip {
  SkipName name;
  Item item;
};

// Whether `input` can be made as large as `popped` in all but the first dimension.
bool FitsBeside(const Shape& input, const Shape& popped) {
  if (input.size() != popped.size()) return false;
  for (size_t d = 1; d < input.size(); ++d) {
    if (input[d] > popped[d]) return false;
  }
  return true;
}

// Whether they differ in the last dimension at most.
bool SameButWidth(const Shape& a, const Shape& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end() - 1, b.begin());
}

// Adds layers one by one and keeps track of what flows between them.
class Builder {
 public:
  explicit Builder(Dice& dice) : dice_(dice), only_tensors_(dice.OneIn(6)) {}

  RandomModel Build() {
    RandomModel model;
    model.input_shape = NewShape();
    model.inputs = dice_.OneIn(3) ? RandomInputs() : "t";
    for (char letter : model.inputs) flow_.push_back({letter, model.input_shape});
    tuple_ = flow_.size() > 1;
    First(model);
    const int64_t count = dice_.Between(2, 12);
    while (static_cast<int64_t>(layers_.size()) < count) Next();
    PopAll();
    if (flow_[0].letter != 't' || !dice_.OneIn(5)) One();
    model.output_shape = flow_[0].shape;
    model.spec.layers = Grouped(model.input_shape.size() > 1);
    model.spec.tuple_as_one_argument = only_tensors_;
    model.spec.deferred_batch_norm = dice_.OneIn(2);
    model.spec.dtype = dice_.OneIn(8) ? "fp64" : "";
    if (model.spec.dtype.empty() && dice_.OneIn(6)) model.spec.autocast = "bf16";
    return model;
  }

 private:
  // Mostly small; now and then more than a vector register holds, or a single one.
  int64_t NewWidth() { return dice_.OneIn(6) ? dice_.Of<int64_t>({1, 16, 19, 33}) : dice_.Between(2, 8); }

  Shape NewShape() {
    if (dice_.OneIn(2)) return {NewWidth()};
    if (dice_.OneIn(2)) return {dice_.Between(1, 4), NewWidth()};
    const int64_t side = dice_.Between(2, kMaxSide);
    return {dice_.Between(1, 3), side, side};
  }

  // Of the tensor that goes on: the first of a tuple.
  Shape& Current() {
    return std::find_if(flow_.begin(), flow_.end(), [](const Item& one) { return one.letter == 't'; })->shape;
  }

  std::string RandomInputs() {
    std::string letters = "t";
    const int64_t more = dice_.Between(1, 3);
    for (int64_t i = 0; i < more; ++i) letters += dice_.Of<char>({'t', 'i', 'w'});
    if (!only_tensors_ && dice_.OneIn(3)) letters += dice_.Of<char>({'n', 'k', 'x', 'l'});
    return letters;
  }

  void Add(const std::string& kind, OptionMap options = {}, const SkipName& skip = {}) {
    LayerSpec layer{.kind = kind, .name = "", .options = std::move(options)};
    if (!skip.skip_namespace.empty()) layer.isolate.push_back({.skip_namespace = skip.skip_namespace});
    layers_.push_back(std::move(layer));
  }

  // The layers that say what a model takes.
  void First(const RandomModel& model) {
    const Shape& shape = model.input_shape;
    if (tuple_ && dice_.OneIn(2)) return Join();
    if (!tuple_ && shape.size() == 1) {
      if (!dice_.OneIn(3)) return Linear(NewWidth());
      return dice_.OneIn(2) ? Add("identity") : Fork();
    }
    if (!tuple_ && shape.size() == 3 && dice_.OneIn(2)) return Convolution();
    const std::string before_width = absl::StrJoin(shape.begin(), shape.end() - 1, "x");
    Add("values", {{"width", shape.back()}, {"before", before_width}, {"as", model.inputs}});
  }

  void Next() {
    if (dice_.OneIn(3) && Skip()) return;
    if (dice_.OneIn(16)) return Add("identity");
    if (tuple_) {
      if (dice_.OneIn(2)) return Join();
      Add("scale_each", {{"width", Current().back()}, {"turn", dice_.Below(2)}});
      if (std::get<int64_t>(layers_.back().options.at("turn")) == 1) {
        std::rotate(flow_.begin(), flow_.begin() + 1, flow_.end());
      }
      return;
    }
    const int64_t width = Current().back();
    switch (dice_.Below(15)) {
      case 0:
      case 1:
      case 2:
        return Linear(NewWidth());
      case 3:
        return Add("relu");
      case 4:
        return Add("gelu");
      case 5:
        width_said_ = true;
        return Add("layer_norm", {{"width", width}});
      case 6:
        return Add("dropout", {{"p", dice_.Of<double>({0.1, 0.5})}});
      case 7:
        width_said_ = true;
        return Add("mlp_block", {{"width", width}, {"dropout", dice_.Of<double>({0.0, 0.3})}});
      case 8:
      case 9:
        return BatchNorm();
      case 10:
        return dice_.OneIn(3) ? Add("detach") : Linear(width);
      case 11:
      case 12:
      case 13:
        if (Current().size() == 2) return GptBlock();
        if (Current().size() == 3) return OnImages();
        return Fork();
      default:
        return Fork();
    }
  }

  void Linear(int64_t out) {
    width_said_ = true;
    Add("linear", {{"in", Current().back()}, {"out", out}, {"bias", !dice_.OneIn(3)}});
    Current().back() = out;
  }

  void BatchNorm() {
    OptionMap options = {{"features", Current().front()}};
    if (dice_.OneIn(4)) options["cumulative"] = true;
    if (dice_.OneIn(4)) options["affine"] = false;
    if (dice_.OneIn(6)) options["track"] = false;
    Add("batch_norm", std::move(options));
  }

  void GptBlock() {
    const int64_t width = Current().back();
    const int64_t heads = width % 2 == 0 ? dice_.Between(1, 2) : 1;
    Add("gpt_block", {{"width", width}, {"heads", heads}, {"dropout", dice_.Of<double>({0.0, 0.2})}});
  }

  void Convolution() {
    const int64_t kernel = dice_.Of<int64_t>({1, 3});
    const int64_t out = dice_.Between(1, 4);
    width_said_ = false;
    Add("conv2d", {{"in", Current()[0]},
                   {"out", out},
                   {"kernel", kernel},
                   {"padding", kernel / 2},
                   {"bias", dice_.OneIn(2)},
                   {"image", Current()[1]}});
    Current()[0] = out;
  }

  void OnImages() {
    Shape& shape = Current();
    const int64_t smaller = std::min(shape[1], shape[2]);
    switch (dice_.Below(8)) {
      case 0:
        return Add("dropout2d", {{"p", dice_.Of<double>({0.2, 0.5})}});
      case 1:
        return Add("leaky_relu", {{"slope", 0.1}});
      case 2:
        if (smaller > 1) return Add("instance_norm");
        return Convolution();
      case 3:
        if (smaller < 2 || width_said_) return Convolution();
        shape[1] /= 2;
        shape[2] /= 2;
        return Add("max_pool2d");
      case 4:
        if (std::max(shape[1], shape[2]) > kMaxSide || width_said_) return Convolution();
        shape[1] *= 2;
        shape[2] *= 2;
        return Add("upsample");
      default:
        return Convolution();
    }
  }

  void Fork() {
    const std::vector<char> firsts = {'s', 't', 'v'};
    const std::vector<char> tensors = {'s', 't', 'v', 'd', 'i'};
    const std::vector<char> all = {'s', 't', 'v', 'd', 'i', 'n', 'k', 'x', 'l'};
    std::string as(1, dice_.Of(firsts));
    const int64_t more = dice_.Between(1, 2);
    for (int64_t i = 0; i < more; ++i) as += dice_.Of(only_tensors_ ? tensors : all);
    const Shape shape = Current();
    flow_.clear();
    for (char letter : as) {
      const bool feature = letter == 's' || letter == 'v' || letter == 'd';
      flow_.push_back({feature ? 't' : letter, shape});
    }
    tuple_ = true;
    Add("fork", {{"as", as}});
  }

  void Join() {
    flow_ = {{'t', Current()}};
    tuple_ = false;
    Add("join");
  }

  void One() {
    if (tuple_) Join();
  }

  // Stashes something or pops something. False if neither fits.
  bool Skip() {
    if (!open_.empty() && dice_.OneIn(2)) {
      Pop(static_cast<size_t>(dice_.Below(static_cast<int64_t>(open_.size()))));
      return true;
    }
    // One name in two namespaces, too: a second stash of an open name needs another namespace.
    SkipName name{dice_.OneIn(2) ? "" : absl::StrCat("space", stashes_), absl::StrCat("skip", dice_.Below(3))};
    const auto same = [&](const OpenSkip& open) { return open.name == name; };
    if (std::any_of(open_.begin(), open_.end(), same) || used_.count(name) != 0)
      name.skip_namespace = absl::StrCat("own", stashes_);
    if (!tuple_) {
      Add("stash", {{"name", name.name}}, name);
      open_.push_back({name, flow_[0]});
    } else {
      const int64_t item = dice_.Below(static_cast<int64_t>(flow_.size()));
      const auto feature = [](const Item& one) { return one.letter == 't'; };
      const int64_t features = std::count_if(flow_.begin(), flow_.end(), feature);
      if (flow_[item].letter == 't' && features < 2) return false;  // something must go on
      Add("stash_item", {{"name", name.name}, {"item", item}}, name);
      open_.push_back({name, flow_[item]});
      flow_.erase(flow_.begin() + item);
      tuple_ = flow_.size() > 1;
    }
    used_[name] = true;
    ++stashes_;
    return true;
  }

  void Pop(size_t which) {
    const OpenSkip open = open_[which];
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(which));
    const OptionMap options = {{"name", open.name.name}};
    const bool feature = open.item.letter == 't';
    if (feature && (!tuple_ || dice_.OneIn(2))) {
      One();
      if (dice_.OneIn(3) && FitsBeside(Current(), open.item.shape)) return PopCat(open);
      if (SameButWidth(Current(), open.item.shape)) {
        if (Current() != open.item.shape) Linear(open.item.shape.back());
        return Add("pop_add", options, open.name);
      }
    }
    if (open.item.letter == 'n' && dice_.OneIn(2)) {
      One();
      return Add(dice_.OneIn(2) ? "pop_add" : "pop_cat", options, open.name);
    }
    if (open.item.letter == 'w' && Current().back() != open.item.shape.back()) {
      One();
      Linear(open.item.shape.back());
    }
    Add("pop_item", options, open.name);
    flow_.push_back(open.item);
    tuple_ = true;
  }

  void PopCat(const OpenSkip& open) {
    Add("pop_cat", {{"name", open.name.name}}, open.name);
    const int64_t joined = Current()[0] + open.item.shape[0];
    Current() = open.item.shape;
    Current()[0] = joined;
    if (Current().size() == 1) return Linear(NewWidth());
    if (Current().size() == 3 && joined > kMaxChannels) Convolution();
  }

  void PopAll() {
    while (!open_.empty()) Pop(static_cast<size_t>(dice_.Below(static_cast<int64_t>(open_.size()))));
  }

  // Whether a layer fits into a group of a model whose tensors have more than two dimensions: a group says what it
  // takes and gives as if its first and last layers that say so were alone.
  static bool KeepsLeadingDimensions(const LayerSpec& layer) {
    const std::set<std::string> kinds = {"linear",  "layer_norm", "mlp_block", "relu",   "gelu",
                                         "dropout", "identity",   "stash",     "pop_add"};
    return kinds.count(layer.kind) != 0;
  }

  // Some neighbours become one layer that holds them; all get names.
  std::vector<LayerSpec> Grouped(bool more_dimensions) {
    std::vector<LayerSpec> grouped;
    const auto fits = [&](size_t i) { return !more_dimensions || KeepsLeadingDimensions(layers_[i]); };
    for (size_t i = 0; i < layers_.size();) {
      if (!dice_.OneIn(6) || !fits(i)) {
        layers_[i].name = absl::StrCat("layer", grouped.size());
        grouped.push_back(std::move(layers_[i++]));
        continue;
      }
      LayerSpec group{.kind = "sequential", .name = absl::StrCat("group", grouped.size()), .options = {}};
      const size_t end = std::min(layers_.size(), i + static_cast<size_t>(dice_.Between(1, 4)));
      for (; i < end && fits(i); ++i) {
        layers_[i].name = absl::StrCat("inner", group.layers.size());
        group.layers.push_back(std::move(layers_[i]));
      }
      grouped.push_back(std::move(group));
    }
    return grouped;
  }

  Dice& dice_;
  const bool only_tensors_;  // a tuple comes as one argument, which may hold nothing else
  std::vector<LayerSpec> layers_;
  std::vector<Item> flow_;
  bool tuple_ = false;
  std::vector<OpenSkip> open_;
  std::map<SkipName, bool> used_;
  int stashes_ = 0;
  bool width_said_ = false;  // a layer has fixed the last dimension, and the signature takes pooling to leave it so
};

// Ties some parameters of equal shapes: two or three of each.
void AddTies(Dice& dice, ModelSpec& spec) {
  const auto layers = BuildLayerShapes(spec.layers, BuildOptionsOf(spec));
  if (!layers.ok()) return;  // the pipeline says why
  std::map<std::vector<int64_t>, std::vector<std::string>> by_shape;
  for (const NamedLayer& layer : *layers) {
    for (const NamedTensor& parameter : layer.layer->parameters()) {
      by_shape[parameter.tensor.sizes().vec()].push_back(absl::StrCat(layer.name, ".", parameter.name));
    }
  }
  for (auto& [shape, names] : by_shape) {
    if (names.size() < 2 || !dice.OneIn(2)) continue;
    const size_t uses = std::min(names.size(), static_cast<size_t>(dice.Between(2, 4)));
    TieSpec tie;
    while (tie.parameters.size() < uses) {
      const auto picked = names.begin() + dice.Below(static_cast<int64_t>(names.size()));
      tie.parameters.push_back(*picked);
      names.erase(picked);
    }
    spec.ties.push_back(std::move(tie));
  }
}

std::string DescribeLayers(const std::vector<LayerSpec>& layers) {
  return absl::StrJoin(layers, " | ", [](std::string* out, const LayerSpec& layer) {
    absl::StrAppend(out, layer.name, ":", layer.kind);
    if (!layer.layers.empty()) absl::StrAppend(out, "[", DescribeLayers(layer.layers), "]");
    if (layer.options.empty()) return;
    const auto option = [](std::string* text, const OptionMap::value_type& one) {
      absl::StrAppend(text, one.first, "=", OptionText(one.second));
    };
    absl::StrAppend(out, "(", absl::StrJoin(layer.options, ", ", option), ")");
    if (!layer.isolate.empty()) absl::StrAppend(out, "@", layer.isolate[0].skip_namespace);
  });
}

}  // namespace

RandomModel MakeRandomModel(Dice& dice) {
  RandomModel model = Builder(dice).Build();
  if (dice.OneIn(2)) AddTies(dice, model.spec);
  return model;
}

std::string Describe(const ModelSpec& model) {
  std::string text = DescribeLayers(model.layers);
  for (const TieSpec& tie : model.ties) absl::StrAppend(&text, "; tied: ", absl::StrJoin(tie.parameters, " = "));
  if (model.deferred_batch_norm) absl::StrAppend(&text, "; deferred batch norm");
  if (model.tuple_as_one_argument) absl::StrAppend(&text, "; tuples as one argument");
  if (!model.dtype.empty()) absl::StrAppend(&text, "; ", model.dtype);
  if (!model.autocast.empty()) absl::StrAppend(&text, "; autocast ", model.autocast);
  return text;
}

}  // namespace penstock::testing
