// A library of layers that fails in as many ways as a test asks for, by the variable PENSTOCK_TEST_LAYERS_FAULT.

#include <ATen/ops/add.h>
#include <ATen/ops/max.h>
#include <ATen/ops/mul.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/model/initial_values.h"
#include "engine/model/input_checks.h"
#include "engine/own_layers/layer_library.h"

namespace {

using penstock::Batch;
using penstock::Layer;
using penstock::LayerContext;
using penstock::LayerRequest;
using penstock::TensorSignature;
using penstock::Value;

// Whether they are larger than what a plan is made with.
bool AreLarge(const Batch& inputs) { return at::max(inputs.TensorAt(0)).item().toFloat() > 1000; }

// Kind `test_twice`: twice its input. Kind `test_faulty`: option fault says how it fails: factory, null, same_name,
// large, of large inputs, or commit, at the end of the first step that has large inputs.
class Twice : public Layer {
 public:
  explicit Twice(bool fails_when_large) : fails_when_large_(fails_when_large) {}
  Twice(const LayerRequest& request, const std::string& parameter, const std::string& buffer)
      : fails_when_large_(false) {
    AddParameter(parameter, penstock::InitialConstant(request, {1}, 0));
    AddBuffer(buffer, penstock::InitialConstant(request, {1}, 0));
  }

  Batch Forward(const Batch& inputs, const LayerContext&) override {
    if (fails_when_large_ && AreLarge(inputs)) {
      throw std::runtime_error("this layer fails on purpose");
    }
    return {at::mul(penstock::OnlyInput(inputs, "test_twice"), 2)};
  }
  std::vector<TensorSignature> InputSignature() const override { return {}; }
  std::vector<TensorSignature> OutputSignature() const override { return {}; }
  bool KeepsLeadingDimensions() const override { return true; }

 private:
  const bool fails_when_large_;
};

// Fails once, in the last part of a step, when the weights of its stage have changed.
class FailsToCommit : public Twice {
 public:
  FailsToCommit() : Twice(/*fails_when_large=*/false) {}

  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    marked_ = marked_ || AreLarge(inputs);
    return Twice::Forward(inputs, context);
  }
  void CommitStatistics() override {
    if (!marked_ || std::exchange(failed_, true)) return;
    throw std::runtime_error("this layer fails to commit on purpose");
  }

 private:
  bool marked_ = false;
  bool failed_ = false;
};

// Kind `test_killer`: its input. Ends the process by SIGKILL, once, in the part of a step that the file says which the
// variable PENSTOCK_TEST_KILL names: option at, then forward, backward or commit, then the micro-batch (of commit: 0).
class Killer : public Layer {
 public:
  explicit Killer(std::string at) : at_(std::move(at)) {}

  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    const int64_t micro_batch = context.micro_batch.value();
    if (context.training) KillIfAsked("forward", micro_batch);
    const at::Tensor output = at::mul(penstock::OnlyInput(inputs, "test_killer"), 1);
    if (output.requires_grad()) {
      output.register_hook([this, micro_batch](const at::Tensor&) { KillIfAsked("backward", micro_batch); });
    }
    return {output};
  }
  void CommitStatistics() override { KillIfAsked("commit", 0); }
  std::vector<TensorSignature> InputSignature() const override { return {}; }
  std::vector<TensorSignature> OutputSignature() const override { return {}; }
  bool KeepsLeadingDimensions() const override { return true; }

 private:
  void KillIfAsked(const std::string& part, int64_t micro_batch) const {
    const char* const path = std::getenv("PENSTOCK_TEST_KILL");
    if (path == nullptr) return;
    std::string asked;
    std::getline(std::ifstream(path), asked);
    if (asked != at_ + " " + part + " " + std::to_string(micro_batch)) return;
    std::remove(path);
    std::raise(SIGKILL);
  }

  const std::string at_;
};

TensorSignature Anything() { return {"", penstock::DataType::kUnspecified, {}, /*any=*/true}; }

// Kind `test_values`: its input, None, the number of its micro-batch, and a dictionary with a tensor in a list.
class ManyValues : public Layer {
 public:
  Batch Forward(const Batch& inputs, const LayerContext& context) override {
    const at::Tensor x = penstock::OnlyInput(inputs, "test_values");
    return Batch::Tuple({Value(x), Value(), Value(context.micro_batch.value()),
                         Value::Dict({{"rows", Value(x.size(0))}, {"parts", Value::List({Value(at::mul(x, 3))})}})});
  }
  std::vector<TensorSignature> InputSignature() const override { return {}; }
  std::vector<TensorSignature> OutputSignature() const override { return {Anything()}; }
};

// Kind `test_values_sum`: of such values the first and the tensor in the dictionary.
class SumsValues : public Layer {
 public:
  Batch Forward(const Batch& inputs, const LayerContext&) override {
    const penstock::ValueDict* dict = inputs.size() == 4 ? inputs[3].dict() : nullptr;
    if (dict == nullptr) throw std::runtime_error("test_values_sum takes what test_values gives");
    return {at::add(inputs.TensorAt(0), *dict->at(1).second.list()->at(0).tensor())};
  }
  std::vector<TensorSignature> InputSignature() const override { return {Anything()}; }
  std::vector<TensorSignature> OutputSignature() const override { return {Anything()}; }
};

// Kind `test_list`: a list of its input and twice that. Kind `test_list_sum`: the sum of such a list.
class MakesList : public Layer {
 public:
  Batch Forward(const Batch& inputs, const LayerContext&) override {
    const at::Tensor x = penstock::OnlyInput(inputs, "test_list");
    return {Value::List({Value(x), Value(at::mul(x, 2))})};
  }
  std::vector<TensorSignature> InputSignature() const override { return {}; }
  std::vector<TensorSignature> OutputSignature() const override { return {Anything()}; }
};

class SumsList : public Layer {
 public:
  Batch Forward(const Batch& inputs, const LayerContext&) override {
    const penstock::ValueList* list = inputs.atomic() ? inputs[0].list() : nullptr;
    if (list == nullptr || list->size() != 2) throw std::runtime_error("test_list_sum takes a list of two");
    return {at::add(*list->at(0).tensor(), *list->at(1).tensor())};
  }
  std::vector<TensorSignature> InputSignature() const override { return {Anything()}; }
  std::vector<TensorSignature> OutputSignature() const override { return {Anything()}; }
};

template <typename Kind>
absl::StatusOr<std::unique_ptr<Layer>> MakePlain(const LayerRequest&) {
  return std::make_unique<Kind>();
}

absl::StatusOr<std::unique_ptr<Layer>> MakeTwice(const LayerRequest& request) {
  penstock::OptionReader reader(request.options, request.path);
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<Twice>(false);
}

absl::StatusOr<std::unique_ptr<Layer>> MakeKiller(const LayerRequest& request) {
  penstock::OptionReader reader(request.options, request.path);
  const std::string at = reader.Text("at", "");
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  return std::make_unique<Killer>(at);
}

absl::StatusOr<std::unique_ptr<Layer>> MakeFaulty(const LayerRequest& request) {
  penstock::OptionReader reader(request.options, request.path);
  const std::string fault = reader.Text("fault", "");
  PENSTOCK_RETURN_IF_ERROR(reader.Finish());
  if (fault == "factory") throw std::runtime_error("this factory fails on purpose");
  if (fault == "null") return std::unique_ptr<Layer>();
  if (fault == "commit") return std::make_unique<FailsToCommit>();
  if (fault == "same_name") return std::make_unique<Twice>(request, "weight", "weight");
  return std::make_unique<Twice>(!request.shapes_only && fault == "large");
}

}  // namespace

PENSTOCK_LAYER_LIBRARY(kinds) {
  const char* const variable = std::getenv("PENSTOCK_TEST_LAYERS_FAULT");
  const std::string fault = variable == nullptr ? "" : variable;
  if (fault == "nothing") return;
  if (fault == "throws") throw std::runtime_error("these kinds are not ready");
  if (fault == "throws_nonsense") throw 42;
  if (fault == "misnamed") return kinds.Add("Test-Kind", MakeTwice);
  if (fault == "digit_first") return kinds.Add("2_test", MakeTwice);
  if (fault == "no_factory") return kinds.Add("test_no_factory", nullptr);
  if (fault == "built_in") return kinds.Add("linear", MakeTwice);
  kinds.Add("test_twice", MakeTwice);
  kinds.Add("test_faulty", MakeFaulty);
  kinds.Add("test_killer", MakeKiller);
  kinds.Add("test_values", MakePlain<ManyValues>);
  kinds.Add("test_values_sum", MakePlain<SumsValues>);
  kinds.Add("test_list", MakePlain<MakesList>);
  kinds.Add("test_list_sum", MakePlain<SumsList>);
}
