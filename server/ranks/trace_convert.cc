#include "server/ranks/trace_convert.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/rank_message.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"

namespace penstock {
namespace {

constexpr int64_t kColumns = 7;  // begin, end, small fields, stage and micro-batch, step, run, correlation

absl::Status AddRecords(const std::vector<TraceRecord>& records, OutgoingReport* to) {
  at::Tensor rows;
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] {
    rows = at::empty({static_cast<int64_t>(records.size()), kColumns}, at::kLong);
    auto* row = rows.data_ptr<int64_t>();
    for (const TraceRecord& record : records) {
      const uint64_t small = static_cast<uint64_t>(record.kind) | uint64_t{record.detail} << 8 |
                             uint64_t{record.inference} << 16 | uint64_t{record.failed} << 17 |
                             uint64_t{static_cast<uint16_t>(record.lane)} << 32 |
                             uint64_t{static_cast<uint16_t>(record.peer)} << 48;
      const uint64_t place =
          uint64_t{static_cast<uint32_t>(record.stage)} << 32 | static_cast<uint32_t>(record.micro_batch);
      for (const int64_t value :
           {record.begin_nanos, record.end_nanos, static_cast<int64_t>(small), static_cast<int64_t>(place), record.step,
            record.run, static_cast<int64_t>(record.correlation)}) {
        *row++ = value;
      }
    }
  }));
  return to->Add("records", rows);
}

absl::StatusOr<std::vector<TraceRecord>> RecordsFrom(const at::Tensor& rows) {
  if (!rows.defined() || rows.scalar_type() != at::kLong || rows.dim() != 2 || rows.size(1) != kColumns) {
    return BadRankMessage("trace.records", absl::StrCat("must be rows of ", kColumns, " integers"), "another tensor");
  }
  std::vector<TraceRecord> records(static_cast<size_t>(rows.size(0)));
  const auto* row = rows.data_ptr<int64_t>();
  for (TraceRecord& record : records) {
    const auto small = static_cast<uint64_t>(row[2]);
    const auto place = static_cast<uint64_t>(row[3]);
    record = {.begin_nanos = row[0],
              .end_nanos = row[1],
              .kind = static_cast<TraceKind>(small & 0xff),
              .detail = static_cast<uint8_t>(small >> 8),
              .inference = (small >> 16 & 1) != 0,
              .failed = (small >> 17 & 1) != 0,
              .lane = static_cast<int16_t>(small >> 32),
              .peer = static_cast<int16_t>(small >> 48),
              .stage = static_cast<int32_t>(place >> 32),
              .micro_batch = static_cast<int32_t>(place),
              .step = row[4],
              .run = row[5],
              .correlation = static_cast<uint64_t>(row[6])};
    row += kColumns;
  }
  return records;
}

}  // namespace

absl::Status AddTrace(const RankTrace& trace, OutgoingReport* to) {
  peer::v1::TraceOfRank* message = to->message().mutable_trace();
  message->set_begin_nanos(trace.begin_nanos);
  message->set_end_nanos(trace.end_nanos);
  message->set_lost(trace.lost);
  for (const LaneCapture& lane : trace.lanes) {
    peer::v1::TraceOfRank::Lane* its = message->add_lanes();
    its->set_lane(lane.description.lane);
    its->mutable_state_nanos()->Add(lane.after.nanos.begin(), lane.after.nanos.end());
    PENSTOCK_RETURN_IF_ERROR(AddRecords(lane.actions, to));
    PENSTOCK_RETURN_IF_ERROR(AddRecords(lane.states, to));
  }
  return absl::OkStatus();
}

absl::StatusOr<RankTrace> TakeTrace(const peer::v1::TraceOfRank& message, IncomingTensors& tensors) {
  RankTrace trace{
      .begin_nanos = message.begin_nanos(), .end_nanos = message.end_nanos(), .lost = message.lost(), .lanes = {}};
  for (const peer::v1::TraceOfRank::Lane& its : message.lanes()) {
    LaneCapture& lane = trace.lanes.emplace_back();
    lane.description.lane = its.lane();
    if (its.state_nanos_size() != kStageStateCount) {
      return BadRankMessage("trace.state_nanos", absl::StrCat("must be ", kStageStateCount, " times"),
                            absl::StrCat(its.state_nanos_size()));
    }
    std::copy(its.state_nanos().begin(), its.state_nanos().end(), lane.after.nanos.begin());
    lane.after.at_nanos = trace.end_nanos;
    PENSTOCK_ASSIGN_OR_RETURN(const NamedTensors records, tensors.Take(2));
    PENSTOCK_ASSIGN_OR_RETURN(lane.actions, RecordsFrom(records[0].tensor));
    PENSTOCK_ASSIGN_OR_RETURN(lane.states, RecordsFrom(records[1].tensor));
  }
  return trace;
}

}  // namespace penstock
