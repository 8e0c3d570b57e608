#include "server/ranks/rank_reporter.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/guard.h"
#include "engine/transport/frame_header.h"

namespace penstock {
namespace {

int64_t RunOf(const peer::v1::Report& report) {
  if (report.has_run_ties()) return report.run_ties().run();
  if (report.has_run_norms()) return report.run_norms().run();
  return report.has_left() ? report.left().run() : report.failed().run();
}

}  // namespace

// Where there is no memory for the tensors of a report, the leader is told so: it waits for the report.
void RankReporter::Send(OutgoingReport report) {
  report.message().set_pipeline(pipeline_);
  const absl::Status sent = Guarded("a report", [&] { tell_(report.ToParts()); });
  if (sent.ok()) return;
  peer::v1::Report failure;
  failure.set_pipeline(pipeline_);
  failure.set_answer_to(report.message().answer_to());
  if (failure.answer_to() != 0) {
    failure.set_error(EncodeError(sent));
  } else {
    failure.mutable_failed()->set_run(RunOf(report.message()));
    failure.mutable_failed()->set_error(EncodeError(sent));
  }
  tell_(ToParts(failure, {}));
}

void RankReporter::Failed(Rank, int64_t run, const absl::Status& why) {
  OutgoingReport report;
  report.message().mutable_failed()->set_run(run);
  report.message().mutable_failed()->set_error(EncodeError(why));
  Send(std::move(report));
}

void RankReporter::HasTies(Rank rank, int64_t run, TiedGradients own) {
  OutgoingReport report;
  peer::v1::TiesOfRun& message = *report.message().mutable_run_ties();
  message.set_run(run);
  const absl::Status made = AddTies(own, message.mutable_ties(), &report);
  if (!made.ok()) return Failed(rank, run, made);
  Send(std::move(report));
}

void RankReporter::HasNorms(Rank rank, int64_t run, std::vector<NormsOfStage> norms, Measures measures) {
  OutgoingReport report;
  peer::v1::NormsOfRun& message = *report.message().mutable_run_norms();
  message.set_run(run);
  for (const NormsOfStage& of_stage : norms) {
    peer::v1::NormsOfRun::OfStage* stage = message.add_stages();
    stage->set_stage(of_stage.stage);
    stage->set_norms(static_cast<int32_t>(of_stage.norms.size()));
    for (const at::Tensor& norm : of_stage.norms) {
      const absl::Status made = report.Add("", norm);
      if (!made.ok()) return Failed(rank, run, made);
    }
  }
  *message.mutable_measures() = ToProto(measures);
  Send(std::move(report));
}

void RankReporter::Left(Rank, int64_t run, bool before_the_end, Measures measures) {
  OutgoingReport report;
  peer::v1::RunLeft& message = *report.message().mutable_left();
  message.set_run(run);
  message.set_before_the_end(before_the_end);
  *message.mutable_measures() = ToProto(measures);
  Send(std::move(report));
}

void RankReporter::Answer(uint64_t question, const absl::Status& result,
                          const std::function<absl::Status(OutgoingReport*)>& fill) {
  OutgoingReport report;
  absl::Status answered = result;
  if (answered.ok() && fill) answered = Guarded("a rank's answer", [&] { return fill(&report); });
  if (!answered.ok()) {
    report = OutgoingReport();
    report.message().set_error(EncodeError(answered));
  }
  report.message().set_answer_to(question);
  Send(std::move(report));
}

}  // namespace penstock
