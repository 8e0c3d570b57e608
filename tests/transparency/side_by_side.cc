#include "tests/transparency/side_by_side.h"

#include <ATen/core/Generator.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <exception>
#include <random>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/autograd/seeds.h"
#include "engine/base/error.h"
#include "engine/plan/planner.h"

namespace penstock::testing {
namespace {

constexpr char kPlanted[] = "planted fault";

bool SameBits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor left = a.contiguous();
  const at::Tensor right = b.contiguous();
  return std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

// The same NaN for all: of two that are added in another order another one's payload stays.
at::Tensor OneNan(const at::Tensor& tensor) { return tensor.masked_fill(tensor.isnan(), NAN); }

Difference Values(std::string text) { return {"values", std::move(text)}; }

Difference Failed(const std::string& call, const absl::Status& status) {
  return {absl::StrCat("status ", ReasonOf(status)), absl::StrCat(call, ": ", status.ToString())};
}

// Where two tensors of one shape differ most; 0 if only in the bits of zeros or of what is not a number.
std::string Apart(const at::Tensor& got, const at::Tensor& want) {
  if (got.sizes() != want.sizes() || got.numel() == 0) return " in shape";
  return absl::StrCat(" by ", got.to(at::kDouble).sub(want.to(at::kDouble)).abs().nan_to_num().max().item<double>());
}

// The gradients that a client makes for the outputs of its Forward: numbers of its own, whatever the loss was.
NamedTensors ClientGradients(const NamedValues& outputs, uint64_t seed, int number) {
  at::Generator generator = InitialGenerator(seed ^ 0x6e41d, LayerIndex(number));
  NamedTensors gradients;
  for (const NamedValue& output : outputs) {
    const at::Tensor* tensor = output.value.tensor();
    if (tensor == nullptr || tensor->dim() == 0) continue;
    gradients.push_back({output.name, tensor->is_floating_point()
                                          ? at::randn(tensor->sizes(), generator, tensor->scalar_type())
                                          : at::zeros_like(*tensor)});
  }
  return gradients;
}

int64_t Pieces(const RandomContribution& one) {
  const int64_t rows = (one.rows + one.micro_batches - 1) / one.micro_batches;
  return (one.rows + rows - 1) / rows;
}

// The outputs of all micro-batches, joined; undefined for what is no tensor.
Tensors Joined(const std::vector<Batch>& micro_batches) {
  std::vector<Tensors> pieces;  // by output, then by micro-batch
  for (const Batch& one : micro_batches) {
    const Tensors outputs = one.TensorsByPosition();
    pieces.resize(outputs.size());
    for (size_t k = 0; k < outputs.size(); ++k) pieces[k].push_back(outputs[k]);
  }
  Tensors joined;
  for (const Tensors& of_output : pieces) joined.push_back(of_output[0].defined() ? at::cat(of_output) : at::Tensor());
  return joined;
}

Difference CompareOutputs(const std::string& call, const NamedValues& got, const Tensors& want) {
  if (got.size() != want.size()) return Values(absl::StrCat(call, ": ", got.size(), " outputs"));
  for (size_t i = 0; i < want.size(); ++i) {
    const at::Tensor* tensor = got[i].value.tensor();
    if (SameBits(tensor == nullptr ? at::Tensor() : *tensor, want[i])) continue;
    return Values(absl::StrCat(call, ": output ", i));
  }
  return {};
}

// One Backward of the plain loop, with the gradient of each output split as the output was.
void PlainBackward(const std::vector<Batch>& micro_batches, const Tensors& gradients, bool retain) {
  std::vector<int64_t> done(gradients.size(), 0);
  for (const Batch& outputs : micro_batches) {
    Tensors roots, root_gradients;
    size_t next = 0;  // of the gradients: one for each tensor
    for (const Value& output : outputs) {
      if (!output.is_tensor()) continue;
      const int64_t rows = output.tensor()->size(0);
      // A copy, as the stages get one: a product's last bit depends on how the memory of its operands is aligned.
      const at::Tensor piece = gradients.at(next).narrow(0, done[next], rows).clone();
      done[next++] += rows;
      if (!output.tensor()->requires_grad()) continue;
      roots.push_back(*output.tensor());
      root_gradients.push_back(piece);
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_gradients, retain);
  }
}

}  // namespace

Difference SideBySide::Run() {
  try {
    return RunSteps();
  } catch (const std::exception& error) {
    return {"plain", absl::StrCat("the plain loop threw ", error.what())};
  }
}

Difference SideBySide::RunSteps() {
  if (Difference difference = MakePipeline(case_.layout); difference.found()) return difference;
  loss_ = *MakeLoss(case_.spec.loss);
  plain_ = std::make_unique<PlainReference>(
      PlainSpec{case_.spec.model, case_.spec.loss, case_.spec.optimizer, case_.spec.seed});
  for (size_t s = 0; s < case_.steps.size(); ++s) {
    Difference difference;
    if (case_.move.has_value() && case_.move->before_step == static_cast<int>(s)) difference = Move();
    if (!difference.found()) difference = Step(case_.steps[s]);
    if (!difference.found()) difference = CompareState();
    if (difference.found()) return {difference.kind, absl::StrCat("step ", s, ": ", difference.text)};
  }
  return Inference();
}

Difference SideBySide::MakePipeline(const RandomLayout& layout) {
  Pipeline::Options options;
  options.devices = pool_;
  options.profile = {.rows = 2, .repeats = 1};
  options.before_action = [this](const Action& action) { BeforeAction(action); };
  if (group_ != nullptr) {
    options = group_->Options(std::move(options));
    options.edits.plan = [this](Plan& plan) {
      std::mt19937_64 random(case_.seed);
      std::vector<Rank> ranks;
      for (int lane = 0; lane < LaneCount(plan); ++lane) ranks.emplace_back(random() % group_->ranks());
      for (StagePlan& stage : plan.stages) {
        stage.rank = ranks[stage.lane];
        if (stage.rank != Rank(0)) ++stages_elsewhere_;
      }
    };
  }
  auto made = Pipeline::Create(SpecOf(case_, layout), options);
  if (!made.ok()) return {"create", absl::StrCat("Create: ", made.status().ToString())};
  pipeline_ = *std::move(made);
  layout_ = &layout;
  return {};
}

Difference SideBySide::Move() {
  const NamedTensors state = pipeline_->ExportState(/*with_optimizer=*/true).value();
  const int64_t step = pipeline_->step();
  pipeline_.reset();
  if (Difference difference = MakePipeline(case_.move->layout); difference.found()) return difference;
  const absl::Status status = pipeline_->ImportState(state, step);
  return status.ok() ? Difference{} : Failed("ImportState", status);
}

void SideBySide::BeforeAction(const Action& action) {
  ++actions_[static_cast<size_t>(action.kind)];
  if (action.kind == ActionKind::kOptimizer || until_broken_.load() < 0 || until_broken_.fetch_sub(1) != 0) return;
  if (cancel_ == nullptr) throw std::runtime_error(kPlanted);
  cancel_->Cancel();
}

// Lets an attempt break when so many actions have begun.
void SideBySide::Arm(const RandomContribution& contribution, int64_t action) {
  cancel_ = contribution.attempt == Attempt::kCancel ? std::make_shared<CancelToken>() : nullptr;
  until_broken_ = action;
}

// Whether an attempt has failed as it must.
Difference SideBySide::Attempted(const RandomContribution& contribution, const absl::Status& status) {
  until_broken_ = -1;
  const bool cancelled = cancel_ != nullptr;
  cancel_ = nullptr;
  if (status.ok()) return Values(absl::StrCat("an attempt did not fail: ", contribution.broken_at));
  const bool right =
      cancelled ? absl::IsCancelled(status) : std::string(status.message()).find(kPlanted) != std::string::npos;
  return right ? Difference{} : Failed("an attempt", status);
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

Difference SideBySide::Whole(const RandomStep& step) {
  const RandomContribution& contribution = step.contributions[0];
  const RandomBatch batch = MakeRandomBatch(case_, batch_++, contribution);
  ContributionRequest request;
  request.inputs = Named(batch.inputs);
  request.target = batch.target;
  request.micro_batches = contribution.micro_batches;
  const StepRequest of_step = {step.learning_rate, step.clip_norm};
  if (contribution.attempt != Attempt::kNone) {
    const auto actions = static_cast<double>(2 * Pieces(contribution)) * static_cast<double>(layout_->balance.size());
    Arm(contribution, static_cast<int64_t>(contribution.broken_at * actions));
    const absl::Status status = pipeline_->TrainStep(request, of_step).status();
    if (Difference difference = Attempted(contribution, status); difference.found()) return difference;
  }
  const absl::StatusOr<RunOutcome> got = pipeline_->TrainStep(request, of_step);
  if (!got.ok()) return Failed("TrainStep", got.status());
  if (Difference difference = CompareLoss(*got, contribution, batch, {}); difference.found()) return difference;
  return Applied(got, step);
}

Difference SideBySide::Step(const RandomStep& step) {
  if (step.whole) return Whole(step);
  std::vector<RandomBatch> batches;
  double total = 0;
  const int first = batch_;
  for (const RandomContribution& part : step.contributions) {
    batches.push_back(MakeRandomBatch(case_, batch_++, part));
    total += loss_->Counted(batches.back().target, {});
  }
  std::vector<Half> halves;
  for (size_t i = 0; i < batches.size(); ++i) {
    const RandomContribution& part = step.contributions[i];
    Difference difference;
    if (part.halves) {
      difference = Forward(part, batches[i], first + static_cast<int>(i), halves.emplace_back());
      if (!difference.found() && !step.backwards_last) difference = Backward(halves.back());
    } else {
      difference = Contribution(part, batches[i], step.total_given ? std::optional<double>(total) : std::nullopt);
    }
    if (difference.found()) return {difference.kind, absl::StrCat("contribution ", i, ": ", difference.text)};
  }
  for (Half& half : halves) {
    if (!step.backwards_last) break;
    if (Difference difference = Backward(half); difference.found()) return difference;
  }
  if (Difference difference = BeforeTheStep(); difference.found()) return difference;
  if (!step.discarded) return Applied(pipeline_->OptimizerStep({step.learning_rate, step.clip_norm}), step);
  pipeline_->DiscardGradients();
  plain_->Discard();
  return {};
}

Difference SideBySide::Contribution(const RandomContribution& contribution, const RandomBatch& batch,
                                    std::optional<double> total) {
  ContributionRequest request;
  request.inputs = Named(batch.inputs);
  request.target = batch.target;
  request.micro_batches = contribution.micro_batches;
  request.total_elements = total;
  if (contribution.attempt != Attempt::kNone) {
    const auto actions = static_cast<double>(2 * Pieces(contribution)) * static_cast<double>(layout_->balance.size());
    Arm(contribution, static_cast<int64_t>(contribution.broken_at * actions));
    request.cancel = cancel_;
    const absl::Status status = pipeline_->ForwardBackward(request).status();
    if (Difference difference = Attempted(contribution, status); difference.found()) return difference;
    request.cancel = nullptr;
  }
  const absl::StatusOr<RunOutcome> got = pipeline_->ForwardBackward(request);
  if (!got.ok()) return Failed("ForwardBackward", got.status());
  return CompareLoss(*got, contribution, batch, total);
}

Difference SideBySide::CompareLoss(const RunOutcome& got, const RandomContribution& contribution,
                                   const RandomBatch& batch, std::optional<double> total) {
  const double sum = plain_->Contribute(batch.inputs, batch.target, contribution.micro_batches, total);
  const double counted = loss_->Counted(batch.target, {});
  const double mean = counted == 0 ? 0 : sum * (total.has_value() ? *total / counted : 1);
  if (SameBits(*got.loss, mean)) return {};
  return Values(absl::StrCat("loss ", *got.loss, " not ", mean));
}

Difference SideBySide::Forward(const RandomContribution& contribution, const RandomBatch& batch, int number,
                               Half& half) {
  ForwardRequest request;
  request.inputs = Named(batch.inputs);
  request.micro_batches = contribution.micro_batches;
  const auto forwards = static_cast<double>(Pieces(contribution)) * static_cast<double>(layout_->balance.size());
  if (contribution.attempt != Attempt::kNone && contribution.broken_at < 0.5) {
    Arm(contribution, static_cast<int64_t>(contribution.broken_at * 2 * forwards));
    request.cancel = cancel_;
    const absl::Status status = pipeline_->Forward(request).status();
    if (Difference difference = Attempted(contribution, status); difference.found()) return difference;
    request.cancel = nullptr;
  }
  absl::StatusOr<ForwardOutcome> got = pipeline_->Forward(request);
  if (!got.ok()) return Failed("Forward", got.status());
  half = {*std::move(got), plain_->Forward(batch.inputs, contribution.micro_batches), &contribution, number};
  return CompareOutputs("Forward", half.got.outputs, Joined(half.want));
}

Difference SideBySide::Backward(Half& half) {
  const RandomContribution& contribution = *half.contribution;
  if (contribution.attempt != Attempt::kNone && contribution.broken_at >= 0.5) {
    if (Difference difference = BackwardOnce(half, /*retain=*/false, /*attempt=*/true); difference.found()) {
      return difference;
    }
    // The graph is used up. What its Forward has told the batch norms stays.
    const RandomBatch batch = MakeRandomBatch(case_, half.number, contribution);
    if (Difference difference = Forward(contribution, batch, half.number, half); difference.found()) return difference;
  }
  if (contribution.twice) {
    if (Difference difference = BackwardOnce(half, /*retain=*/true, /*attempt=*/false); difference.found()) {
      return difference;
    }
  }
  return BackwardOnce(half, /*retain=*/false, /*attempt=*/false);
}

Difference SideBySide::BackwardOnce(Half& half, bool retain, bool attempt) {
  const NamedTensors gradients = ClientGradients(half.got.outputs, case_.seed, half.number);
  if (attempt) {
    RandomContribution fault = *half.contribution;
    fault.attempt = Attempt::kFault;  // a Backward can't be cancelled
    const auto actions = static_cast<double>(Pieces(fault)) * static_cast<double>(layout_->balance.size());
    Arm(fault, static_cast<int64_t>((fault.broken_at - 0.5) * 2 * actions));
    return Attempted(fault, pipeline_->Backward(half.got.graph, gradients, retain).status());
  }
  const absl::Status status = pipeline_->Backward(half.got.graph, gradients, retain).status();
  if (!status.ok()) return Failed("Backward", status);
  Tensors plain_gradients;
  for (const NamedTensor& gradient : gradients) plain_gradients.push_back(gradient.tensor);
  PlainBackward(half.want, plain_gradients, retain);
  return {};
}

Difference SideBySide::Applied(const absl::StatusOr<RunOutcome>& got, const RandomStep& step) {
  if (!got.ok()) return Failed("OptimizerStep", got.status());
  const PlainReference::StepResult want = plain_->Step(step.learning_rate, step.clip_norm);
  // Of two NaN added in another order another one's payload stays; a step that has them is not applied.
  const bool both_nan = std::isnan(*got->gradient_norm) && std::isnan(want.gradient_norm);
  if (!both_nan && !SameBits(*got->gradient_norm, want.gradient_norm)) {
    return Values(absl::StrCat("gradient norm ", *got->gradient_norm, " not ", want.gradient_norm));
  }
  if (got->applied != want.applied) return Values(absl::StrCat("applied is ", *got->applied));
  if (got->learning_rate != want.learning_rate) return Values(absl::StrCat("learning rate ", *got->learning_rate));
  return {};
}

Difference SideBySide::CompareState() const {
  const NamedTensors got = pipeline_->ExportState(/*with_optimizer=*/true).value();
  NamedTensors want = plain_->SavedTensors();
  for (const NamedTensor& slot : plain_->OptimizerState()) want.push_back({"optimizer/" + slot.name, slot.tensor});
  if (got.size() != want.size()) return Values(absl::StrCat(got.size(), " tensors instead of ", want.size()));
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i].name != want[i].name) return Values(absl::StrCat(got[i].name, " instead of ", want[i].name));
    if (!SameBits(got[i].tensor, want[i].tensor)) return Values(got[i].name + Apart(got[i].tensor, want[i].tensor));
  }
  return {};
}

Difference SideBySide::BeforeTheStep() {
  if (!pipeline_->accumulating()) return {};
  if (Difference difference = Evaluation(); difference.found()) return difference;
  return CompareGradients();
}

Difference SideBySide::CompareGradients() const {
  const absl::StatusOr<NamedTensors> got = pipeline_->ExportGradients();
  if (!got.ok()) return Failed("ExportGradients", got.status());
  NamedTensors want = plain_->Gradients();
  std::erase_if(want, [](const NamedTensor& gradient) { return !gradient.tensor.defined(); });
  if (got->size() != want.size()) return Values(absl::StrCat(got->size(), " gradients instead of ", want.size()));
  for (size_t i = 0; i < want.size(); ++i) {
    if ((*got)[i].name != want[i].name) return Values(absl::StrCat("gradient of ", (*got)[i].name));
    if (SameBits(OneNan((*got)[i].tensor), OneNan(want[i].tensor))) continue;
    return Values(absl::StrCat("gradient of ", want[i].name, Apart((*got)[i].tensor, want[i].tensor)));
  }
  return {};
}

Difference SideBySide::Evaluation() const {
  const RandomBatch batch = MakeRandomBatch(case_, batch_, case_.inference);
  EvaluationRequest request;
  request.batch.inputs = Named(batch.inputs);
  request.batch.target = batch.target;
  request.batch.micro_batches = case_.inference.micro_batches;
  absl::Notification done;
  absl::StatusOr<RunOutcome> got;
  pipeline_->EvaluateAsync(std::move(request), [&](absl::StatusOr<RunOutcome> outcome) {
    got = std::move(outcome);
    done.Notify();
  });
  pool_->Wait(done);
  if (!got.ok()) return Failed("Evaluate", got.status());
  const double want = plain_->Evaluate(batch.inputs, batch.target, case_.inference.micro_batches);
  if (!SameBits(*got->loss, want)) return Values(absl::StrCat("evaluated loss ", *got->loss, " not ", want));
  if (got->counted != loss_->Counted(batch.target, {})) return Values(absl::StrCat("counted ", *got->counted));
  return {};
}

Difference SideBySide::Inference() {
  const RandomBatch batch = MakeRandomBatch(case_, batch_, case_.inference);
  absl::Notification done;
  absl::StatusOr<ForwardOutcome> got;
  ForwardRequest request;
  request.inputs = Named(batch.inputs);
  request.micro_batches = case_.inference.micro_batches;
  pipeline_->InferAsync(std::move(request), [&](absl::StatusOr<ForwardOutcome> outcome) {
    got = std::move(outcome);
    done.Notify();
  });
  pool_->Wait(done);
  if (!got.ok()) return Failed("Infer", got.status());
  return CompareOutputs("Infer", got->outputs, plain_->Infer(batch.inputs, case_.inference.micro_batches));
}

}  // namespace penstock::testing
