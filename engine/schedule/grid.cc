#include "engine/schedule/grid.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace penstock {
namespace {

// A grid of at most this size is shown whole; a larger one is cut to this many rows and lanes around each mark.
constexpr int kWholeRows = 40;
constexpr int kWholeLanes = 16;
constexpr int kRowsAround = 4;
constexpr int kLanesAround = 1;

enum class Mark { kCulprit, kOther };
using MarkTable = std::map<std::pair<int, int>, Mark>;  // (position, lane)

std::string CellText(const Schedule& schedule, int lane, int position, const MarkTable& marks) {
  const auto& list = schedule.lanes[lane];
  std::string text = position < static_cast<int>(list.size()) ? ToString(list[position]) : ".";
  const auto mark = marks.find({position, lane});
  if (mark == marks.end()) return text;
  return mark->second == Mark::kCulprit ? absl::StrCat(">", text, "<") : absl::StrCat("(", text, ")");
}

void TrimRight(std::string* line) { line->erase(line->find_last_not_of(' ') + 1); }

// Draws the given rows and lanes, both ascending.
std::string Draw(const Schedule& schedule, const std::vector<int>& rows, const std::vector<int>& lanes,
                 const MarkTable& marks) {
  std::vector<std::vector<std::string>> columns;
  std::vector<size_t> widths;
  for (const int lane : lanes) {
    auto& column = columns.emplace_back();
    column.push_back(absl::StrCat("lane ", lane));
    for (const int row : rows) column.push_back(CellText(schedule, lane, row, marks));
    size_t width = 0;
    for (const std::string& cell : column) width = std::max(width, cell.size());
    widths.push_back(width);
  }
  std::string text;
  for (size_t line_number = 0; line_number <= rows.size(); ++line_number) {
    const bool heading = line_number == 0;
    if (!heading && line_number > 1 && rows[line_number - 1] != rows[line_number - 2] + 1) {
      text.append("...\n");
    } else if (line_number == 1 && rows[0] > 0) {
      text.append("...\n");
    }
    std::string line = heading ? "pos" : absl::StrFormat("%3d", rows[line_number - 1]);
    for (size_t i = 0; i < columns.size(); ++i) {
      absl::StrAppend(&line, "  ", columns[i][line_number],
                      std::string(widths[i] - columns[i][line_number].size(), ' '));
    }
    TrimRight(&line);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::vector<int> Range(int size) {
  std::vector<int> all(size);
  for (int i = 0; i < size; ++i) all[i] = i;
  return all;
}

int LongestList(const Schedule& schedule) {
  size_t longest = 0;
  for (const auto& list : schedule.lanes) longest = std::max(longest, list.size());
  return static_cast<int>(longest);
}

void AddAround(int center, int around, int size, std::set<int>* kept) {
  for (int i = std::max(0, center - around); i <= std::min(size - 1, center + around); ++i) kept->insert(i);
}

}  // namespace

std::string RenderGrid(const Schedule& schedule) {
  return Draw(schedule, Range(LongestList(schedule)), Range(static_cast<int>(schedule.lanes.size())), {});
}

std::string RenderGridAround(const Schedule& schedule, const GridMarks& marks) {
  MarkTable table;
  for (const Place& place : marks.others) table[{place.position, place.lane}] = Mark::kOther;
  for (const Place& place : marks.culprits) table[{place.position, place.lane}] = Mark::kCulprit;
  int row_count = LongestList(schedule);
  for (const auto& [cell, mark] : table) row_count = std::max(row_count, cell.first + 1);
  const int lane_count = static_cast<int>(schedule.lanes.size());

  // Of a large grid, only the surroundings of the first few marks are worth reading.
  std::set<int> rows, lanes;
  for (const auto& places : {marks.culprits, marks.others}) {
    for (const Place& place : places) {
      if (rows.size() < kWholeRows) AddAround(place.position, kRowsAround, row_count, &rows);
      if (lanes.size() < kWholeLanes) AddAround(place.lane, kLanesAround, lane_count, &lanes);
    }
  }
  return Draw(schedule, row_count <= kWholeRows ? Range(row_count) : std::vector<int>(rows.begin(), rows.end()),
              lane_count <= kWholeLanes ? Range(lane_count) : std::vector<int>(lanes.begin(), lanes.end()), table);
}

}  // namespace penstock
