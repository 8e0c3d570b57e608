#include "server/rpc/services/schedule_reply.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/exec/measured_schedule.h"
#include "engine/observe/metrics.h"
#include "engine/observe/trace_capture.h"
#include "engine/observe/trace_memory.h"
#include "server/rpc/call_context.h"
#include "server/rpc/convert/page_token.h"
#include "server/rpc/joint_trace.h"

namespace penstock {
namespace {

constexpr int kMaxMicroBatchesDrawn = 4096;

double Seconds(int64_t nanos) { return static_cast<double>(nanos) * 1e-9; }

v1::ScheduledAction ToProto(const ScheduledAction& from, bool measured) {
  v1::ScheduledAction to;
  to.set_action(ToString(from.action));
  to.set_lane(from.lane);
  to.set_planned_start_nanos(from.planned_start);
  to.set_planned_end_nanos(from.planned_end);
  if (measured) {
    to.set_measured_start_nanos(from.measured_start);
    to.set_measured_end_nanos(from.measured_end);
  }
  return to;
}

void Fill(const ScheduleTotals& from, v1::ScheduleTotals* to) {
  to->set_makespan_seconds(Seconds(from.makespan_nanos));
  to->set_bubble(from.bubble);
}

v1::ScheduleDeviation ToProto(const ScheduleDeviation& from) {
  v1::ScheduleDeviation to;
  to.set_kind(from.kind == ScheduleDeviation::Kind::kDuration ? v1::ScheduleDeviation::KIND_DURATION
                                                              : v1::ScheduleDeviation::KIND_WAIT);
  *to.mutable_where() = ToProto(from.where, true);
  to.set_planned_seconds(Seconds(from.planned_nanos));
  to.set_measured_seconds(Seconds(from.measured_nanos));
  to.set_share(from.share);
  return to;
}

absl::Status CheckRequest(const v1::GetScheduleRequest& request) {
  if (!v1::GetScheduleRequest::Source_IsValid(request.source())) {
    return InvalidField("source", "must be SOURCE_PLANNED or SOURCE_MEASURED", absl::StrCat(request.source()));
  }
  if (request.step() < 0) return InvalidField("step", "must be at least 0", absl::StrCat(request.step()));
  const bool measured = request.source() == v1::GetScheduleRequest::SOURCE_MEASURED;
  if (!measured && request.step() != 0) {
    return InvalidField("step", "must be 0 for a plan, which is the same for all", absl::StrCat(request.step()));
  }
  const int most = measured ? 0 : kMaxMicroBatchesDrawn;
  if (request.micro_batches() < 0 || request.micro_batches() > most) {
    return InvalidField("micro_batches",
                        measured ? "must be 0 for what was measured" : absl::StrCat("must lie in [0, ", most, "]"),
                        absl::StrCat(request.micro_batches()));
  }
  return absl::OkStatus();
}

// Where a page begins.
struct PageStart {
  int64_t run = 0;
  int64_t first = 0;
};

absl::StatusOr<PageStart> ReadPageStart(const std::string& text) {
  PageStart place;
  if (text.empty()) return place;
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &place.run) || !absl::SimpleAtoi(parts[1], &place.first)) {
    return Error(absl::StatusCode::kInternal, "BUG", "a page token of ours can't be read");
  }
  return place;
}

// A request that was found good.
struct Asked {
  v1::GetScheduleRequest request;
  Identity identity;
  PageStart place;
  std::string scope;  // of page tokens
  int page_size = 0;
  bool measured = false;
  std::shared_ptr<const PipelineMetrics> metrics;  // null: of a pipeline without
};

absl::StatusOr<Asked> Read(const ServiceEnvironment& environment, const Identity& identity,
                           const v1::GetScheduleRequest& request) {
  PENSTOCK_RETURN_IF_ERROR(CheckRequest(request));
  Asked asked{.request = request, .identity = identity};
  PENSTOCK_ASSIGN_OR_RETURN(asked.page_size, CheckedPageSize(request.page_size()));
  PENSTOCK_ASSIGN_OR_RETURN(const auto pipeline, FindPipeline(environment, identity, request.pipeline(), "pipeline"));
  asked.scope = absl::StrCat("GetSchedule ", identity.name, " ", request.pipeline(), " ", request.source(), " ",
                             request.step(), " ", request.micro_batches());
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, environment.page_tokens->Read(asked.scope, request.page_token()));
  PENSTOCK_ASSIGN_OR_RETURN(asked.place, ReadPageStart(text));
  asked.measured = request.source() == v1::GetScheduleRequest::SOURCE_MEASURED;
  asked.metrics = pipeline->metrics();
  if (asked.measured && (asked.metrics == nullptr || !asked.metrics->KeepsTraces())) {
    return Error(absl::StatusCode::kUnimplemented, "FEATURE_DISABLED",
                 "this pipeline keeps no traces (--trace-ring-events)");
  }
  return asked;
}

v1::GetScheduleResponse PageOf(const ServiceEnvironment& environment, const Asked& asked,
                               const ScheduleReport& report) {
  v1::GetScheduleResponse response;
  response.set_kind(report.kind);
  response.set_stages(report.stages);
  response.set_micro_batches(report.micro_batches);
  response.set_step(report.step);
  for (int lane = 0; lane < report.lanes; ++lane) {
    const bool known = asked.metrics != nullptr && lane < asked.metrics->lane_count();
    response.add_devices(known ? asked.metrics->lane(lane).description.device : "");
  }
  Fill(report.planned, response.mutable_planned());
  if (asked.measured) {
    Fill(*report.measured, response.mutable_measured());
    for (const ScheduleDeviation& deviation : report.deviations) *response.add_deviations() = ToProto(deviation);
  }
  const auto size = static_cast<int64_t>(report.actions.size());
  const int64_t end = std::min<int64_t>(size, asked.place.first + asked.page_size);
  for (int64_t i = asked.place.first; i < end; ++i) {
    *response.add_actions() = ToProto(report.actions[i], asked.measured);
  }
  if (end < size) {
    response.set_next_page_token(environment.page_tokens->Make(asked.scope, absl::StrCat(report.run, ":", end)));
  }
  return response;
}

// The page, from a capture of all lanes, or from what is here.
absl::StatusOr<v1::GetScheduleResponse> Describe(const ServiceEnvironment& environment, const Asked& asked,
                                                 const TraceCapture* capture) {
  const v1::GetScheduleRequest& request = asked.request;
  // It may have gone while the others told what they have.
  PENSTOCK_ASSIGN_OR_RETURN(const auto pipeline,
                            FindPipeline(environment, asked.identity, request.pipeline(), "pipeline"));
  const Plan& plan = pipeline->pipeline().plan();
  PENSTOCK_ASSIGN_OR_RETURN(const ScheduleReport report,
                            !asked.measured ? PlannedSchedule(plan, request.micro_batches())
                            : capture != nullptr
                                ? MeasuredSchedule(plan, *capture, request.step(), asked.place.run)
                                : MeasuredSchedule(plan, *asked.metrics, request.step(), asked.place.run));
  return PageOf(environment, asked, report);
}

}  // namespace

void DescribeSchedule(const ServiceEnvironment& environment, JobThread* jobs, const Identity& identity,
                      const v1::GetScheduleRequest& request,
                      std::function<void(const absl::StatusOr<v1::GetScheduleResponse>&)> done) {
  absl::StatusOr<Asked> read = Read(environment, identity, request);
  if (!read.ok()) return done(read.status());
  if (!read->measured || !HasLanesElsewhere(environment, *read->metrics)) {
    return done(Describe(environment, *read, nullptr));
  }
  absl::StatusOr<MemoryReservation> held =
      TakeMemory(environment.memory, {MemoryClass::kTraces, identity.name, read->metrics->name()},
                 kCopiesOfRecords * TraceRingBytes(*read->metrics));
  if (!held.ok()) return done(held.status());
  struct Waiting {  // for the other ranks
    ServiceEnvironment environment;
    Asked asked;
    MemoryReservation held;
    std::function<void(const absl::StatusOr<v1::GetScheduleResponse>&)> done;
    TraceCapture whole = {};
  };
  const auto waiting =
      std::make_shared<Waiting>(Waiting{environment, *std::move(read), *std::move(held), std::move(done)});
  jobs->Post([waiting, jobs] {
    JoinLanes(
        waiting->environment, *waiting->asked.metrics,
        TraceRecorder(waiting->asked.metrics, TraceRecorder::From::kOldest).Finish(),
        [waiting, jobs](TraceCapture whole) {
          waiting->whole = std::move(whole);
          jobs->Post([waiting] { waiting->done(Describe(waiting->environment, waiting->asked, &waiting->whole)); });
        });
  });
}

}  // namespace penstock
