#include "client/cli/journal_text.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/cli/pipeline_text.h"
#include "client/lib/durations.h"

namespace penstock {
namespace {

std::string TimeText(const google::protobuf::Timestamp& time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%SZ", FromMessage(time), absl::UTCTimeZone());
}

// As many digits as give the same number back.
std::string ExactText(double value) { return absl::StrFormat("%.17g", value); }

}  // namespace

Document JournalCallDocument(const std::vector<v1::JournalCall>& calls) {
  Table table({{"SEQUENCE", true},
               {"METHOD"},
               {"CALLER"},
               {"STATE"},
               {"ACCEPTED"},
               {"INPUTS", true},
               {"RUN", true},
               {"REASON"},
               {"ENDED", false, true},
               {"REQUEST ID", false, true}});
  Document document;
  document.json["calls"] = Json::array();
  for (const v1::JournalCall& call : calls) {
    const std::string state =
        absl::AsciiStrToLower(absl::StripPrefix(v1::JournalCall::State_Name(call.state()), "STATE_"));
    const bool ended = call.has_settle_time();
    table.Add({absl::StrCat(call.sequence()), call.method(), call.caller(), call.cut() ? state + ", cut" : state,
               call.has_accept_time() ? TimeText(call.accept_time()) : "-",
               call.cut() ? "-" : BytesText(static_cast<double>(call.input_bytes())),
               ended ? absl::StrCat(NumberText(call.run_seconds(), 3), " s") : "-",
               call.error_reason().empty() ? "-" : call.error_reason(), ended ? TimeText(call.settle_time()) : "-",
               call.request_id().empty() ? "-" : call.request_id()});
    document.lines.push_back(MessageToJson(call));
    document.names.push_back(absl::StrCat(call.sequence()));
    document.json["calls"].push_back(document.lines.back());
  }
  document.text = calls.empty() ? "no calls\n" : table.Text(false);
  document.wide = calls.empty() ? "no calls\n" : table.Text(true);
  return document;
}

Document VerifiedDocument(const std::vector<VerifiedJournal>& journals) {
  Table table({{"PIPELINE"}, {"CALLS", true}, {"INPUTS", true}, {"SIZE", true}, {"OUTCOMES", true}, {"DAMAGE"}});
  Document document;
  document.json["journals"] = Json::array();
  for (const VerifiedJournal& journal : journals) {
    const v1::VerifyJournalResponse& found = journal.found;
    table.Add({ShortName(journal.pipeline), absl::StrCat(found.calls()), absl::StrCat(found.inputs()),
               BytesText(static_cast<double>(found.input_bytes())), absl::StrCat(found.outcomes()),
               found.damage().empty() ? "none" : found.damage()});
    Json line{{"pipeline", journal.pipeline}};
    line.update(MessageToJson(found));
    document.json["journals"].push_back(line);
    document.lines.push_back(std::move(line));
    document.names.push_back(journal.pipeline);
  }
  document.text = journals.empty() ? "no pipelines\n" : table.Text(false);
  return document;
}

Document BackupDocument(const v1::BackUpJournalResponse& copy) {
  Table table({{"PIPELINE"}, {"UP TO CALL", true}, {"CHECKPOINTS", true}, {"LEFT OUT"}});
  Document document{.json = MessageToJson(copy), .names = {copy.folder()}};
  for (const auto& pipeline : copy.pipelines()) {
    table.Add(
        {ShortName(pipeline.name()), absl::StrCat(pipeline.sequence()), absl::StrCat(pipeline.checkpoints()), "-"});
  }
  for (const auto& pipeline : copy.left_out()) table.Add({ShortName(pipeline.name()), "-", "-", pipeline.reason()});
  document.text = table.empty() ? "no pipelines\n" : table.Text(false);
  return document;
}

Document HistoryDocument(const std::vector<v1::HistoryStep>& steps) {
  Table table({{"STEP", true},
               {"LOSS", true},
               {"NORM", true},
               {"RATE", true},
               {"APPLIED"},
               {"RUN", true},
               {"TIME"},
               {"SEQUENCE", true, true}});
  Document document;
  document.json["steps"] = Json::array();
  for (const v1::HistoryStep& step : steps) {
    table.Add({absl::StrCat(step.step()), step.has_loss() ? NumberText(step.loss(), 4) : "-",
               step.has_gradient_norm() ? NumberText(step.gradient_norm(), 4) : "-",
               step.has_learning_rate() ? absl::StrFormat("%.4g", step.learning_rate()) : "-",
               step.applied() ? "yes" : "no", absl::StrCat(NumberText(step.run_seconds(), 3), " s"),
               TimeText(step.time()), absl::StrCat(step.sequence())});
    document.lines.push_back(MessageToJson(step));
    document.names.push_back(absl::StrCat(step.step()));
    document.json["steps"].push_back(document.lines.back());
  }
  document.text = steps.empty() ? "no steps\n" : table.Text(false);
  document.wide = steps.empty() ? "no steps\n" : table.Text(true);
  return document;
}

std::string HistoryCsv(const std::vector<v1::HistoryStep>& steps) {
  std::string csv = "step,sequence,time,loss,gradient_norm,learning_rate,applied,run_seconds\n";
  for (const v1::HistoryStep& step : steps) {
    absl::StrAppend(&csv, step.step(), ",", step.sequence(), ",",
                    absl::FormatTime(absl::RFC3339_full, FromMessage(step.time()), absl::UTCTimeZone()), ",",
                    step.has_loss() ? ExactText(step.loss()) : "", ",",
                    step.has_gradient_norm() ? ExactText(step.gradient_norm()) : "", ",",
                    step.has_learning_rate() ? ExactText(step.learning_rate()) : "", ",",
                    step.applied() ? "true" : "false", ",", ExactText(step.run_seconds()), "\n");
  }
  return csv;
}

}  // namespace penstock
