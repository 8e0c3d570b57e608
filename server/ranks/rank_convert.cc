#include "server/ranks/rank_convert.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/rank_message.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"
#include "engine/tensor/codec.h"
#include "server/rpc/convert/proto_convert.h"

namespace penstock {
namespace {

// Of one report: sums of many of them do not overflow.
constexpr int64_t kMostCounted = int64_t{1} << 40;
constexpr int64_t kMostNanos = int64_t{1} << 52;  // 52 days

// What lanes take by micro-batch must be there for each of them.
absl::Status CheckRun(const peer::v1::StartRun& run, SchedulePurpose purpose) {
  if (run.run() <= 0) return BadRankMessage("start.run", "must be above 0", absl::StrCat(run.run()));
  const int micro_batches = run.micro_batches();
  const bool has_some = purpose != SchedulePurpose::kOptimizerOnly;
  if (has_some ? micro_batches < 1 : micro_batches != 0) {
    return BadRankMessage("start.micro_batches", has_some ? "must be at least 1" : "must be 0 for a step alone",
                          absl::StrCat(micro_batches));
  }
  const auto each = [&](const char* field, int given) {
    if (given == micro_batches) return absl::OkStatus();
    return BadRankMessage(field, absl::StrCat("must be one for each of the ", micro_batches, " micro-batches"),
                          absl::StrCat(given));
  };
  PENSTOCK_RETURN_IF_ERROR(each("start.rows", run.rows_size()));
  const bool measures = run.shares_size() > 0 || run.targets() || run.metrics_size() > 0;
  if (measures) PENSTOCK_RETURN_IF_ERROR(each("start.shares", run.shares_size()));
  if (run.inference() && (purpose != SchedulePurpose::kForwardOnly || run.keep_graph())) {
    return BadRankMessage("start.inference", "must be a forward that keeps nothing", "another run");
  }
  return absl::OkStatus();
}

// How tensors that are listed stage by stage belong to them.
void SetLayout(const StatesOfStages& states, peer::v1::StageStates* layout) {
  for (const StateOfStage& state : states) {
    peer::v1::StageStates::OfStage* stage = layout->add_stages();
    stage->set_stage(state.stage);
    stage->set_saved(static_cast<int32_t>(state.saved.size()));
    stage->set_optimizer(static_cast<int32_t>(state.optimizer.size()));
  }
}

void SetLane(const LaneReport& report, peer::v1::LaneReport* message) {
  message->set_lane(report.lane);
  message->mutable_state_nanos()->Add(report.state_nanos.begin(), report.state_nanos.end());
  for (size_t i = 0; i < report.phases.size(); ++i) {
    const HistogramSnapshot& phase = report.phases[i];
    const auto end = phase.cumulative.begin() + static_cast<std::ptrdiff_t>(PhaseBuckets().size()) + 1;
    if (*(end - 1) == 0) continue;
    peer::v1::LaneReport::Phase* to = message->add_phases();
    to->set_phase(static_cast<int32_t>(i));
    to->mutable_cumulative()->Add(phase.cumulative.begin(), end);
    to->set_sum_nanos(phase.sum_nanos);
  }
  message->mutable_memory_bytes()->Add(report.memory_bytes.begin(), report.memory_bytes.end());
}

absl::Status SetPhase(const peer::v1::LaneReport::Phase& message, LaneReport* report) {
  const auto phases = static_cast<int>(report->phases.size());
  if (message.phase() < 0 || message.phase() >= phases) {
    return BadRankMessage("lanes.phases.phase", absl::StrCat("must lie in [0, ", phases, ")"),
                          absl::StrCat(message.phase()));
  }
  const size_t wanted = PhaseBuckets().size() + 1;
  if (message.cumulative_size() != static_cast<int>(wanted) ||
      !std::is_sorted(message.cumulative().begin(), message.cumulative().end()) || message.cumulative(0) < 0 ||
      message.cumulative(static_cast<int>(wanted) - 1) > kMostCounted || message.sum_nanos() < 0 ||
      message.sum_nanos() > kMostNanos) {
    return BadRankMessage("lanes.phases.cumulative", absl::StrCat("must be ", wanted, " numbers that do not fall"),
                          absl::StrCat(message.cumulative_size()));
  }
  HistogramSnapshot& phase = report->phases[message.phase()];
  std::copy(message.cumulative().begin(), message.cumulative().end(), phase.cumulative.begin());
  phase.sum_nanos = message.sum_nanos();
  return absl::OkStatus();
}

absl::StatusOr<LaneReport> LaneFrom(const peer::v1::LaneReport& message) {
  LaneReport report{.lane = message.lane()};
  const auto negative = [](int64_t nanos) { return nanos < 0; };
  if (message.state_nanos_size() != kStageStateCount ||
      std::any_of(message.state_nanos().begin(), message.state_nanos().end(), negative)) {
    return BadRankMessage("lanes.state_nanos", absl::StrCat("must be ", kStageStateCount, " times, none negative"),
                          absl::StrCat(message.state_nanos_size()));
  }
  std::copy(message.state_nanos().begin(), message.state_nanos().end(), report.state_nanos.begin());
  for (HistogramSnapshot& phase : report.phases) phase.bounds = PhaseBuckets();
  for (const auto& phase : message.phases()) PENSTOCK_RETURN_IF_ERROR(SetPhase(phase, &report));
  if (message.memory_bytes_size() != static_cast<int>(report.memory_bytes.size())) {
    return BadRankMessage("lanes.memory_bytes", absl::StrCat("must be ", report.memory_bytes.size(), " numbers"),
                          absl::StrCat(message.memory_bytes_size()));
  }
  std::copy(message.memory_bytes().begin(), message.memory_bytes().end(), report.memory_bytes.begin());
  return report;
}

}  // namespace

template <typename Message>
absl::Status Outgoing<Message>::Add(const std::string& name, const at::Tensor& tensor) {
  at::Tensor sendable = tensor;
  if (tensor.defined()) {
    PENSTOCK_ASSIGN_OR_RETURN(sendable, SendableTensor(tensor));
  }
  PENSTOCK_RETURN_IF_ERROR(ListTensor(name, sendable, message_.mutable_tensors()));
  tensors_.push_back(std::move(sendable));
  return absl::OkStatus();
}

template <typename Message>
absl::Status Outgoing<Message>::AddAll(const NamedTensors& tensors) {
  for (const NamedTensor& entry : tensors) PENSTOCK_RETURN_IF_ERROR(Add(entry.name, entry.tensor));
  return absl::OkStatus();
}

template <typename Message>
absl::Status AddTies(const TiedGradients& ties, peer::v1::TiedGradients* layout, Outgoing<Message>* to) {
  for (const auto& uses : ties) {
    layout->add_uses(static_cast<int32_t>(uses.size()));
    for (const at::Tensor& gradient : uses) PENSTOCK_RETURN_IF_ERROR(to->Add("", gradient));
  }
  return absl::OkStatus();
}

template class Outgoing<peer::v1::Command>;
template class Outgoing<peer::v1::Report>;
template absl::Status AddTies(const TiedGradients&, peer::v1::TiedGradients*, OutgoingCommand*);
template absl::Status AddTies(const TiedGradients&, peer::v1::TiedGradients*, OutgoingReport*);

absl::Status AddStates(const StatesOfStages& states, peer::v1::StageStates* layout, OutgoingReport* to) {
  SetLayout(states, layout);
  for (const StateOfStage& state : states) {
    PENSTOCK_RETURN_IF_ERROR(to->AddAll(state.saved));
    PENSTOCK_RETURN_IF_ERROR(to->AddAll(state.optimizer));
  }
  return absl::OkStatus();
}

absl::StatusOr<NamedTensors> IncomingTensors::Take(int64_t count) {
  if (count < 0 || static_cast<size_t>(count) > tensors_.size() - next_) {
    return BadRankMessage("tensors", "must be as many as the message speaks of", absl::StrCat(tensors_.size()));
  }
  const auto first = tensors_.begin() + static_cast<std::ptrdiff_t>(next_);
  next_ += static_cast<size_t>(count);
  return NamedTensors(std::make_move_iterator(first), std::make_move_iterator(first + count));
}

absl::StatusOr<TiedGradients> IncomingTensors::TakeTies(const peer::v1::TiedGradients& layout) {
  TiedGradients ties;
  for (const int32_t uses : layout.uses()) {
    PENSTOCK_ASSIGN_OR_RETURN(NamedTensors gradients, Take(uses));
    auto& of_parameter = ties.emplace_back();
    for (NamedTensor& gradient : gradients) of_parameter.push_back(std::move(gradient.tensor));
  }
  return ties;
}

absl::StatusOr<StatesOfStages> IncomingTensors::TakeStates(const peer::v1::StageStates& layout) {
  StatesOfStages states;
  for (const peer::v1::StageStates::OfStage& stage : layout.stages()) {
    StateOfStage& state = states.emplace_back();
    state.stage = stage.stage();
    PENSTOCK_ASSIGN_OR_RETURN(state.saved, Take(stage.saved()));
    PENSTOCK_ASSIGN_OR_RETURN(state.optimizer, Take(stage.optimizer()));
  }
  return states;
}

peer::v1::MeasuredLinks ToProto(Rank self, const std::vector<Link>& links) {
  peer::v1::MeasuredLinks message;
  for (const Link& link : links) {
    peer::v1::MeasuredLinks::Link* to = message.add_links();
    to->set_peer((link.one == self ? link.other : link.one).value());
    to->set_measured(link.measured);
    to->set_latency_seconds(link.latency_seconds);
    to->set_bytes_per_second(link.bytes_per_second);
    to->set_problem(link.problem);
  }
  return message;
}

absl::StatusOr<std::vector<Link>> FromProto(Rank self, const peer::v1::MeasuredLinks& message) {
  std::vector<Link> links;
  for (const auto& link : message.links()) {
    const bool figures = link.latency_seconds() >= 0 && link.bytes_per_second() > 0 &&
                         std::isfinite(link.latency_seconds()) && std::isfinite(link.bytes_per_second());
    if (link.measured() && !figures) {
      return BadRankMessage("links", "must have a latency, and a bandwidth above 0",
                            absl::StrCat(link.latency_seconds(), " and ", link.bytes_per_second()));
    }
    const Rank peer(link.peer());
    links.push_back({.one = std::min(self, peer),
                     .other = std::max(self, peer),
                     .measured = link.measured(),
                     .latency_seconds = link.latency_seconds(),
                     .bytes_per_second = link.bytes_per_second(),
                     .problem = link.problem()});
  }
  return links;
}

peer::v1::StartRun ToProto(const RunOrder& order) {
  const RunSpec& spec = order.spec;
  peer::v1::StartRun message;
  message.set_run(spec.id);
  message.set_purpose(static_cast<int32_t>(spec.purpose));
  message.set_micro_batches(spec.micro_batches);
  message.mutable_rows()->Add(spec.rows.begin(), spec.rows.end());
  message.set_seed(spec.seed);
  message.set_step(spec.step.value());
  message.set_micro_batch_base(spec.micro_batch_base);
  message.set_inference(spec.inference);
  message.set_training(spec.training);
  message.set_keep_graph(spec.keep_graph);
  message.set_retain_graph(spec.retain_graph);
  message.set_accumulating(spec.accumulating);
  message.set_graph(spec.graph);
  message.set_keep_outputs(spec.keep_outputs);
  message.set_input_gradients(spec.input_gradients);
  if (order.loss.has_value()) *message.mutable_loss() = ToProto(*order.loss);
  message.set_output(order.output);
  message.set_targets(order.targets);
  message.mutable_shares()->Add(order.shares.begin(), order.shares.end());
  message.mutable_metrics()->Add(order.metrics.begin(), order.metrics.end());
  message.set_priority(order.order.priority);
  message.set_turn(order.order.turn);
  message.set_sequence(order.order.sequence);
  return message;
}

absl::StatusOr<RunOrder> FromProto(const peer::v1::StartRun& message) {
  RunOrder order;
  RunSpec& spec = order.spec;
  spec.id = message.run();
  constexpr auto kLast = static_cast<int32_t>(SchedulePurpose::kOptimizerOnly);
  if (message.purpose() < 0 || message.purpose() > kLast) {
    return BadRankMessage("start.purpose", absl::StrCat("must lie in [0, ", kLast, "]"),
                          absl::StrCat(message.purpose()));
  }
  spec.purpose = static_cast<SchedulePurpose>(message.purpose());
  PENSTOCK_RETURN_IF_ERROR(CheckRun(message, spec.purpose));
  spec.micro_batches = message.micro_batches();
  spec.rows.assign(message.rows().begin(), message.rows().end());
  spec.seed = message.seed();
  spec.step = StepId(message.step());
  spec.micro_batch_base = message.micro_batch_base();
  spec.inference = message.inference();
  spec.training = message.training();
  spec.keep_graph = message.keep_graph();
  spec.retain_graph = message.retain_graph();
  spec.accumulating = message.accumulating();
  spec.graph = message.graph();
  spec.keep_outputs = message.keep_outputs();
  spec.input_gradients = message.input_gradients();
  if (message.has_loss()) {
    PENSTOCK_ASSIGN_OR_RETURN(order.loss, FromProto(message.loss(), "start.loss"));
  }
  order.output = message.output();
  order.targets = message.targets();
  order.shares.assign(message.shares().begin(), message.shares().end());
  order.metrics.assign(message.metrics().begin(), message.metrics().end());
  order.order = {.priority = message.priority(), .turn = message.turn(), .sequence = message.sequence()};
  return order;
}

peer::v1::Decision ToProto(int64_t run, const StepDecision& decision) {
  peer::v1::Decision message;
  message.set_run(run);
  message.set_learning_rate(decision.learning_rate);
  message.set_norm(decision.norm);
  message.set_scale(decision.scale);
  message.set_applied(decision.applied);
  return message;
}

StepDecision FromProto(const peer::v1::Decision& message) {
  return {.learning_rate = message.learning_rate(),
          .norm = message.norm(),
          .scale = message.scale(),
          .applied = message.applied()};
}

peer::v1::Measures ToProto(const Measures& measures) {
  peer::v1::Measures message;
  message.mutable_losses()->Add(measures.losses.begin(), measures.losses.end());
  for (const std::vector<MetricSum>& of_micro_batch : measures.metric_sums) {
    peer::v1::MetricSums* sums = message.add_metric_sums();
    for (const MetricSum& sum : of_micro_batch) {
      sums->add_sums(sum.sum);
      sums->add_counted(sum.counted);
    }
  }
  for (const LaneReport& lane : measures.lanes) SetLane(lane, message.add_lanes());
  return message;
}

absl::StatusOr<Measures> FromProto(const peer::v1::Measures& message) {
  Measures measures;
  measures.losses.assign(message.losses().begin(), message.losses().end());
  for (const peer::v1::MetricSums& sums : message.metric_sums()) {
    if (sums.sums_size() != sums.counted_size()) {
      return BadRankMessage("measures.metric_sums.counted", absl::StrCat("must be ", sums.sums_size(), " numbers"),
                            absl::StrCat(sums.counted_size()));
    }
    auto& of_micro_batch = measures.metric_sums.emplace_back();
    for (int i = 0; i < sums.sums_size(); ++i) {
      of_micro_batch.push_back({.sum = sums.sums(i), .counted = sums.counted(i)});
    }
  }
  for (const peer::v1::LaneReport& lane : message.lanes()) {
    PENSTOCK_ASSIGN_OR_RETURN(measures.lanes.emplace_back(), LaneFrom(lane));
  }
  return measures;
}

absl::Status SetFacts(const FactsOfRank& facts, peer::v1::Facts* message) {
  SetLayout(facts.shapes, message->mutable_states());
  for (const StateOfStage& state : facts.shapes) {
    for (const NamedTensors* tensors : {&state.saved, &state.optimizer}) {
      for (const NamedTensor& entry : *tensors) {
        PENSTOCK_RETURN_IF_ERROR(ListTensor(entry.name, entry.tensor, message->mutable_shapes()));
      }
    }
  }
  for (const auto& [index, names] : facts.parameters) {
    peer::v1::Facts::OfStage* stage = message->add_stages();
    stage->set_stage(index);
    stage->mutable_parameters()->Add(names.begin(), names.end());
  }
  message->set_parameter_count(facts.parameter_count);
  for (const LaneReport& lane : facts.lanes) SetLane(lane, message->add_lanes());
  return absl::OkStatus();
}

absl::StatusOr<FactsOfRank> FromProto(const peer::v1::Facts& message) {
  FactsOfRank facts;
  NamedTensors shapes;
  for (const v1::TensorHeader& header : message.shapes()) {
    const std::optional<at::ScalarType> type = ToScalarType(static_cast<DataType>(header.type()));
    if (!type.has_value()) return BadRankMessage("facts.shapes.type", "must be known", absl::StrCat(header.type()));
    NamedTensor& shape = shapes.emplace_back();
    shape.name = header.name();
    const std::vector<int64_t> sizes(header.shape().begin(), header.shape().end());
    PENSTOCK_RETURN_IF_ERROR(
        RunTorch([&] { shape.tensor = at::empty(sizes, at::TensorOptions().dtype(*type).device(at::kMeta)); }));
  }
  PENSTOCK_ASSIGN_OR_RETURN(facts.shapes, IncomingTensors(std::move(shapes)).TakeStates(message.states()));
  for (const peer::v1::Facts::OfStage& stage : message.stages()) {
    facts.parameters[stage.stage()].assign(stage.parameters().begin(), stage.parameters().end());
  }
  facts.parameter_count = message.parameter_count();
  for (const peer::v1::LaneReport& lane : message.lanes()) {
    PENSTOCK_ASSIGN_OR_RETURN(facts.lanes.emplace_back(), LaneFrom(lane));
  }
  return facts;
}

}  // namespace penstock
