#include "engine/observe/trace_export.h"

#include <cmath>
#include <map>
#include <set>

#include "engine/observe/chrome_colours.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "perfetto_trace.pb.h"
#include "tests/unit/observe/traced_pipeline.h"

namespace penstock {
namespace {

using Json = nlohmann::json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::TracedPipeline;

std::shared_ptr<const TraceCapture> Captured(TracedPipeline& pipeline) {
  return std::make_shared<const TraceCapture>(TraceRecorder(pipeline.metrics, TraceRecorder::From::kOldest).Finish());
}

std::string Whole(std::shared_ptr<const TraceCapture> capture, TraceFormat format, size_t piece = 256 << 10) {
  TraceExport file(std::move(capture), format);
  std::string bytes;
  while (const auto next = file.Next(piece)) bytes += *next;
  return bytes;
}

// One slice of either format.
struct Slice {
  std::string name;
  int64_t begin = 0;
  int64_t end = 0;
};

// What both formats must say: slices by track ("lane 0 on cpu:0, layers 0-3/state"), flow ends by slice name, in order.
struct Picture {
  std::map<std::string, std::vector<Slice>> tracks;
  std::map<uint64_t, std::vector<std::pair<std::string, char>>> flows;  // name of the slice, and s, t or f
  std::map<std::string, std::vector<double>> counters;
};

Picture ReadChrome(const std::string& bytes) {
  Picture picture;
  const Json json = Json::parse(bytes);
  std::map<int, std::string> groups;
  std::map<uint64_t, std::string> threads;
  const auto nanos = [](const Json& micros) { return std::llround(micros.get<double>() * 1000); };
  std::string last;
  for (const Json& event : json["traceEvents"]) {
    const std::string phase = event["ph"];
    const int group = event["pid"];
    const uint64_t track = event["tid"];
    if (phase == "M" && event["name"] == "process_name") groups[group] = event["args"]["name"];
    if (phase == "M" && event["name"] == "thread_name") threads[track] = event["args"]["name"];
    if (phase == "X") {
      last = event["name"];
      const int64_t begin = nanos(event["ts"]);
      picture.tracks[groups.at(group) + "/" + threads.at(track)].push_back({last, begin, begin + nanos(event["dur"])});
    }
    if (phase == "s" || phase == "t" || phase == "f") picture.flows[event["id"]].emplace_back(last, phase[0]);
    if (phase == "C") {
      picture.counters[groups.at(group) + "/" + event["name"].get<std::string>()].push_back(event["args"]["value"]);
    }
  }
  return picture;
}

Picture ReadPerfetto(const std::string& bytes) {
  Picture picture;
  perfetto::Trace trace;
  EXPECT_TRUE(trace.ParseFromString(bytes));
  std::map<uint64_t, std::string> names;
  std::map<uint64_t, perfetto::TrackDescriptor> tracks;
  const auto path = [&](uint64_t uuid) {
    const auto& track = tracks.at(uuid);
    return tracks.at(track.parent_uuid()).name() + "/" + track.name();
  };
  for (const auto& packet : trace.packet()) {
    EXPECT_TRUE(packet.unknown_fields().empty());
    for (const auto& entry : packet.interned_data().event_names()) names[entry.iid()] = entry.name();
    if (packet.has_track_descriptor()) tracks[packet.track_descriptor().uuid()] = packet.track_descriptor();
    if (!packet.has_track_event()) continue;
    const auto& event = packet.track_event();
    EXPECT_EQ(tracks.count(event.track_uuid()), 1) << "a track is told before what is on it";
    const auto at = static_cast<int64_t>(packet.timestamp());
    switch (event.type()) {
      case perfetto::TrackEvent::TYPE_SLICE_BEGIN:
        picture.tracks[path(event.track_uuid())].push_back({names.at(event.name_iid()), at, -1});
        for (const uint64_t flow : event.flow_ids()) {
          picture.flows[flow].emplace_back(names.at(event.name_iid()), 't');
        }
        for (const uint64_t flow : event.terminating_flow_ids()) {
          picture.flows[flow].emplace_back(names.at(event.name_iid()), 'f');
        }
        break;
      case perfetto::TrackEvent::TYPE_SLICE_END:
        EXPECT_EQ(picture.tracks[path(event.track_uuid())].back().end, -1) << "an end without a begin";
        picture.tracks[path(event.track_uuid())].back().end = at;
        break;
      case perfetto::TrackEvent::TYPE_COUNTER:
        EXPECT_TRUE(tracks[event.track_uuid()].has_counter());
        picture.counters[path(event.track_uuid())].push_back(event.double_counter_value());
        break;
      default:
        break;
    }
  }
  return picture;
}

class TraceExportTest : public ::testing::TestWithParam<TraceFormat> {
 protected:
  Picture Read(const std::string& bytes) {
    return GetParam() == TraceFormat::kChrome ? ReadChrome(bytes) : ReadPerfetto(bytes);
  }
};

TEST_P(TraceExportTest, TracksOfALaneHoldWhatItDid) {
  TracedPipeline pipeline;
  pipeline.Step();
  const Picture picture = Read(Whole(Captured(pipeline), GetParam()));
  const auto names = [&](const std::string& track) {
    std::vector<std::string> all;
    for (const Slice& slice : picture.tracks.at(track)) all.push_back(slice.name);
    return all;
  };
  const std::string lane = "lane 1 on cpu:1, layers 4-7/";
  EXPECT_THAT(names(lane + "compute"), ElementsAre("1F0", "1B0", "1OPT apply"));
  EXPECT_THAT(names(lane + "send"), ElementsAre("1SEND_B0"));
  EXPECT_THAT(names(lane + "receive"), ElementsAre("1RECV_F0"));
  EXPECT_THAT(names(lane + "state"), ElementsAre("fill", "forward", "backward", "host", "optimizer", "no_work"));
  EXPECT_THAT(names("pipeline gpt/steps"), ElementsAre("step 1"));
  const Slice& forward = picture.tracks.at(lane + "compute")[0];
  EXPECT_EQ(forward.begin, pipeline.base + 27'000);
  EXPECT_EQ(forward.end, pipeline.base + 40'000);
  EXPECT_THAT(picture.counters.at(lane + "micro-batches in flight"), ElementsAre(0, 1, 0));
  EXPECT_EQ(picture.counters.count("pipeline gpt/train queue"), 1);
}

TEST_P(TraceExportTest, StatesHaveNoGapAndNoOverlapAndSlicesNest) {
  TracedPipeline pipeline;
  for (int i = 0; i < 3; ++i) pipeline.Step();
  const auto capture = Captured(pipeline);
  const Picture picture = Read(Whole(capture, GetParam()));
  ASSERT_EQ(picture.tracks.size(), 2 * 4 + 1);
  for (const auto& [name, slices] : picture.tracks) {
    const bool state = name.ends_with("/state");
    int64_t at = capture->begin_nanos;
    for (const Slice& slice : slices) {
      EXPECT_GE(slice.begin, at) << name << " " << slice.name;
      if (state) {
        EXPECT_EQ(slice.begin, at) << name << " " << slice.name;
      }
      EXPECT_GE(slice.end, slice.begin);
      at = slice.end;
    }
    if (state) {
      EXPECT_EQ(at, capture->end_nanos);
    }
  }
}

TEST_P(TraceExportTest, AFlowFollowsAMessageFromActionToAction) {
  TracedPipeline pipeline;
  pipeline.Step();
  Picture picture = Read(Whole(Captured(pipeline), GetParam()));
  ASSERT_EQ(picture.flows.size(), 2);
  std::vector<std::set<std::string>> ways;
  for (const auto& [id, points] : picture.flows) {
    std::set<std::string> way;
    int ends = 0;
    for (const auto& [name, phase] : points) {
      way.insert(name);
      ends += phase == 'f' ? 1 : 0;
    }
    EXPECT_EQ(ends, 1);
    ways.push_back(way);
  }
  EXPECT_THAT(ways, Contains(std::set<std::string>{"0F0", "0SEND_F0", "1RECV_F0", "1F0"}));
  EXPECT_THAT(ways, Contains(std::set<std::string>{"1B0", "1SEND_B0", "0RECV_B0", "0B0"}));
}

TEST_P(TraceExportTest, AFlowWhoseOtherEndIsLostIsNotDrawn) {
  TracedPipeline pipeline;
  pipeline.Step();
  const auto whole = Captured(pipeline);
  // From 24 us on: the receipt of the activation is there, its sending is not.
  const auto part =
      std::make_shared<const TraceCapture>(CutTrace(*whole, pipeline.base + 24'000, pipeline.base + 100'000));
  const Picture picture = Read(Whole(part, GetParam()));
  ASSERT_EQ(picture.flows.size(), 1);
  EXPECT_EQ(picture.flows.begin()->second.size(), 4) << "that of the gradient";
  // And to 69 us: nobody has received the gradient.
  const auto less = std::make_shared<const TraceCapture>(CutTrace(*part, part->begin_nanos, pipeline.base + 69'000));
  EXPECT_THAT(Read(Whole(less, GetParam())).flows, IsEmpty());
}

TEST_P(TraceExportTest, PiecesMakeTheSameFile) {
  TracedPipeline pipeline;
  for (int i = 0; i < 3; ++i) pipeline.Step();
  const auto capture = Captured(pipeline);
  const std::string whole = Whole(capture, GetParam());
  for (const size_t piece : {1, 100, 1000}) EXPECT_EQ(Whole(capture, GetParam(), piece), whole) << piece;
}

TEST_P(TraceExportTest, InferencesThatOverlapGetRowsOfTheirOwn) {
  TracedPipeline pipeline;
  const int64_t base = pipeline.base;
  const auto infer = [&](int64_t run, int64_t begin, int64_t end) {
    for (int16_t lane : {0, 1}) {
      pipeline.metrics->lane(lane).trace.actions.Record({.begin_nanos = base + begin,
                                                         .end_nanos = base + end,
                                                         .kind = TraceKind::kRun,
                                                         .detail = static_cast<uint8_t>(TraceRun::kInference),
                                                         .inference = true,
                                                         .lane = lane,
                                                         .micro_batch = 1,
                                                         .run = run});
    }
  };
  infer(1, 0, 100);
  infer(2, 50, 200);
  infer(3, 100, 150);
  pipeline.clock.AdvanceNanos(1000);
  const Picture picture = Read(Whole(Captured(pipeline), GetParam()));
  EXPECT_EQ(picture.tracks.at("pipeline gpt/inference 0").size(), 2);
  EXPECT_EQ(picture.tracks.at("pipeline gpt/inference 1").size(), 1);
}

TEST_P(TraceExportTest, CallsThatOverlapGetRowsOfTheirOwn) {
  TracedPipeline pipeline;
  pipeline.Step();
  TraceCapture capture = *Captured(pipeline);
  const int64_t begin = capture.begin_nanos;
  const auto call = [&](const char* method, int64_t accepted, int64_t started, int64_t ended) {
    return CallSpan{.method = method,
                    .request_id = "r1",
                    .trace_id = "0af7",
                    .accepted_nanos = begin + accepted,
                    .started_nanos = started == 0 ? 0 : begin + started,
                    .ended_nanos = begin + ended,
                    .step = 1};
  };
  AddCalls({call("TrainStep", 50, 60, 100), call("Infer", 0, 10, 55), call("Infer", 100, 0, 120),
            call("Infer", -50, -40, -1), call("Infer", 1'000'000, 1'000'001, 1'000'002)},
           &capture);
  ASSERT_EQ(capture.calls.size(), 3);
  const std::string file = Whole(std::make_shared<const TraceCapture>(capture), GetParam());
  const Picture picture = Read(file);
  const auto& first = picture.tracks.at("pipeline gpt/calls 0");
  ASSERT_EQ(first.size(), 3);
  EXPECT_EQ(first[0].name, "Infer queue");
  EXPECT_EQ(first[1].name, "Infer run");
  EXPECT_EQ(first[1].begin, begin + 10);
  EXPECT_EQ(first[1].end, begin + 55);
  EXPECT_EQ(first[2].name, "Infer queue") << "one that never ran only waited";
  EXPECT_EQ(picture.tracks.at("pipeline gpt/calls 1").size(), 2);
  EXPECT_NE(file.find("0af7"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Formats, TraceExportTest, ::testing::Values(TraceFormat::kChrome, TraceFormat::kPerfetto),
                         [](const auto& info) { return info.param == TraceFormat::kChrome ? "Chrome" : "Perfetto"; });

TEST(TraceFileTest, ChromeTellsCountersClockAndLoss) {
  TracedPipeline pipeline(16);
  for (int i = 0; i < 10; ++i) pipeline.Step();
  const auto capture = Captured(pipeline);
  const Json other = Json::parse(Whole(capture, TraceFormat::kChrome))["otherData"];
  EXPECT_EQ(other["incomplete"], true);
  EXPECT_GT(other["lost_records"], 0);
  EXPECT_EQ(other["pipeline"], "gpt");
  EXPECT_EQ(other["clock_offset_nanos"], 0);
  EXPECT_EQ(other["counters_end"][1]["state_nanos"]["backward"], 10 * 25'000);
  EXPECT_EQ(other["counters_begin"].size(), 2);
  EXPECT_EQ(other["end_nanos"], capture->end_nanos);
}

TEST(TraceFileTest, ChromeColoursStates) {
  TracedPipeline pipeline;
  pipeline.Step();
  const Json json = Json::parse(Whole(Captured(pipeline), TraceFormat::kChrome));
  for (const StageStateInfo& info : StageStates()) {
    EXPECT_EQ(json["otherData"]["state_colours"][std::string(info.name)], std::string(info.colour));
  }
  std::set<std::string> colours;
  for (const Json& event : json["traceEvents"]) {
    EXPECT_EQ(event.contains("cname"), event["ph"] == "X" && event["cat"] == "state");
    if (event.contains("cname")) colours.insert(event["cname"]);
  }
  EXPECT_THAT(colours, Contains("cq_build_running")) << "fill is a light yellow";
}

TEST(ChromeColoursTest, TheNearestNameIsChosen) {
  EXPECT_EQ(NearestChromeColour("#ff8c00"), "thread_state_iowait");
  EXPECT_EQ(NearestChromeColour("#FF8D01"), "thread_state_iowait");
  EXPECT_EQ(NearestChromeColour("#000000"), "black");
}

TEST(TraceFileTest, PerfettoTellsCountersClockAndLoss) {
  TracedPipeline pipeline(16);
  for (int i = 0; i < 10; ++i) pipeline.Step();
  const auto capture = Captured(pipeline);
  perfetto::Trace trace;
  ASSERT_TRUE(trace.ParseFromString(Whole(capture, TraceFormat::kPerfetto)));
  const auto& first = trace.packet(0);
  EXPECT_EQ(first.previous_packet_dropped(), 1);
  EXPECT_EQ(first.sequence_flags(), 1);
  EXPECT_EQ(first.trace_packet_defaults().timestamp_clock_id(), 3);
  ASSERT_EQ(first.clock_snapshot().clocks_size(), 2);
  EXPECT_EQ(first.clock_snapshot().primary_trace_clock(), 3);
  EXPECT_EQ(first.clock_snapshot().clocks(0).timestamp(), capture->begin_nanos);
  std::map<uint64_t, std::string> annotations;
  std::map<uint64_t, std::string> names;
  std::map<std::string, std::map<std::string, int64_t>> instants;
  for (const auto& packet : trace.packet()) {
    EXPECT_EQ(packet.trusted_packet_sequence_id(), 1);
    for (const auto& entry : packet.interned_data().event_names()) names[entry.iid()] = entry.name();
    for (const auto& entry : packet.interned_data().debug_annotation_names()) annotations[entry.iid()] = entry.name();
    if (packet.track_event().type() != perfetto::TrackEvent::TYPE_INSTANT) continue;
    for (const auto& one : packet.track_event().debug_annotations()) {
      instants[names.at(packet.track_event().name_iid())][annotations.at(one.name_iid())] = one.int_value();
    }
  }
  EXPECT_EQ(instants["trace"]["incomplete"], 1);
  EXPECT_EQ(instants["trace"]["lost_records"], static_cast<int64_t>(capture->lost));
  EXPECT_EQ(instants["counters_end"]["backward"], 10 * 25'000) << "of lane 1, the last";
  EXPECT_EQ(instants["counters_end"].size(), kStageStateCount);
  EXPECT_EQ(instants["counters_begin"].size(), kStageStateCount);
}

TEST(TraceFileTest, PerfettoIsMuchSmaller) {
  TracedPipeline pipeline;
  for (int i = 0; i < 50; ++i) pipeline.Step();
  const auto capture = Captured(pipeline);
  EXPECT_LT(2 * Whole(capture, TraceFormat::kPerfetto).size(), Whole(capture, TraceFormat::kChrome).size());
}

TEST(TraceNameTest, NamesAreThoseOfSchedules) {
  EXPECT_EQ(TraceName({.kind = TraceKind::kForward, .stage = 2, .micro_batch = 5}), "2F5");
  EXPECT_EQ(TraceName({.kind = TraceKind::kForward, .inference = true, .stage = 2, .micro_batch = 5}), "infer 2F5");
  EXPECT_EQ(TraceName({.kind = TraceKind::kSendActivation, .peer = 5, .stage = 2, .micro_batch = 0}), "2SEND_F0@5");
  EXPECT_EQ(TraceName({.kind = TraceKind::kBackwardInput, .stage = 0, .micro_batch = 1}), "0I1");
  EXPECT_EQ(TraceName({.kind = TraceKind::kBackwardWeight, .stage = 0, .micro_batch = 1}), "0W1");
  EXPECT_EQ(TraceName({.kind = TraceKind::kOptimizer, .detail = 1, .stage = 1, .micro_batch = 0}), "1OPT norms");
  EXPECT_EQ(TraceName({.kind = TraceKind::kState, .detail = static_cast<uint8_t>(StageState::kWaitGradient)}),
            "wait_gradient");
}

// The lanes of each rank in a process of its own, with how far its clock is trusted.
TEST(TraceExportTest, RanksAreProcesses) {
  TracedPipeline pipeline;
  pipeline.Step();
  TraceCapture capture = *Captured(pipeline);
  capture.lanes[1].description.rank = Rank(1);
  capture.ranks = {{.rank = 1, .ahead_nanos = 12, .uncertainty_nanos = 34}};
  const auto joint = std::make_shared<const TraceCapture>(std::move(capture));
  const Json json = Json::parse(Whole(joint, TraceFormat::kChrome));
  EXPECT_EQ(json["otherData"]["ranks"][0]["clock_ahead_nanos"], 12);
  EXPECT_EQ(json["otherData"]["ranks"][0]["clock_uncertainty_nanos"], 34);
  EXPECT_EQ(json["otherData"]["ranks"][0]["missing"], false);
  std::map<int, std::string> processes;
  std::map<std::string, int> threads;
  std::map<uint64_t, int> slices;  // by thread
  for (const Json& event : json["traceEvents"]) {
    if (event["name"] == "process_name") {
      EXPECT_TRUE(processes.emplace(event["pid"], event["args"]["name"]).second);
    }
    if (event["name"] == "thread_name") threads[event["args"]["name"]] = event["pid"];
    if (event["ph"] == "X") ++slices[event["pid"].get<int>()];
  }
  EXPECT_EQ(processes, (std::map<int, std::string>{{0, "pipeline gpt"}, {1, "rank 0"}, {2, "rank 1"}}));
  EXPECT_EQ(threads["lane 0 compute"], 1);
  EXPECT_EQ(threads["lane 1 compute"], 2);
  EXPECT_GT(slices[1], 5);
  EXPECT_GT(slices[2], 5);

  perfetto::Trace trace;
  ASSERT_TRUE(trace.ParseFromString(Whole(joint, TraceFormat::kPerfetto)));
  std::map<std::string, uint64_t> uuids;
  std::map<std::string, uint64_t> parents;
  for (const auto& packet : trace.packet()) {
    if (!packet.has_track_descriptor()) continue;
    uuids[packet.track_descriptor().name()] = packet.track_descriptor().uuid();
    parents[packet.track_descriptor().name()] = packet.track_descriptor().parent_uuid();
  }
  EXPECT_EQ(parents["lane 1 on cpu:1, layers 4-7"], uuids["rank 1"]);
  EXPECT_EQ(parents["rank 1"], uuids["pipeline gpt"]);
}

}  // namespace
}  // namespace penstock
