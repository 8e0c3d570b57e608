// penstock trace: what a pipeline did, as a file for trace viewers

#include <memory>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/command_table.h"
#include "client/cli/gzip_stream.h"
#include "client/cli/number_checks.h"
#include "client/cli/output_file.h"
#include "client/cli/pipeline_text.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

struct TraceOptions {
  std::string pipeline;
  std::string to;
  std::string format = "chrome";
  int steps = 0;
  int64_t first_step = 0;
  int64_t last_step = 0;
};

// A trace's file, compressed if its name ends in .gz.
class TraceFile {
 public:
  TraceFile(const std::string& path, Session& session) : file_(path, session.out(), session.stop()) {
    if (absl::EndsWith(path, ".gz")) gzip_.emplace();
  }

  absl::Status Append(std::string_view bytes) { return file_.Append(gzip_.has_value() ? gzip_->Add(bytes) : bytes); }

  absl::Status Commit() {
    if (gzip_.has_value()) PENSTOCK_RETURN_IF_ERROR(file_.Append(gzip_->Finish()));
    return file_.Commit();
  }

 private:
  OutputFile file_;
  std::optional<GzipStream> gzip_;
};

std::string StepsText(int steps) { return CountText(steps) + (steps == 1 ? " step" : " steps"); }

absl::Status Trace(const TraceOptions& options, Session& session) {
  v1::ExportTraceRequest request;
  request.set_pipeline(PipelineName(options.pipeline));
  request.set_format(options.format == "perfetto" ? v1::ExportTraceRequest::FORMAT_PERFETTO
                                                  : v1::ExportTraceRequest::FORMAT_CHROME);
  request.set_steps(options.steps);
  request.set_first_step(options.first_step);
  request.set_last_step(options.last_step);
  session.set_endless();
  PENSTOCK_ASSIGN_OR_RETURN(PipelineClient * client, session.Client());
  if (options.steps > 0) {
    session.Say(absl::StrCat("recording the next ", StepsText(options.steps), " of ", ShortName(request.pipeline()),
                             "; Ctrl-C gives up"));
  }
  TraceFile file(options.to, session);
  PENSTOCK_ASSIGN_OR_RETURN(const v1::TraceSummary summary,
                            client->ExportTrace(request, [&](std::string_view bytes) { return file.Append(bytes); }));
  PENSTOCK_RETURN_IF_ERROR(file.Commit());
  session.Say(absl::StrFormat("wrote %s, %s of %d lanes, %s records, to %s; open it in ui.perfetto.dev%s",
                              StepsText(summary.steps()), absl::StrFormat("%.4g s", summary.seconds()), summary.lanes(),
                              CountText(summary.records()), options.to == "-" ? "stdout" : options.to,
                              options.format == "chrome" ? " or chrome://tracing" : ""));
  if (summary.incomplete()) {
    session.Say(absl::StrCat("older records were overwritten, ", CountText(summary.lost_records()),
                             " of them; penstockd --trace-ring-events keeps more"));
  }
  return absl::OkStatus();
}

}  // namespace

void AddTraceCommand(CommandTable& table) {
  CLI::App* command = table.Add(table.root(), "trace", "Write what a pipeline did to a file for trace viewers",
                                "penstock trace gpt -O gpt.json\n"
                                "penstock trace gpt -O gpt.json.gz\n"
                                "penstock trace gpt --steps 3 --format perfetto -O gpt.pftrace\n"
                                "penstock trace gpt --first-step 10 --last-step 12 -O gpt.json");
  auto options = std::make_shared<TraceOptions>();
  command->add_option("PIPELINE", options->pipeline, "Name of the pipeline")->required();
  command->add_option("-O,--to", options->to, "File to write, compressed if its name ends in .gz; - is stdout")
      ->required()
      ->type_name("FILE");
  command->add_option("--format", options->format, "chrome (JSON) or perfetto (protobuf, much smaller)")
      ->check(CLI::IsMember({"chrome", "perfetto"}))
      ->type_name("FORMAT")
      ->capture_default_str();
  CLI::Option* steps =
      command
          ->add_option("--steps", options->steps, "Record so many of the next steps; unset: what the daemon still has")
          ->check(CLI::Range(1, 10'000))
          ->type_name("N");
  CLI::Option* first = command->add_option("--first-step", options->first_step, "Only from this step on")
                           ->check(Positive())
                           ->type_name("N")
                           ->excludes(steps);
  command->add_option("--last-step", options->last_step, "To this one; unset: the first alone")
      ->check(Positive())
      ->type_name("N")
      ->needs(first);
  table.Run(command, [options](Session& session) { return Trace(*options, session); });
}

}  // namespace penstock
