#include "tests/transparency/side_by_side.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>

#include <exception>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace penstock::testing {
namespace {

bool Same(double a, double b) { return a == b || (a != a && b != b); }

bool Same(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  return at::equal(a, b) || at::allclose(a, b, /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true);
}

// What differs, or nothing.
std::string Difference(const NamedTensors& got, const NamedTensors& want) {
  if (got.size() != want.size()) return absl::StrCat(got.size(), " tensors instead of ", want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i].name != want[i].name) return absl::StrCat(got[i].name, " instead of ", want[i].name);
    if (Same(got[i].tensor, want[i].tensor)) continue;
    return absl::StrCat(got[i].name, " by ", got[i].tensor.sub(want[i].tensor).abs().max().item<double>());
  }
  return "";
}

}  // namespace

std::string SideBySide::Run() {
  try {
    return RunSteps();
  } catch (const std::exception& error) {
    return absl::StrCat("the plain loop threw ", error.what());
  }
}

std::string SideBySide::RunSteps() {
  Pipeline::Options options;
  options.devices = &pool_;
  options.profile = {.rows = 2, .repeats = 1};
  options.before_action = [this](const Action& action) { ++actions_[static_cast<size_t>(action.kind)]; };
  auto made = Pipeline::Create(case_.spec, options);
  if (!made.ok()) return absl::StrCat("Create: ", made.status().ToString());
  pipeline_ = *std::move(made);
  loss_ = *MakeLoss(case_.spec.loss);
  plain_ = std::make_unique<PlainReference>(
      PlainSpec{case_.spec.model, case_.spec.loss, case_.spec.optimizer, case_.spec.seed});
  for (size_t s = 0; s < case_.steps.size(); ++s) {
    std::string different = Step(case_.steps[s]);
    if (different.empty()) different = StateDifference();
    if (!different.empty()) return absl::StrCat("step ", s, ": ", different);
  }
  return Inference();
}

NamedValues SideBySide::Named(const std::vector<Value>& inputs) const {
  const std::vector<TensorSignature>& signature = pipeline_->signature().inputs;
  NamedValues named;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool unnamed = i >= signature.size() || signature[i].name.empty();
    named.push_back({unnamed ? absl::StrCat("input", i) : signature[i].name, inputs[i]});
  }
  return named;
}

std::string SideBySide::Step(const RandomStep& step) {
  std::vector<RandomBatch> batches;
  int64_t total = 0;
  for (const RandomContribution& part : step.contributions) {
    batches.push_back(MakeRandomBatch(case_, batch_++, part.rows));
    total += loss_->Counted(batches.back().target);
  }
  for (size_t i = 0; i < batches.size(); ++i) {
    const RandomContribution& part = step.contributions[i];
    ContributionRequest request;
    request.inputs = Named(batches[i].inputs);
    request.target = batches[i].target;
    request.micro_batches = part.micro_batches;
    if (step.total_given) request.total_elements = total;
    auto got = step.whole ? pipeline_->TrainStep(request, {}) : pipeline_->ForwardBackward(request);
    if (!got.ok()) return got.status().ToString();
    const double sum = plain_->Contribute(batches[i].inputs, batches[i].target, part.micro_batches,
                                          step.total_given ? std::optional<int64_t>(total) : std::nullopt);
    const auto counted = static_cast<double>(loss_->Counted(batches[i].target));
    const double mean = counted == 0 ? 0 : sum * (step.total_given ? static_cast<double>(total) / counted : 1);
    if (!Same(*got->loss, mean)) return absl::StrCat("contribution ", i, ": loss ", *got->loss, " not ", mean);
    if (step.whole) return Applied(*got);
  }
  auto got = pipeline_->OptimizerStep({});
  return got.ok() ? Applied(*got) : got.status().ToString();
}

std::string SideBySide::Applied(const RunOutcome& got) {
  const PlainReference::StepResult want = plain_->Step();
  if (!Same(*got.gradient_norm, want.gradient_norm)) {
    return absl::StrCat("gradient norm ", *got.gradient_norm, " not ", want.gradient_norm);
  }
  if (got.applied != want.applied) return absl::StrCat("applied is ", *got.applied);
  if (got.learning_rate != want.learning_rate) return absl::StrCat("learning rate ", *got.learning_rate);
  return "";
}

std::string SideBySide::StateDifference() const {
  NamedTensors want = plain_->SavedTensors();
  for (const NamedTensor& slot : plain_->OptimizerState()) want.push_back({"optimizer/" + slot.name, slot.tensor});
  return Difference(pipeline_->ExportState(/*with_optimizer=*/true).value(), want);
}

std::string SideBySide::Inference() {
  const RandomBatch batch = MakeRandomBatch(case_, batch_, case_.inference.rows);
  absl::Notification done;
  absl::StatusOr<ForwardOutcome> got;
  ForwardRequest request;
  request.inputs = Named(batch.inputs);
  request.micro_batches = case_.inference.micro_batches;
  pipeline_->InferAsync(std::move(request), [&](absl::StatusOr<ForwardOutcome> outcome) {
    got = std::move(outcome);
    done.Notify();
  });
  pool_.Wait(done);
  if (!got.ok()) return absl::StrCat("inference: ", got.status().ToString());
  const Tensors want = plain_->Infer(batch.inputs, case_.inference.micro_batches);
  if (got->outputs.size() != want.size()) return absl::StrCat("inference: ", got->outputs.size(), " outputs");
  for (size_t i = 0; i < want.size(); ++i) {
    const at::Tensor* tensor = got->outputs[i].value.tensor();
    if (!Same(tensor == nullptr ? at::Tensor() : *tensor, want[i])) return absl::StrCat("inference: output ", i);
  }
  return "";
}

}  // namespace penstock::testing
