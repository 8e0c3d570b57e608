#include "engine/schedule/schedule.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/schedule/csv.h"
#include "engine/schedule/failure.h"
#include "engine/schedule/grid.h"
#include "engine/schedule/text_limit.h"

namespace penstock {
namespace {

constexpr char kIdleCell = '.';

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }
std::string_view StdView(absl::string_view text) { return {text.data(), text.size()}; }

std::string Plural(int count, std::string_view noun) {
  return absl::StrCat(count, " ", View(noun), count == 1 ? "" : (noun == "micro-batch" ? "es" : "s"));
}

// Refuses text that no schedule within the limits prints to, before anything is made of it.
absl::Status CheckLength(std::string_view text) {
  if (text.size() <= kMaxScheduleBytes) return absl::OkStatus();
  return InvalidField("schedule", absl::StrCat("must have at most ", kMaxScheduleBytes, " bytes"),
                      absl::StrCat(text.size(), " bytes"));
}

// Sets stages and micro-batches to what the actions need.
void InferSizes(Schedule* schedule) {
  for (const auto& list : schedule->lanes) {
    for (const Action& action : list) {
      schedule->stages = std::max(schedule->stages, action.stage + 1);
      if (action.kind == ActionKind::kOptimizer) continue;
      schedule->micro_batches = std::max(schedule->micro_batches, action.micro_batch + 1);
    }
  }
}

// Reads "schedule gpipe: 2 stages, 1 micro-batch".
absl::Status ParseHeading(absl::string_view line, Schedule* schedule) {
  const auto malformed = [&] {
    return InvalidField("schedule", "must begin with \"schedule KIND: N stages, M micro-batches\"",
                        StdView(absl::ClippedSubstr(line, 0, 60)));
  };
  absl::string_view rest = line;
  if (!absl::ConsumePrefix(&rest, "schedule ")) return malformed();
  const size_t colon = rest.find(": ");
  if (colon == absl::string_view::npos) return malformed();
  schedule->kind = std::string(rest.substr(0, colon));
  const std::vector<absl::string_view> sizes = absl::StrSplit(rest.substr(colon + 2), ", ");
  if (sizes.size() != 2) return malformed();
  const std::pair<absl::string_view, absl::string_view> stages = absl::StrSplit(sizes[0], ' ');
  const std::pair<absl::string_view, absl::string_view> micro_batches = absl::StrSplit(sizes[1], ' ');
  if (!absl::SimpleAtoi(stages.first, &schedule->stages) ||
      !absl::SimpleAtoi(micro_batches.first, &schedule->micro_batches) ||
      sizes[0] != View(Plural(schedule->stages, "stage")) ||
      sizes[1] != View(Plural(schedule->micro_batches, "micro-batch"))) {
    return malformed();
  }
  return absl::OkStatus();
}

// Reads "pos  lane 0  lane 1" and makes that many empty lists.
absl::Status ParseColumns(absl::string_view line, Schedule* schedule) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  const auto malformed = [&] {
    return InvalidField("schedule", "must have columns \"pos  lane 0  lane 1 ...\"",
                        StdView(absl::ClippedSubstr(line, 0, 60)));
  };
  if (words.empty() || words[0] != "pos" || words.size() % 2 == 0) return malformed();
  for (size_t i = 1; i < words.size(); i += 2) {
    if (words[i] != "lane" || words[i + 1] != absl::StrCat(i / 2)) return malformed();
  }
  schedule->lanes.resize(words.size() / 2);
  return absl::OkStatus();
}

// Reads "  0  0F0     1F0" as row number `position`.
absl::Status ParseRow(absl::string_view line, int position, Schedule* schedule) {
  const std::vector<absl::string_view> cells = absl::StrSplit(line, ' ', absl::SkipEmpty());
  if (cells.size() != schedule->lanes.size() + 1 || cells[0] != absl::StrCat(position)) {
    return InvalidField("schedule",
                        absl::StrCat("must have row ", position, " with ", schedule->lanes.size(), " cells"),
                        StdView(absl::ClippedSubstr(line, 0, 60)));
  }
  for (size_t lane = 0; lane < schedule->lanes.size(); ++lane) {
    const absl::string_view cell = cells[lane + 1];
    if (cell.size() == 1 && cell[0] == kIdleCell) continue;
    const absl::StatusOr<Action> action = ParseAction(StdView(cell));
    if (!action.ok()) {
      return WithValue(WithPrefix(action.status(), absl::StrCat("row ", position, " of lane ", lane, ": ")), "lane",
                       absl::StrCat(lane));
    }
    schedule->lanes[lane].push_back(*action);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSizes(int lanes, int stages, int micro_batches) {
  const auto check = [](std::string_view field, int value, int limit) {
    if (value < 1) return InvalidField(field, "must be at least 1", absl::StrCat(value));
    if (value > limit) return InvalidField(field, absl::StrCat("must be at most ", limit), absl::StrCat(value));
    return absl::OkStatus();
  };
  PENSTOCK_RETURN_IF_ERROR(check("lanes", lanes, kMaxLanes));
  PENSTOCK_RETURN_IF_ERROR(check("stages", stages, kMaxStages));
  PENSTOCK_RETURN_IF_ERROR(check("micro_batches", micro_batches, kMaxMicroBatches));
  if (int64_t{stages} * micro_batches > kMaxCells) {
    return InvalidField("micro_batches",
                        absl::StrCat("must be at most ", kMaxCells / stages, " with ", stages, " stages"),
                        absl::StrCat(micro_batches));
  }
  return absl::OkStatus();
}

std::vector<int> LaneOfEachStage(const Schedule& schedule) {
  std::vector<int> lane_of(schedule.stages, -1);
  for (size_t lane = 0; lane < schedule.lanes.size(); ++lane) {
    for (const Action& action : schedule.lanes[lane]) {
      if (action.stage >= 0 && action.stage < schedule.stages) lane_of[action.stage] = static_cast<int>(lane);
    }
  }
  return lane_of;
}

std::string ToText(const Schedule& schedule) {
  return absl::StrCat("schedule ", schedule.kind, ": ", Plural(schedule.stages, "stage"), ", ",
                      Plural(schedule.micro_batches, "micro-batch"), "\n", RenderGrid(schedule));
}

absl::StatusOr<Schedule> ParseText(std::string_view text) {
  PENSTOCK_RETURN_IF_ERROR(CheckLength(text));
  std::vector<absl::string_view> lines = absl::StrSplit(View(text), '\n');
  while (!lines.empty() && absl::StripAsciiWhitespace(lines.back()).empty()) lines.pop_back();
  if (lines.size() < 2) return InvalidField("schedule", "must have a heading and columns", "too few lines");
  Schedule schedule;
  PENSTOCK_RETURN_IF_ERROR(ParseHeading(lines[0], &schedule));
  PENSTOCK_RETURN_IF_ERROR(ParseColumns(lines[1], &schedule));
  for (size_t i = 2; i < lines.size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(ParseRow(lines[i], static_cast<int>(i) - 2, &schedule));
  }
  if (std::all_of(schedule.lanes.begin(), schedule.lanes.end(), [](const auto& list) { return list.empty(); })) {
    return InvalidField("schedule", "must have at least one action", "none");
  }
  PENSTOCK_RETURN_IF_ERROR(CheckShape(schedule));
  return schedule;
}

std::string ToCsv(const Schedule& schedule) {
  std::string csv;
  for (const auto& list : schedule.lanes) {
    absl::StrAppend(
        &csv, absl::StrJoin(list, ",", [](std::string* out, const Action& action) { out->append(ToString(action)); }),
        "\n");
  }
  return csv;
}

absl::StatusOr<Schedule> ParseCsv(std::string_view text, std::string_view kind) {
  return ReadCsv(text, kind, [](std::string_view cell, std::vector<Action>* list) -> absl::Status {
    PENSTOCK_ASSIGN_OR_RETURN(const Action action, ParseAction(cell));
    list->push_back(action);
    return absl::OkStatus();
  });
}

absl::StatusOr<Schedule> ReadCsv(std::string_view text, std::string_view kind,
                                 const std::function<absl::Status(std::string_view, std::vector<Action>*)>& read) {
  PENSTOCK_RETURN_IF_ERROR(CheckLength(text));
  Schedule schedule{.kind = std::string(kind)};
  std::vector<absl::string_view> rows = absl::StrSplit(View(text), '\n');
  if (!rows.empty() && rows.back().empty()) rows.pop_back();
  for (size_t lane = 0; lane < rows.size(); ++lane) {
    auto& list = schedule.lanes.emplace_back();
    int number = -1;
    for (const absl::string_view cell : absl::StrSplit(rows[lane], ',')) {
      ++number;
      const absl::string_view trimmed = absl::StripAsciiWhitespace(cell);
      if (trimmed.empty()) continue;
      if (absl::Status status = read(StdView(trimmed), &list); !status.ok()) {
        status = WithPrefix(status, absl::StrCat("row of lane ", lane, ", cell ", number, ": "));
        return WithValue(WithValue(std::move(status), "lane", absl::StrCat(lane)), "cell", absl::StrCat(number));
      }
    }
  }
  InferSizes(&schedule);
  PENSTOCK_RETURN_IF_ERROR(CheckShape(schedule));
  return schedule;
}

}  // namespace penstock
