// penstock schedule list, simulate, verify, show: offline, by the engine's own schedules; show also of a live pipeline

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command_table.h"
#include "client/cli/commands/pipeline_schedule.h"
#include "client/cli/exit_code.h"
#include "client/cli/number_checks.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/credits.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/render.h"
#include "engine/schedule/skips.h"
#include "engine/schedule/text_limit.h"
#include "engine/schedule/torch_csv.h"
#include "engine/schedule/verify.h"
#include "engine/schedule/what_if.h"

namespace penstock {
namespace {

// A schedule of a kind or from a file, and what it costs.
struct Question {
  WhatIfOptions what;
  std::string file;
  std::vector<const CLI::Option*> needed = {};  // unless there is a file
};

void AddQuestion(CLI::App* command, Question* question) {
  WhatIfOptions* o = &question->what;
  CLI::Option* file =
      command->add_option("--file", question->file, "Its lists, as text or CSV; - is stdin")->type_name("FILE");
  const auto not_of_a_file = [file](CLI::Option* option) { option->excludes(file); };
  question->needed = {
      command->add_option("--kind", o->kind, "Kind of schedule: penstock schedule list")->type_name("KIND"),
      command->add_option("--devices", o->devices, "Devices, each with one stage per chunk")->type_name("P"),
      command->add_option("--micro-batches", o->micro_batches, "Micro-batches of the mini-batch")->type_name("M")};
  for (const char* needed : {"--kind", "--devices", "--micro-batches"}) not_of_a_file(command->get_option(needed));
  not_of_a_file(command->add_option("--chunks", o->chunks, "Stages per device; unset: as many as the kind usually has")
                    ->type_name("V"));
  not_of_a_file(command->add_option("--lag", o->lag, "Kind lag: micro-batches that weight gradients may stay behind")
                    ->type_name("K"));
  not_of_a_file(command->add_option("--limit", o->limit, "Kind auto: micro-batches that a device may hold; unset: P")
                    ->type_name("L"));
  not_of_a_file(
      command->add_option("--recompute", o->recompute, "What is recomputed: never, except_last, always, skip_adjacent")
          ->type_name("MODE")
          ->capture_default_str());
  command->add_option("--forward", o->forward, "Cost of a forward of a whole device, in units")
      ->type_name("F")
      ->capture_default_str();
  command->add_option("--input", o->input, "Cost of the input half of a backward")
      ->type_name("I")
      ->capture_default_str();
  command->add_option("--weight", o->weight, "Cost of its weight half")->type_name("W")->capture_default_str();
  command->add_option("--recompute-cost", o->recompute_cost, "Cost of a recomputation; unset: as the forward")
      ->type_name("R");
  command->add_option("--hop", o->hop, "Time from one device to the next")->type_name("H")->capture_default_str();
  CLI::Option* heavy =
      command->add_option("--heavy-device", o->heavy_device, "A device that is slower than the others")->type_name("D");
  command->add_option("--heavy-scale", o->heavy_scale, "Its costs are so many times higher; unset: 1.5")
      ->type_name("X")
      ->needs(heavy);
  command->add_option("--last-scale", o->last_scale, "Costs of the last stage are so many times higher")
      ->type_name("X")
      ->capture_default_str();
}

// Reads the lists of a file, told apart from wrong arguments: its errors are its own. Notices go to stderr.
absl::StatusOr<Schedule> ReadLists(const std::string& path, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, session.ReadFile(path, kMaxScheduleBytes, "a schedule"));
  absl::StatusOr<TorchImport> read = ReadSchedule(text);
  if (!read.ok()) return WithPrefix(read.status(), absl::StrCat(path, ": "));
  for (const std::string& notice : read->notices) session.Say(absl::StrCat(path, ": ", notice));
  return std::move(read->schedule);
}

// A wrong size or kind is a wrong argument of the command.
absl::Status AsWrongArgument(const absl::Status& status) {
  std::string option = ValuesOf(status)["field"];
  std::string problem(status.message());
  if (problem.starts_with(option + ": ")) problem.erase(0, option.size() + 2);
  for (char& letter : option) letter = letter == '_' ? '-' : letter;
  return UsageError("--" + option, problem);
}

absl::StatusOr<WhatIfResult> Ask(const Question& question, Session& session) {
  if (!question.file.empty()) {
    PENSTOCK_ASSIGN_OR_RETURN(Schedule lists, ReadLists(question.file, session));
    absl::StatusOr<WhatIfResult> result = WhatIf(std::move(lists), question.what);
    if (result.ok() || ReasonOf(result.status()) != "FIELD_INVALID") return result;
    return AsWrongArgument(result.status());
  }
  for (const CLI::Option* option : question.needed) {
    if (option->count() == 0) return UsageError(option->get_name(), "is required unless --file is given");
  }
  absl::StatusOr<WhatIfResult> result = WhatIf(question.what);
  if (result.ok()) return result;
  return AsWrongArgument(result.status());
}

absl::Status Simulate(const Question& question, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(const WhatIfResult result, Ask(question, session));
  Document document;
  document.json = {{"makespan", result.makespan}, {"ideal_time", result.ideal_time},
                   {"window", result.window},     {"overhead", result.overhead},
                   {"bubble", result.bubble},     {"peak_activations", result.peak_activations}};
  Table table({{"MEASURE"}, {"VALUE", true}, {"MEANING"}});
  const auto plain = [](double value) { return absl::StrCat(value); };
  table.Add({"makespan", plain(result.makespan), "a step with a barrier, in units"});
  table.Add({"ideal time", plain(result.ideal_time), "work of the busiest device"});
  table.Add({"window", plain(result.window), "a step without a barrier"});
  table.Add({"overhead", PercentText(result.overhead), "of the ideal time"});
  table.Add({"bubble", PercentText(result.bubble), "of the makespan"});
  table.Add({"peak activations", plain(result.peak_activations), "micro-batches of a whole device"});
  document.text = table.Text(false);
  document.wide = document.text + "\npeaks per device  " + absl::StrJoin(result.peaks_per_device, ", ") +
                  "\npeak stashed      " + plain(result.peak_stashed) + "\n";
  document.names = {result.schedule.kind};
  session.Print(document);
  return absl::OkStatus();
}

struct ShowOptions {
  Question question;
  PipelineScheduleOptions live;
  std::string as = "gantt";
  int columns = 96;
};

absl::Status Show(const ShowOptions& options, Session& session) {
  if (!options.live.pipeline.empty()) {
    PipelineScheduleOptions live = options.live;
    if (options.question.needed.back()->count() > 0) live.micro_batches = options.question.what.micro_batches;
    return ShowPipelineSchedule(live, options.as, options.columns, session);
  }
  if (options.as == "text" || options.as == "deviations") {
    return UsageError("--pipeline", "is required for --as " + options.as);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const WhatIfResult result, Ask(options.question, session));
  std::string drawing;
  if (options.as == "gantt") {
    GanttOptions gantt;
    gantt.columns = options.columns;
    drawing = RenderGantt(result.simulation, gantt);
  } else if (options.as == "svg") {
    drawing = RenderSvg(result.simulation);
  } else if (options.as == "csv") {
    drawing = ToCsv(result.schedule);
  } else {
    drawing = ToText(result.schedule);
  }
  session.Print({{{"kind", result.schedule.kind}, {"form", options.as}, {"drawing", drawing}},
                 {},
                 {result.schedule.kind},
                 drawing,
                 ""});
  return absl::OkStatus();
}

struct VerifyCommandOptions {
  std::string file;
  std::optional<int> devices, micro_batches;
  std::optional<double> limit;
  int credits = 0;
};

// Lists that are whole may still be of another pipeline: sizes are checked if they are given.
absl::Status CheckExpected(std::string_view what, std::optional<int> expected, int found) {
  if (!expected || *expected == found) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
               absl::StrCat("schedule: ", std::string(what), " must be ", *expected, ", got ", found))
      .With("field", what)
      .With("value", absl::StrCat(found));
}

absl::Status Check(const VerifyCommandOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(const Schedule lists, ReadLists(options.file, session));
  VerifyOptions what = ImpliedOptions(lists);
  what.credits = options.credits;
  what.max_live_activations = options.limit;
  PENSTOCK_ASSIGN_OR_RETURN(const PeakActivations peaks, Verify(lists, what, SkipsInLists(lists)));
  PENSTOCK_RETURN_IF_ERROR(CheckExpected("devices", options.devices, static_cast<int>(lists.lanes.size())));
  PENSTOCK_RETURN_IF_ERROR(CheckExpected("micro_batches", options.micro_batches, lists.micro_batches));
  const std::string purpose(ToString(what.purpose));
  Document document;
  document.json = {{"devices", lists.lanes.size()},
                   {"stages", lists.stages},
                   {"micro_batches", lists.micro_batches},
                   {"purpose", purpose},
                   {"communication", what.with_communication},
                   {"min_credits", MinCredits(lists)},
                   {"peak_activations", peaks.MaxFullUnits()},
                   {"peak_stashed", peaks.MaxStashedUnits()}};
  document.text = absl::StrCat("valid: ", purpose, what.with_communication ? "" : ", compute actions only", ", ",
                               lists.stages, " stages on ", lists.lanes.size(), " devices, ", lists.micro_batches,
                               " micro-batches, peak activations ", peaks.MaxFullUnits(), "\n");
  document.names = {options.file};
  session.Print(document);
  return absl::OkStatus();
}

absl::Status ListScheduleKinds(Session& session) {
  Document document;
  document.json["kinds"] = Json::array();
  Table table({{"KIND"}, {"TRAINS"}, {"CHUNKS"}, {"WHAT IT DOES"}});
  for (const ScheduleKind& kind : ScheduleKinds()) {
    const std::string chunks = kind.max_chunks == kAnyChunks ? "any" : absl::StrCat(kind.max_chunks);
    document.lines.push_back({{"kind", kind.name},
                              {"trains", kind.trains},
                              {"splits", kind.splits},
                              {"chunks", chunks},
                              {"summary", kind.summary}});
    document.names.emplace_back(kind.name);
    table.Add({std::string(kind.name), kind.trains ? "yes" : "no", chunks, std::string(kind.summary)});
  }
  document.json["kinds"] = document.lines;
  document.text = table.Text(false);
  session.Print(document);
  return absl::OkStatus();
}

}  // namespace

void AddScheduleCommands(CommandTable& table) {
  CLI::App* group =
      table.Add(table.root(), "schedule", "Look at schedules, without a daemon or of a live pipeline",
                "penstock schedule list\npenstock schedule show --kind 1f1b --devices 4 --micro-batches 8");
  CLI::App* list = table.Add(group, "list", "List the kinds of schedule", "penstock schedule list -o name");
  table.Run(list, ListScheduleKinds);

  CLI::App* simulate =
      table.Add(group, "simulate", "Predict makespan, bubble and memory from costs",
                "penstock schedule simulate --kind 1f1b --devices 4 --micro-batches 8 -o json\n"
                "penstock schedule simulate --kind interleaved-zb --devices 4 --micro-batches 8 --chunks 4\n"
                "penstock schedule simulate --kind auto --devices 4 --micro-batches 8 --limit 7 --hop 0.1\n"
                "penstock schedule simulate --kind gpipe --devices 4 --micro-batches 8 --recompute always --hop 0.1\n"
                "penstock schedule simulate --file lists.csv");
  auto question = std::make_shared<Question>();
  AddQuestion(simulate, question.get());
  table.Run(simulate, [question](Session& session) { return Simulate(*question, session); });

  CLI::App* verify = table.Add(group, "verify", "Prove that the lists of a file can run",
                               "penstock schedule show --kind zbv --devices 4 --micro-batches 8 --as csv > lists.csv\n"
                               "penstock schedule verify lists.csv --devices 4 --micro-batches 8");
  auto checked = std::make_shared<VerifyCommandOptions>();
  verify->add_option("FILE", checked->file, "Lists as text or CSV, ours or PyTorch's; - is stdin")->required();
  verify->add_option("--devices", checked->devices, "Devices that the lists must be for")->type_name("P");
  verify->add_option("--micro-batches", checked->micro_batches, "Micro-batches that they must have")->type_name("M");
  verify->add_option("--limit", checked->limit, "Micro-batches that a device may hold")->type_name("L");
  verify->add_option("--credits", checked->credits, "Messages that may wait on an edge; 0: no bound")
      ->check(NonNegative())
      ->type_name("C")
      ->capture_default_str();
  table.Run(verify, [checked](Session& session) { return Check(*checked, session); });

  CLI::App* show = table.Add(group, "show", "Draw a schedule",
                             "penstock schedule show --kind 1f1b --devices 4 --micro-batches 8\n"
                             "penstock schedule show --kind gpipe --devices 2 --micro-batches 4 --as grid\n"
                             "penstock schedule show --file lists.csv\n"
                             "penstock schedule show --pipeline gpt --measured\n"
                             "penstock schedule show --pipeline gpt --measured --step 12 --as svg > step.svg");
  auto options = std::make_shared<ShowOptions>();
  AddQuestion(show, &options->question);
  AddPipelineScheduleOptions(show, &options->live);
  show->add_option(
          "--as", options->as,
          "gantt (over time), grid (action lists), csv, svg; of a pipeline also text (each action), deviations")
      ->check(CLI::IsMember({"gantt", "grid", "csv", "svg", "text", "deviations"}))
      ->type_name("FORM")
      ->capture_default_str();
  show->add_option("--columns", options->columns, "Widest row of a Gantt chart")
      ->check(CLI::Range(16, 1000))
      ->type_name("N")
      ->capture_default_str();
  table.Run(show, [options](Session& session) { return Show(*options, session); });
}

}  // namespace penstock
