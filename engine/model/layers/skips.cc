// Layer kinds that carry a value past other layers; option of all: name (skip).
//   stash     keeps its input under the name and gives it on
//   pop_add   adds what was kept to its input
//   pop_cat   joins its input and what was kept along dimension 1; an input that is smaller in later dimensions is
//             padded with zeros at their ends, as halving and doubling an odd size leaves it
// Where None was kept, the popping kinds give their input on.

#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"
#include "engine/model/input_checks.h"
#include "engine/model/layers/built_in_layers.h"

namespace penstock {
namespace {

class StashLayer : public Layer {
 public:
  explicit StashLayer(std::string name) : name_(std::move(name)) { DeclareStash(name_); }

  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    PENSTOCK_CHECK(context.skips != nullptr);
    context.skips->Stash(name_, inputs.atomic() ? inputs[0] : Value::Tuple(inputs.values()));
    return inputs;
  }
  std::vector<TensorSignature> InputSignature() const override { return {}; }
  std::vector<TensorSignature> OutputSignature() const override { return {}; }
  bool KeepsLeadingDimensions() const override { return true; }

 private:
  const std::string name_;
};

// What both popping kinds do before they differ.
class PopLayer : public Layer {
 public:
  PopLayer(const char* kind, std::string name) : kind_(kind), name_(std::move(name)) { DeclarePop(name_); }

  Batch Forward(const Batch& inputs, const LayerContext& context) final {
    PENSTOCK_CHECK(context.skips != nullptr);
    const Value popped = context.skips->Pop(name_);
    if (popped.is_none()) return inputs;
    const at::Tensor& input = OnlyInput(inputs, kind_);
    if (!popped.is_tensor()) {
      ThrowStatus(Error(absl::StatusCode::kInvalidArgument, "WRONG_TYPE",
                        absl::StrCat(kind_, ": expected Tensor, but got ", popped.TypeName(), " under '", name_, "'"))
                      .With("field", name_)
                      .With("value", popped.TypeName()));
    }
    return {Join(input, *popped.tensor())};
  }
  std::vector<TensorSignature> InputSignature() const override { return {}; }

 private:
  virtual at::Tensor Join(const at::Tensor& input, const at::Tensor& popped) const = 0;

  const char* const kind_;
  const std::string name_;
};

class PopAddLayer : public PopLayer {
 public:
  explicit PopAddLayer(std::string name) : PopLayer("pop_add", std::move(name)) {}
  std::vector<TensorSignature> OutputSignature() const override { return {}; }
  bool KeepsLeadingDimensions() const override { return true; }

 private:
  at::Tensor Join(const at::Tensor& input, const at::Tensor& popped) const override { return input.add(popped); }
};

class PopCatLayer : public PopLayer {
 public:
  explicit PopCatLayer(std::string name) : PopLayer("pop_cat", std::move(name)) {}
  std::vector<TensorSignature> OutputSignature() const override {
    return {{"output", DataType::kUnspecified, {}, /*any=*/true}};
  }

 private:
  at::Tensor Join(const at::Tensor& input, const at::Tensor& popped) const override {
    std::vector<int64_t> padding;  // of the last dimension first, before and after
    for (int64_t d = input.dim() - 1; d >= 2 && input.dim() == popped.dim(); --d) {
      padding.push_back(0);
      padding.push_back(std::max<int64_t>(popped.size(d) - input.size(d), 0));
    }
    const bool fits = std::all_of(padding.begin(), padding.end(), [](int64_t amount) { return amount == 0; });
    return at::cat({fits ? input : at::constant_pad_nd(input, padding), popped}, 1);
  }
};

template <typename Kind>
absl::StatusOr<std::unique_ptr<Layer>> Make(const LayerRequest& request) {
  OptionReader reader(request.options, request.path);
  std::string name = reader.Text("name", "skip");
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<Kind>(std::move(name));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Layer>> MakeStash(const LayerRequest& request) { return Make<StashLayer>(request); }
absl::StatusOr<std::unique_ptr<Layer>> MakePopAdd(const LayerRequest& request) { return Make<PopAddLayer>(request); }
absl::StatusOr<std::unique_ptr<Layer>> MakePopCat(const LayerRequest& request) { return Make<PopCatLayer>(request); }

}  // namespace penstock
