#include "client/cli/output.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace penstock {

std::string Table::Text(bool wide) const {
  std::vector<size_t> shown;
  std::vector<size_t> widths(columns_.size());
  for (size_t c = 0; c < columns_.size(); ++c) {
    if (columns_[c].wide && !wide) continue;
    shown.push_back(c);
    widths[c] = columns_[c].heading.size();
    for (const auto& row : rows_) {
      if (c < row.size()) widths[c] = std::max(widths[c], row[c].size());
    }
  }
  std::string text;
  auto add_line = [&](const auto& cell_of) {
    std::string line;
    for (size_t c : shown) {
      const std::string cell = cell_of(c);
      const std::string blanks(widths[c] - cell.size(), ' ');
      if (!line.empty()) line += "  ";
      line += columns_[c].right ? blanks + cell : cell + blanks;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line([&](size_t c) { return columns_[c].heading; });
  for (const auto& row : rows_) {
    add_line([&](size_t c) { return c < row.size() ? row[c] : std::string(); });
  }
  return text;
}

void Print(const Document& document, OutputFormat format, std::ostream& out) {
  // Names that are not UTF-8 must not end the process.
  const auto dump = [](const Json& json, int indent) {
    return json.dump(indent, ' ', false, Json::error_handler_t::replace);
  };
  switch (format) {
    case OutputFormat::kTable:
      out << document.text;
      break;
    case OutputFormat::kWide:
      out << (document.wide.empty() ? document.text : document.wide);
      break;
    case OutputFormat::kJson:
      out << dump(document.json, 2) << "\n";
      break;
    case OutputFormat::kJsonLines:
      if (document.lines.empty() && !document.json.is_array()) out << dump(document.json, -1) << "\n";
      for (const Json& line : document.lines) out << dump(line, -1) << "\n";
      break;
    case OutputFormat::kName:
      for (const std::string& name : document.names) out << name << "\n";
      break;
  }
  out.flush();
}

std::string BytesText(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%.0f B", bytes) : absl::StrFormat("%.1f %s", bytes, units[unit]);
}

std::string PercentText(double share) { return absl::StrFormat("%.1f %%", share * 100); }

std::string ClockText(double seconds) {
  const int64_t whole = std::llround(std::max(0.0, seconds));
  if (whole >= 3600) return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
  return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
}

std::string NumberText(double value, int digits) {
  if (std::isnan(value)) return "nan";  // printf would show the sign of what is no number
  return absl::StrFormat("%.*f", digits, value);
}

std::string CountText(int64_t value) {
  std::string text = absl::StrCat(value);
  for (int at = static_cast<int>(text.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3) text.insert(at, ",");
  return text;
}

}  // namespace penstock
