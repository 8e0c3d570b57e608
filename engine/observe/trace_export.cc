#include "engine/observe/trace_export.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"

namespace penstock {
namespace {

constexpr uint64_t kPipelineTrack = 1;
constexpr uint64_t kStepsTrack = 2;
constexpr uint64_t kQueueTracks = 3;
constexpr uint64_t kInferenceTracks = 100;       // as many rows as inferences in flight
constexpr uint64_t kCallTracks = 1'000'000'000;  // as many rows as calls at once: behind all lanes
constexpr uint64_t kRankTracks = 2'000'000'000;
constexpr int kCallOrder = 900;
constexpr uint64_t kTracksPerLane = 1000;  // lane tracks start at 1000

enum class LaneTrackKind : uint64_t { kLane, kState, kCompute, kSend, kReceive, kInFlight };

uint64_t LaneTrackId(size_t lane, LaneTrackKind kind) {
  return (lane + 1) * kTracksPerLane + static_cast<uint64_t>(kind);
}

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// The letters of an action's text, by TraceKind.
constexpr std::array<std::string_view, 12> kLetters = {"",    "F",      "B",      "I",      "W",      "R",
                                                       "OPT", "SEND_F", "SEND_B", "RECV_F", "RECV_B", ""};
constexpr std::array<std::string_view, 3> kOptimizerParts = {" ties", " norms", " apply"};

bool OnTrack(TraceKind kind, LaneTrackKind track) {
  switch (kind) {
    case TraceKind::kSendActivation:
    case TraceKind::kSendGradient:
      return track == LaneTrackKind::kSend;
    case TraceKind::kReceiveActivation:
    case TraceKind::kReceiveGradient:
      return track == LaneTrackKind::kReceive;
    case TraceKind::kState:
    case TraceKind::kRun:
      return false;
    default:
      return track == LaneTrackKind::kCompute;
  }
}

// How the forwards without their backward change with a record of training.
int InFlightChange(const TraceRecord& record) {
  if (record.inference) return 0;
  if (record.kind == TraceKind::kForward) return 1;
  return record.kind == TraceKind::kBackward || record.kind == TraceKind::kBackwardWeight ? -1 : 0;
}

}  // namespace

std::string TraceName(const TraceRecord& record) {
  if (record.kind == TraceKind::kState) {
    return std::string(NameOf(static_cast<StageState>(record.detail)));
  }
  std::string name = record.inference ? "infer " : "";
  absl::StrAppend(&name, record.stage, View(kLetters.at(static_cast<size_t>(record.kind))));
  if (record.kind == TraceKind::kOptimizer) {
    return record.detail < kOptimizerParts.size() ? name.append(kOptimizerParts[record.detail]) : name;
  }
  absl::StrAppend(&name, record.micro_batch);
  if (record.peer >= 0) absl::StrAppend(&name, "@", record.peer);
  return name;
}

std::string RunName(const RunSpan& run) {
  switch (run.purpose) {
    case TraceRun::kTrainStep:
      return absl::StrCat("step ", run.step);
    case TraceRun::kContribution:
      return absl::StrCat("step ", run.step, " contribution");
    case TraceRun::kForward:
      return absl::StrCat("step ", run.step, " forward");
    case TraceRun::kBackward:
      return absl::StrCat("step ", run.step, " backward");
    case TraceRun::kOptimizerStep:
      return absl::StrCat("step ", run.step, " optimizer");
    case TraceRun::kInference:
      break;
  }
  return absl::StrCat("inference ", run.run);
}

TraceExport::TraceExport(std::shared_ptr<const TraceCapture> capture, TraceFormat format)
    : capture_(std::move(capture)),
      flows_(*capture_),
      writer_(format == TraceFormat::kChrome ? MakeChromeTraceWriter() : MakePerfettoTraceWriter()) {
  sections_.push_back(
      {.track = {.id = kPipelineTrack, .name = absl::StrCat("pipeline ", capture_->pipeline), .process = true}});
  AddRuns();
  AddQueues();
  AddCalls();
  AddRanks();
  for (size_t lane = 0; lane < capture_->lanes.size(); ++lane) AddLane(lane);
}

// Training runs follow each other; an inference takes the first row that is free.
void TraceExport::AddRuns() {
  Section steps{.track = {.id = kStepsTrack, .parent = kPipelineTrack, .order = 0, .name = "steps"}};
  std::vector<Section> inference;
  for (const RunSpan& run : RunsOf(*capture_)) {
    TraceSlice slice{.begin_nanos = run.begin_nanos,
                     .end_nanos = run.end_nanos,
                     .name = RunName(run),
                     .category = "run",
                     .arguments = {{"step", run.step}, {"micro_batches", run.micro_batches}, {"run", run.run}}};
    if (run.failed) slice.arguments.emplace_back("failed", 1);
    if (Trains(run.purpose)) {
      steps.slices.push_back(std::move(slice));
      continue;
    }
    size_t row = 0;
    while (row < inference.size() && inference[row].slices.back().end_nanos > run.begin_nanos) ++row;
    if (row == inference.size()) {
      inference.push_back({.track = {.id = kInferenceTracks + row,
                                     .parent = kPipelineTrack,
                                     .order = static_cast<int>(3 + row),
                                     .name = absl::StrCat("inference ", row)}});
    }
    inference[row].slices.push_back(std::move(slice));
  }
  sections_.push_back(std::move(steps));
  for (Section& section : inference) sections_.push_back(std::move(section));
}

void TraceExport::AddQueues() {
  for (const bool train : {true, false}) {
    Section section{.track = {.id = kQueueTracks + (train ? 0 : 1),
                              .parent = kPipelineTrack,
                              .order = train ? 1 : 2,
                              .name = train ? "train queue" : "infer queue",
                              .counter = true}};
    for (const QueueSample& sample : capture_->queues) {
      section.values.emplace_back(sample.at_nanos, train ? sample.train : sample.infer);
    }
    sections_.push_back(std::move(section));
  }
}

// Callers' calls overlap: each takes the first row that is free, with its wait and its run one after the other.
void TraceExport::AddCalls() {
  std::vector<Section> rows;
  std::vector<int64_t> free_from;
  for (const CallSpan& call : capture_->calls) {
    size_t row = 0;
    while (row < rows.size() && free_from[row] > call.accepted_nanos) ++row;
    if (row == rows.size()) {
      rows.push_back({.track = {.id = kCallTracks + row,
                                .parent = kPipelineTrack,
                                .order = kCallOrder,
                                .name = absl::StrCat("calls ", row)}});
      free_from.push_back(0);
    }
    free_from[row] = call.ended_nanos;
    TraceSlice slice{.category = "call", .arguments = {{"step", call.step}}};
    if (call.failed) slice.arguments.emplace_back("failed", 1);
    if (!call.request_id.empty()) slice.texts.emplace_back("request_id", call.request_id);
    if (!call.trace_id.empty()) slice.texts.emplace_back("trace_id", call.trace_id);
    const int64_t waited_until = call.started_nanos > 0 ? call.started_nanos : call.ended_nanos;
    TraceSlice wait = slice;
    wait.begin_nanos = call.accepted_nanos;
    wait.end_nanos = waited_until;
    wait.name = call.method + " queue";
    rows[row].slices.push_back(std::move(wait));
    if (call.started_nanos == 0) continue;
    slice.begin_nanos = call.started_nanos;
    slice.end_nanos = call.ended_nanos;
    slice.name = call.method + " run";
    rows[row].slices.push_back(std::move(slice));
  }
  for (Section& row : rows) sections_.push_back(std::move(row));
}

TraceSlice TraceExport::SliceOf(const TraceRecord& record) const {
  TraceSlice slice{.begin_nanos = record.begin_nanos,
                   .end_nanos = record.end_nanos,
                   .name = TraceName(record),
                   .category = record.inference ? "inference" : "training"};
  if (record.kind == TraceKind::kState) {
    slice.category = "state";
    slice.state = static_cast<StageState>(record.detail);
    return slice;
  }
  slice.arguments = {{"stage", record.stage}, {"step", record.step}, {"run", record.run}};
  if (record.kind != TraceKind::kOptimizer) slice.arguments.emplace_back("micro_batch", record.micro_batch);
  if (record.peer >= 0) slice.arguments.emplace_back("peer", record.peer);
  slice.flows = flows_.PointsOf(record);
  return slice;
}

// Only where there are others: each is a process, with its lanes.
void TraceExport::AddRanks() {
  if (capture_->ranks.empty()) return;
  const auto add = [this](int rank, const RankClock* clock) {
    sections_.push_back({.track = {.id = kRankTracks + static_cast<uint64_t>(rank),
                                   .parent = kPipelineTrack,
                                   .group = rank + 1,
                                   .order = 1000 + rank,
                                   .name = absl::StrCat("rank ", rank),
                                   .process = true,
                                   .rank = clock}});
  };
  add(capture_->rank, nullptr);
  for (const RankClock& rank : capture_->ranks) add(rank.rank, &rank);
}

void TraceExport::AddLane(size_t index) {
  const LaneCapture& lane = capture_->lanes[index];
  const bool joint = !capture_->ranks.empty();
  const int rank = lane.description.rank.value();
  const int group = joint ? rank + 1 : static_cast<int>(index) + 1;
  const uint64_t id = LaneTrackId(index, LaneTrackKind::kLane);
  std::string name = absl::StrCat("lane ", index, " on ", lane.description.device);
  if (!lane.description.layers.empty()) absl::StrAppend(&name, ", layers ", lane.description.layers);
  sections_.push_back({.track = {.id = id,
                                 .parent = joint ? kRankTracks + static_cast<uint64_t>(rank) : kPipelineTrack,
                                 .group = group,
                                 .order = 1000 + (joint ? static_cast<int>(index) : group),
                                 .name = std::move(name),
                                 .process = !joint,
                                 .lane = &lane}});

  const auto section = [&](LaneTrackKind kind, const char* title) {
    return Section{.track = {.id = LaneTrackId(index, kind),
                             .parent = id,
                             .group = group,
                             .order = static_cast<int>(kind) + (joint ? static_cast<int>(index) * 10 : 0),
                             .name = joint ? absl::StrCat("lane ", index, " ", title) : title}};
  };
  Section states = section(LaneTrackKind::kState, "state");
  for (const TraceRecord& record : lane.states) states.records.push_back(&record);
  sections_.push_back(std::move(states));
  for (const auto& [kind, title] :
       {std::pair(LaneTrackKind::kCompute, "compute"), std::pair(LaneTrackKind::kSend, "send"),
        std::pair(LaneTrackKind::kReceive, "receive")}) {
    Section actions = section(kind, title);
    for (const TraceRecord& record : lane.actions) {
      if (OnTrack(record.kind, kind)) actions.records.push_back(&record);
    }
    sections_.push_back(std::move(actions));
  }

  Section in_flight = section(LaneTrackKind::kInFlight, "micro-batches in flight");
  in_flight.track.counter = true;
  int64_t count = 0;
  int64_t least = 0;  // what was in flight at the begin, seen from what ended since
  for (const TraceRecord& record : lane.actions) {
    const int change = InFlightChange(record);
    if (change == 0) continue;
    count += change;
    least = std::min(least, count);
    in_flight.values.emplace_back(record.end_nanos, static_cast<double>(count));
  }
  in_flight.values.insert(in_flight.values.begin(), {capture_->begin_nanos, 0});
  for (auto& [at, value] : in_flight.values) value -= static_cast<double>(least);
  sections_.push_back(std::move(in_flight));
}

void TraceExport::WriteOne(const Section& section, std::string* out) {
  if (section.track.counter) {
    const auto& [at, value] = section.values[position_];
    writer_->Count(section.track, at, value, out);
  } else if (!section.records.empty()) {
    writer_->Slice(section.track, SliceOf(*section.records[position_]), out);
  } else {
    writer_->Slice(section.track, section.slices[position_], out);
  }
}

std::optional<std::string> TraceExport::Next(size_t bytes) {
  if (ended_) return std::nullopt;
  std::string out;
  out.reserve(bytes + 4096);
  if (!begun_) writer_->Begin(*capture_, &out);
  begun_ = true;
  for (; section_ < sections_.size(); ++section_, position_ = 0, track_told_ = false) {
    Section& section = sections_[section_];
    if (!track_told_) writer_->Track(section.track, &out);
    track_told_ = true;
    for (const size_t size = section.size(); position_ < size; ++position_) {
      if (out.size() >= bytes) return out;
      WriteOne(section, &out);
    }
    section = {};
  }
  writer_->End(&out);
  ended_ = true;
  return out;
}

}  // namespace penstock
