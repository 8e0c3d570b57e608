#include "server/ranks/rank_conversation.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/rank_message.h"
#include "engine/base/status_macros.h"
#include "engine/transport/frame_header.h"

namespace penstock {

void RankConversation::Say(OutgoingCommand command) {
  std::vector<MessagePart> parts = Prepare(std::move(command));
  absl::MutexLock lock(&mu_);
  if (lost_.ok()) line_->Tell(std::move(parts));
}

void RankConversation::Ask(OutgoingCommand command, Answer answer) {
  command.message().set_pipeline(pipeline_);
  absl::Status asked;
  {
    absl::MutexLock lock(&mu_);
    asked = lost_;
    if (asked.ok()) {
      const uint64_t question = ++asked_;
      questions_.emplace(question, answer);
      asked = Guarded("a question to a rank", [&] {
        command.message().set_question(question);
        line_->Tell(command.ToParts());
      });
      if (asked.ok()) return;
      questions_.erase(question);
    }
  }
  answer(asked);
}

absl::Status RankConversation::OnReport(const peer::v1::Report& report, NamedTensors tensors) {
  Arrived arrived{.report = report, .tensors = IncomingTensors(std::move(tensors))};
  if (report.answer_to() == 0) {
    return WithEvents([&](RankEvents& events) { return TellEvent(arrived, events); });
  }
  // Before the question is taken: one whose answer can't be made is answered when the rank is given up.
  absl::Status failed;
  if (!report.error().empty()) failed = ToldBy(rank_, DecodeError(report.error()));
  Answer answer;
  {
    absl::MutexLock lock(&mu_);
    if (!lost_.ok()) return absl::OkStatus();
    const auto found = questions_.find(report.answer_to());
    if (found == questions_.end()) {
      return BadRankMessage("report.answer_to", "must be a question that is open", absl::StrCat(report.answer_to()));
    }
    answer = std::move(found->second);
    questions_.erase(found);
  }
  if (failed.ok()) {
    answer(&arrived);
  } else {
    answer(failed);
  }
  return absl::OkStatus();
}

absl::Status RankConversation::TellEvent(Arrived& arrived, RankEvents& events) const {
  const peer::v1::Report& report = arrived.report;
  if (report.has_failed()) {
    events.Failed(rank_, report.failed().run(), DecodeError(report.failed().error()));
  } else if (report.has_run_ties()) {
    PENSTOCK_ASSIGN_OR_RETURN(TiedGradients ties, arrived.tensors.TakeTies(report.run_ties().ties()));
    events.HasTies(rank_, report.run_ties().run(), std::move(ties));
  } else if (report.has_run_norms()) {
    std::vector<NormsOfStage> norms;
    for (const peer::v1::NormsOfRun::OfStage& stage : report.run_norms().stages()) {
      PENSTOCK_ASSIGN_OR_RETURN(NamedTensors tensors, arrived.tensors.Take(stage.norms()));
      NormsOfStage& of_stage = norms.emplace_back();
      of_stage.stage = stage.stage();
      for (NamedTensor& norm : tensors) of_stage.norms.push_back(std::move(norm.tensor));
    }
    PENSTOCK_ASSIGN_OR_RETURN(Measures measures, FromProto(report.run_norms().measures()));
    events.HasNorms(rank_, report.run_norms().run(), std::move(norms), std::move(measures));
  } else if (report.has_left()) {
    PENSTOCK_ASSIGN_OR_RETURN(Measures measures, FromProto(report.left().measures()));
    events.Left(rank_, report.left().run(), report.left().before_the_end(), std::move(measures));
  } else {
    return BadRankMessage("report", "must be an event", "nothing that is known");
  }
  return absl::OkStatus();
}

absl::Status RankConversation::WithEvents(const std::function<absl::Status(RankEvents&)>& call) {
  RankEvents* events;
  {
    absl::MutexLock lock(&mu_);
    if (events_ == nullptr) return absl::OkStatus();
    events = events_;
    ++telling_;
  }
  absl::Status told = Guarded("what a rank tells", [&] { return call(*events); });
  absl::MutexLock lock(&mu_);
  --telling_;
  return told;
}

void RankConversation::OnLost(const absl::Status& why) {
  std::map<uint64_t, Answer> questions;
  {
    absl::MutexLock lock(&mu_);
    if (!lost_.ok()) return;
    lost_ = why;
    questions.swap(questions_);
  }
  // First: who gets an answer finds that the rank is lost.
  WithEvents([&](RankEvents& events) {
    events.Lost(rank_, why);
    return absl::OkStatus();
  }).IgnoreError();
  for (const auto& [number, answer] : questions) answer(why);
}

std::vector<MessagePart> RankConversation::Prepare(OutgoingCommand command) const {
  command.message().set_pipeline(pipeline_);
  return command.ToParts();
}

void RankConversation::Close(std::vector<MessagePart> last) {
  std::map<uint64_t, Answer> questions;
  const absl::Status gone = Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "the pipeline has gone");
  {
    absl::MutexLock lock(&mu_);
    if (lost_.ok()) lost_ = gone;  // nothing is said behind the last
    events_ = nullptr;
    questions.swap(questions_);
  }
  if (!last.empty()) {
    Guarded("the last command to a rank", [&] { line_->Tell(std::move(last)); }).IgnoreError();
  }
  for (const auto& [number, answer] : questions) answer(gone);
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(
      +[](int* telling) { return *telling == 0; }, &telling_));
}

}  // namespace penstock
