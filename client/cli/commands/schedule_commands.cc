// penstock schedule list, simulate, show: offline, by the engine's own schedules

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/command_table.h"
#include "client/cli/exit_code.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/generators.h"
#include "engine/schedule/grid.h"
#include "engine/schedule/render.h"
#include "engine/schedule/what_if.h"

namespace penstock {
namespace {

void AddWhatIfOptions(CLI::App* command, WhatIfOptions* o) {
  command->add_option("--kind", o->kind, "Kind of schedule: penstock schedule list")->required()->type_name("KIND");
  command->add_option("--devices", o->devices, "Devices, one stage each")->required()->type_name("P");
  command->add_option("--micro-batches", o->micro_batches, "Micro-batches of the mini-batch")
      ->required()
      ->type_name("M");
  command->add_option("--forward", o->forward, "Cost of a forward, in units")->type_name("F")->capture_default_str();
  command->add_option("--input", o->input, "Cost of the input half of a backward")
      ->type_name("I")
      ->capture_default_str();
  command->add_option("--weight", o->weight, "Cost of its weight half")->type_name("W")->capture_default_str();
  command->add_option("--recompute-cost", o->recompute_cost, "Cost of a recomputation; unset: as the forward")
      ->type_name("R");
  command->add_option("--hop", o->hop, "Time from one device to the next")->type_name("H")->capture_default_str();
  command->add_option("--recompute", o->recompute, "What is recomputed: never, except_last, always, skip_adjacent")
      ->type_name("MODE")
      ->capture_default_str();
  CLI::Option* heavy =
      command->add_option("--heavy-device", o->heavy_device, "A device that is slower than the others")->type_name("D");
  command->add_option("--heavy-scale", o->heavy_scale, "Its costs are so many times higher; unset: 1.5")
      ->type_name("X")
      ->needs(heavy);
  command->add_option("--last-scale", o->last_scale, "Costs of the last stage are so many times higher")
      ->type_name("X")
      ->capture_default_str();
}

// A wrong size or kind is a wrong argument of the command.
absl::StatusOr<WhatIfResult> Ask(const WhatIfOptions& options) {
  absl::StatusOr<WhatIfResult> result = WhatIf(options);
  if (result.ok()) return result;
  std::string option = ValuesOf(result.status())["field"];
  std::string problem(result.status().message());
  if (problem.starts_with(option + ": ")) problem.erase(0, option.size() + 2);
  for (char& letter : option) letter = letter == '_' ? '-' : letter;
  return UsageError("--" + option, problem);
}

absl::Status Simulate(const WhatIfOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(const WhatIfResult result, Ask(options));
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
  document.names = {options.kind};
  session.Print(document);
  return absl::OkStatus();
}

struct ShowOptions {
  WhatIfOptions what;
  std::string as = "gantt";
  int columns = 96;
};

absl::Status Show(const ShowOptions& options, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(const WhatIfResult result, Ask(options.what));
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
  session.Print({{{"kind", options.what.kind}, {"form", options.as}, {"drawing", drawing}},
                 {},
                 {options.what.kind},
                 drawing,
                 ""});
  return absl::OkStatus();
}

absl::Status List(Session& session) {
  Document document;
  document.json["kinds"] = Json::array();
  Table table({{"KIND"}, {"TRAINS"}, {"WHAT IT DOES"}});
  for (const ScheduleKind& kind : ScheduleKinds()) {
    document.lines.push_back({{"kind", kind.name}, {"trains", kind.trains}, {"summary", kind.summary}});
    document.names.emplace_back(kind.name);
    table.Add({std::string(kind.name), kind.trains ? "yes" : "no", std::string(kind.summary)});
  }
  document.json["kinds"] = document.lines;
  document.text = table.Text(false);
  session.Print(document);
  return absl::OkStatus();
}

}  // namespace

void AddScheduleCommands(CommandTable& table) {
  CLI::App* group =
      table.Add(table.root(), "schedule", "Look at schedules; needs no daemon",
                "penstock schedule list\npenstock schedule show --kind 1f1b --devices 4 --micro-batches 8");
  CLI::App* list = table.Add(group, "list", "List the kinds of schedule", "penstock schedule list -o name");
  table.Run(list, List);

  CLI::App* simulate =
      table.Add(group, "simulate", "Predict makespan, bubble and memory from costs",
                "penstock schedule simulate --kind 1f1b --devices 4 --micro-batches 8 -o json\n"
                "penstock schedule simulate --kind gpipe --devices 4 --micro-batches 8 --recompute always --hop 0.1");
  auto what = std::make_shared<WhatIfOptions>();
  AddWhatIfOptions(simulate, what.get());
  table.Run(simulate, [what](Session& session) { return Simulate(*what, session); });

  CLI::App* show = table.Add(group, "show", "Draw a schedule",
                             "penstock schedule show --kind 1f1b --devices 4 --micro-batches 8\n"
                             "penstock schedule show --kind gpipe --devices 2 --micro-batches 4 --as grid");
  auto options = std::make_shared<ShowOptions>();
  AddWhatIfOptions(show, &options->what);
  show->add_option("--as", options->as, "gantt (over time), grid (action lists), csv, svg")
      ->check(CLI::IsMember({"gantt", "grid", "csv", "svg"}))
      ->type_name("FORM")
      ->capture_default_str();
  show->add_option("--columns", options->columns, "Widest row of a Gantt chart")
      ->check(CLI::Range(16, 1000))
      ->type_name("N")
      ->capture_default_str();
  table.Run(show, [options](Session& session) { return Show(*options, session); });
}

}  // namespace penstock
