#include "engine/observe/trace_flows.h"

#include <algorithm>

namespace penstock {
namespace {

bool OfGradient(TraceKind kind) { return kind == TraceKind::kSendGradient || kind == TraceKind::kReceiveGradient; }
bool MakesGradient(TraceKind kind) { return kind == TraceKind::kBackward || kind == TraceKind::kBackwardInput; }

// The action that makes or uses a message of its stage: F of activations, B or I of gradients.
uint64_t ActionKey(const TraceRecord& record, bool gradient) {
  constexpr int kNoMessage = -2;
  return MessageCorrelation(record.run, gradient, record.stage, record.micro_batch, kNoMessage);
}

}  // namespace

TraceFlows::TraceFlows(const TraceCapture& capture) {
  std::unordered_map<uint64_t, const TraceRecord*> sent;
  std::unordered_map<uint64_t, const TraceRecord*> actions;
  for (const LaneCapture& lane : capture.lanes) {
    for (const TraceRecord& record : lane.actions) {
      if (IsSend(record.kind)) sent.emplace(record.correlation, &record);
      if (record.kind == TraceKind::kForward) actions.emplace(ActionKey(record, false), &record);
      if (MakesGradient(record.kind)) actions.emplace(ActionKey(record, true), &record);
    }
  }
  uint64_t flow = 0;
  for (const LaneCapture& lane : capture.lanes) {
    for (const TraceRecord& received : lane.actions) {
      if (!IsReceive(received.kind)) continue;
      const auto send = sent.find(received.correlation);
      if (send == sent.end() || send->second->begin_nanos > received.begin_nanos) continue;
      ++flow;
      const bool gradient = OfGradient(received.kind);
      const auto add = [flow](Points& points, uint64_t key, FlowPoint::Kind kind) {
        points[key].push_back({flow, kind});
      };
      using Kind = FlowPoint::Kind;
      const uint64_t made = ActionKey(*send->second, gradient);
      const auto maker = actions.find(made);
      const bool has_maker = maker != actions.end() && maker->second->begin_nanos <= send->second->begin_nanos;
      if (has_maker) add(actions_, made, Kind::kBegin);
      add(sends_, received.correlation, has_maker ? Kind::kStep : Kind::kBegin);
      const uint64_t used = ActionKey(received, gradient);
      const auto user = actions.find(used);
      const bool has_user = user != actions.end() && user->second->begin_nanos >= received.begin_nanos;
      add(receives_, received.correlation, has_user ? Kind::kStep : Kind::kEnd);
      if (has_user) add(actions_, used, Kind::kEnd);
    }
  }
}

std::span<const FlowPoint> TraceFlows::PointsOf(const TraceRecord& record) const {
  const auto find = [](const Points& points, uint64_t key) -> std::span<const FlowPoint> {
    const auto found = points.find(key);
    if (found == points.end()) return {};
    return found->second;
  };
  if (IsSend(record.kind)) return find(sends_, record.correlation);
  if (IsReceive(record.kind)) return find(receives_, record.correlation);
  if (record.kind == TraceKind::kForward) return find(actions_, ActionKey(record, false));
  if (MakesGradient(record.kind)) return find(actions_, ActionKey(record, true));
  return {};
}

}  // namespace penstock
