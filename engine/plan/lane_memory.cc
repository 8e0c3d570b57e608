#include "engine/plan/lane_memory.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace penstock {
namespace {

// When the actions of one stage and micro-batch end. -1: there is none.
struct Ends {
  Ticks forward = -1;
  Ticks input_gradient = -1;  // B or I
  Ticks last = -1;            // B or W
  bool recomputed = false;
};

class Lifetimes {
 public:
  Lifetimes(const Schedule& lists, const Simulation& simulation)
      : micro_batches_(lists.micro_batches), ends_(static_cast<size_t>(lists.stages) * lists.micro_batches) {
    for (const auto& lane : simulation.lanes) {
      for (const TimedAction& timed : lane) Note(timed);
    }
  }

  const Ends& Of(int stage, int micro_batch) const {
    return ends_[static_cast<size_t>(stage) * micro_batches_ + micro_batch];
  }

 private:
  void Note(const TimedAction& timed) {
    if (IsCommunication(timed.action.kind) || timed.action.kind == ActionKind::kOptimizer) return;
    Ends& ends = ends_[static_cast<size_t>(timed.action.stage) * micro_batches_ + timed.action.micro_batch];
    if (timed.action.kind == ActionKind::kForward) ends.forward = timed.end;
    if (timed.action.kind == ActionKind::kRecompute) ends.recomputed = true;
    if (ConsumesGradient(timed.action.kind)) ends.input_gradient = timed.end;
    if (AccumulatesGradient(timed.action.kind)) ends.last = timed.end;
  }

  const int micro_batches_;
  std::vector<Ends> ends_;
};

// Sums up what is held from one time to another.
class Held {
 public:
  void Add(Ticks from, Ticks to, int64_t bytes) {
    if (bytes == 0 || from < 0 || to < 0) return;
    changes_.emplace_back(from, bytes);
    changes_.emplace_back(to, -bytes);
  }
  // What ends where something else begins is still there.
  int64_t Peak() {
    std::sort(changes_.begin(), changes_.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    int64_t held = 0;
    int64_t peak = 0;
    for (const auto& [time, bytes] : changes_) peak = std::max(peak, held += bytes);
    return peak;
  }

 private:
  std::vector<std::pair<Ticks, int64_t>> changes_;
};

// By the lists alone: actions of one lane do not overlap.
int64_t PeakActivationBytes(const std::vector<Action>& list, const Lifetimes& lifetimes,
                            const std::vector<StageBytes>& stages) {
  int64_t held = 0;
  int64_t peak = 0;
  for (const Action& action : list) {
    const bool acquires =
        action.kind == ActionKind::kRecompute ||
        (action.kind == ActionKind::kForward && !lifetimes.Of(action.stage, action.micro_batch).recomputed);
    if (acquires) peak = std::max(peak, held += stages[action.stage].stash);
    if (AccumulatesGradient(action.kind)) held -= stages[action.stage].stash;
  }
  return peak;
}

}  // namespace

std::string_view ToString(BufferClass buffer) {
  switch (buffer) {
    case BufferClass::kWeights:
      return "weights";
    case BufferClass::kGradients:
      return "gradients";
    case BufferClass::kOptimizerState:
      return "optimizer state";
    case BufferClass::kActivations:
      return "activations";
    case BufferClass::kReceivedInputs:
      return "received inputs";
    case BufferClass::kReceivedGradients:
      return "received gradients";
    case BufferClass::kUndo:
      return "undo";
  }
  return "";
}

BufferBytes& BufferBytes::operator+=(const BufferBytes& other) {
  for (int i = 0; i < kBufferClasses; ++i) bytes[i] += other.bytes[i];
  return *this;
}

int64_t BufferBytes::total() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

BufferClass BufferBytes::largest() const {
  return static_cast<BufferClass>(std::max_element(bytes.begin(), bytes.end()) - bytes.begin());
}

std::vector<StageBytes> BytesOf(const Plan& plan) {
  std::vector<StageBytes> stages;
  for (const StagePlan& stage : plan.stages) {
    stages.push_back({.parameters = stage.parameter_bytes,
                      .optimizer = stage.optimizer_bytes,
                      .stash = stage.stash_bytes,
                      .input = stage.input_bytes,
                      .undo = stage.undo_bytes});
  }
  for (const SkipRoute& route : plan.skips) {  // counted by themselves
    stages[route.edge.to].input -= route.bytes + route.held_bytes;
  }
  return stages;
}

std::vector<BufferBytes> LaneMemory(const Schedule& lists, const Simulation& simulation,
                                    const std::vector<StageBytes>& stages, const std::vector<SkipRoute>& skips) {
  const Lifetimes lifetimes(lists, simulation);
  const std::vector<int> lane_of = LaneOfEachStage(lists);
  std::vector<BufferBytes> memory(lists.lanes.size());
  std::vector<Held> inputs(lists.lanes.size());
  std::vector<Held> gradients(lists.lanes.size());
  for (int s = 0; s < lists.stages; ++s) {
    const int lane = lane_of[s];
    memory[lane][BufferClass::kWeights] += stages[s].parameters;
    memory[lane][BufferClass::kGradients] += stages[s].parameters;
    memory[lane][BufferClass::kOptimizerState] += stages[s].optimizer;
    memory[lane][BufferClass::kUndo] += stages[s].undo;
    for (int mb = 0; s > 0 && mb < lists.micro_batches; ++mb) {
      const Ends& before = lifetimes.Of(s - 1, mb);
      const Ends& here = lifetimes.Of(s, mb);
      inputs[lane].Add(before.forward, here.last, stages[s].input);
      gradients[lane_of[s - 1]].Add(here.input_gradient, before.input_gradient, stages[s].input);
    }
  }
  for (const SkipRoute& route : skips) {
    for (int mb = 0; mb < lists.micro_batches; ++mb) {
      const Ends& from = lifetimes.Of(route.edge.from, mb);
      const Ends& to = lifetimes.Of(route.edge.to, mb);
      inputs[lane_of[route.edge.to]].Add(from.forward, to.last, route.bytes + route.held_bytes);
      gradients[lane_of[route.edge.from]].Add(to.input_gradient, from.input_gradient, route.bytes);
    }
  }
  for (size_t lane = 0; lane < memory.size(); ++lane) {
    memory[lane][BufferClass::kActivations] = PeakActivationBytes(lists.lanes[lane], lifetimes, stages);
    memory[lane][BufferClass::kReceivedInputs] = inputs[lane].Peak();
    memory[lane][BufferClass::kReceivedGradients] = gradients[lane].Peak();
  }
  return memory;
}

int64_t MessageCount(const std::vector<int>& lane_of, const std::vector<SkipRoute>& skips, int micro_batches) {
  int64_t edges = 0;
  for (size_t s = 1; s < lane_of.size(); ++s) edges += lane_of[s] != lane_of[s - 1] ? 1 : 0;
  for (const SkipRoute& route : skips) edges += lane_of[route.edge.from] != lane_of[route.edge.to] ? 1 : 0;
  return 2 * edges * micro_batches;
}

}  // namespace penstock
