#include "tests/transparency/value_layers.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/tanh.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/model/input_checks.h"
#include "engine/model/layer_registry.h"

namespace penstock::testing {
namespace {

const std::vector<TensorSignature> kAnything = {{"", DataType::kUnspecified, {}, /*any=*/true}};

// What all of them say: only a run can tell.
class ValueLayer : public Layer {
 public:
  std::vector<TensorSignature> InputSignature() const override { return kAnything; }
  std::vector<TensorSignature> OutputSignature() const override { return kAnything; }
};

Value PlainValue(char letter) {
  switch (letter) {
    case 'k':
      return Value(3);
    case 'x':
      return Value("text");
    case 'l':
      return Value::List({Value(1), Value(2)});
    default:
      return Value();
  }
}

class ValuesLayer : public ValueLayer {
 public:
  ValuesLayer(std::vector<int64_t> shape, std::string as) : shape_(std::move(shape)), as_(std::move(as)) {}

  Batch Forward(const Batch& inputs, const LayerContext&) override { return inputs; }
  std::vector<TensorSignature> InputSignature() const override {
    std::vector<TensorSignature> signature;
    for (char letter : as_) {
      const std::string name = absl::StrCat("value", signature.size());
      if (letter == 't') {
        signature.push_back({name, float_type(), shape_});
      } else if (letter == 'i') {
        signature.push_back({name, DataType::kInt64, {-1}});
      } else {
        signature.push_back({name, DataType::kUnspecified, {}, /*any=*/true});
      }
    }
    return signature;
  }

 private:
  const std::vector<int64_t> shape_;  // rows are -1
  const std::string as_;
};

class ForkLayer : public ValueLayer {
 public:
  explicit ForkLayer(std::string as) : as_(std::move(as)) {}

  Batch Forward(const Batch& inputs, const LayerContext&) override {
    const at::Tensor& input = OnlyInput(inputs, "fork");
    std::vector<Value> made;
    for (char letter : as_) {
      if (letter == 's') {
        made.emplace_back(input);
      } else if (letter == 't') {
        made.emplace_back(at::tanh(input));
      } else if (letter == 'v') {
        made.emplace_back(input.narrow(1, 0, input.size(1)));
      } else if (letter == 'd') {
        made.emplace_back(input.detach().mul(0.5));
      } else if (letter == 'i') {
        made.emplace_back(input.detach().flatten(1).argmax(1));
      } else {
        made.push_back(PlainValue(letter));
      }
    }
    return Batch::Tuple(std::move(made));
  }

 private:
  const std::string as_;
};

class ScaleEachLayer : public ValueLayer {
 public:
  ScaleEachLayer(const LayerRequest& request, int64_t width, int64_t turn)
      : turn_(turn),
        weight_(
            AddParameter("weight", at::ones({width}, at::TensorOptions(request.shapes_only ? at::kMeta : at::kCPU)))) {
    if (!request.shapes_only) weight_.detach().uniform_(0.5, 1.5, request.generator);
  }

  Batch Forward(const Batch& inputs, const LayerContext&) override {
    std::vector<Value> made;
    for (const Value& value : Arguments(inputs)) {
      const bool scaled =
          value.is_tensor() && value.tensor()->is_floating_point() && value.tensor()->size(-1) == weight_.size(0);
      made.push_back(scaled ? Value(value.tensor()->mul(weight_)) : value);
    }
    std::rotate(made.begin(), made.begin() + turn_ % static_cast<int64_t>(made.size()), made.end());
    return Batch::Tuple(std::move(made));
  }

 private:
  const int64_t turn_;
  const at::Tensor weight_;
};

class JoinLayer : public ValueLayer {
 public:
  Batch Forward(const Batch& inputs, const LayerContext&) override {
    const Batch values = Arguments(inputs);
    at::Tensor sum;
    for (const Value& value : values) {
      if (!value.is_tensor() || !value.tensor()->is_floating_point() || value.tensor()->dim() < 2) continue;
      const at::Tensor& one = *value.tensor();
      sum = !sum.defined() ? one.mul(0.9)
                           : sum.add(one.sizes() == sum.sizes() ? one : PerRow(one.flatten(1).mean(1), sum));
    }
    for (const Value& value : values) {
      if (value.is_tensor() && !value.tensor()->is_floating_point()) {
        sum = sum.mul(PerRow(value.tensor()->to(sum.scalar_type()).mul(0.1).add(1), sum));
      } else if (value.is_tensor() && value.tensor()->dim() == 1) {
        sum = sum.add(*value.tensor());
      } else if (value.integer() != nullptr) {
        sum = sum.mul(1 + 0.1 * static_cast<double>(*value.integer()));
      } else if (value.text() != nullptr || value.list() != nullptr) {
        sum = sum.add(0.25);
      }
    }
    return {sum};
  }

 private:
  // One number per row, for a tensor of more dimensions.
  static at::Tensor PerRow(const at::Tensor& numbers, const at::Tensor& like) {
    std::vector<int64_t> shape(static_cast<size_t>(like.dim()), 1);
    shape[0] = numbers.size(0);
    return numbers.reshape(shape);
  }
};

class DetachLayer : public ValueLayer {
 public:
  Batch Forward(const Batch& inputs, const LayerContext&) override { return {OnlyInput(inputs, "detach").detach()}; }
};

class StashItemLayer : public ValueLayer {
 public:
  StashItemLayer(std::string name, int64_t item) : name_(std::move(name)), item_(item) { DeclareStash(name_); }

  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    std::vector<Value> rest = Arguments(inputs).values();
    context.skips->Stash(name_, rest.at(item_));
    rest.erase(rest.begin() + item_);
    return rest.size() == 1 ? Batch(rest[0]) : Batch::Tuple(std::move(rest));
  }

 private:
  const std::string name_;
  const int64_t item_;
};

class PopItemLayer : public ValueLayer {
 public:
  explicit PopItemLayer(std::string name) : name_(std::move(name)) { DeclarePop(name_); }

  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    std::vector<Value> all = Arguments(inputs).values();
    all.push_back(context.skips->Pop(name_));
    return Batch::Tuple(std::move(all));
  }

 private:
  const std::string name_;
};

// The options, read by one reader, make the layer.
template <typename Make>
absl::StatusOr<std::unique_ptr<Layer>> Read(const LayerRequest& request, Make make) {
  OptionReader reader(request.options, request.path);
  std::unique_ptr<Layer> layer = make(reader);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return layer;
}

constexpr int64_t kMost = 64;

using Made = absl::StatusOr<std::unique_ptr<Layer>>;

absl::Status RegisterAll() {
  const std::vector<std::pair<const char*, LayerFactory>> kinds = {
      {"values",
       [](const LayerRequest& request) -> Made {
         return Read(request, [](OptionReader& reader) {
           std::vector<int64_t> shape = {-1};
           for (const absl::string_view size : absl::StrSplit(reader.Text("before", ""), 'x', absl::SkipEmpty())) {
             PENSTOCK_CHECK(absl::SimpleAtoi(size, &shape.emplace_back()));
           }
           shape.push_back(reader.NeededInt("width", 1, kMost));
           return std::make_unique<ValuesLayer>(std::move(shape), reader.Text("as", "t"));
         });
       }},
      {"fork",
       [](const LayerRequest& request) -> Made {
         return Read(request, [](OptionReader& reader) { return std::make_unique<ForkLayer>(reader.Text("as", "s")); });
       }},
      {"scale_each",
       [](const LayerRequest& request) -> Made {
         return Read(request, [&](OptionReader& reader) {
           const int64_t width = reader.NeededInt("width", 1, kMost);
           return std::make_unique<ScaleEachLayer>(request, width, reader.Int("turn", 0, 0, kMost));
         });
       }},
      {"join",
       [](const LayerRequest& request) -> Made {
         return Read(request, [](OptionReader&) { return std::make_unique<JoinLayer>(); });
       }},
      {"detach",
       [](const LayerRequest& request) -> Made {
         return Read(request, [](OptionReader&) { return std::make_unique<DetachLayer>(); });
       }},
      {"stash_item",
       [](const LayerRequest& request) -> Made {
         return Read(request, [](OptionReader& reader) {
           std::string name = reader.Text("name", "skip");
           return std::make_unique<StashItemLayer>(std::move(name), reader.Int("item", 0, 0, kMost));
         });
       }},
      {"pop_item",
       [](const LayerRequest& request) -> Made {
         return Read(request,
                     [](OptionReader& reader) { return std::make_unique<PopItemLayer>(reader.Text("name", "skip")); });
       }},
  };
  for (const auto& [kind, factory] : kinds) PENSTOCK_RETURN_IF_ERROR(RegisterLayerKind(kind, factory));
  return absl::OkStatus();
}

}  // namespace

absl::Status RegisterValueLayers() {
  static const auto* const registered = new absl::Status(RegisterAll());
  return *registered;
}

}  // namespace penstock::testing
