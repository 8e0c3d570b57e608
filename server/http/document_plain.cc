// A document as text for a terminal, and as JSON for programs.

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/log.h"
#include "server/http/document.h"

namespace penstock {
namespace {

// Keeps what came from anywhere on its line, and terminals from obeying it.
std::string Printable(std::string_view text) {
  std::string out(text);
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  return out;
}

// Characters, not bytes, of UTF-8.
size_t WidthOf(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

void AddPadded(const std::string& text, size_t width, bool right, std::string* out) {
  const std::string gap(width - std::min(width, WidthOf(text)), ' ');
  absl::StrAppend(out, right ? gap : "", text, right ? "" : gap, "  ");
}

void AddPlainTable(const Section& section, std::string* out) {
  std::vector<std::vector<std::string>> lines;
  if (!section.facts) {
    lines.emplace_back();
    for (const Column& column : section.columns) lines[0].push_back(Printable(column.title));
  }
  for (const auto& row : section.rows) {
    lines.emplace_back();
    for (const Cell& cell : row) lines.back().push_back(Printable(cell.text));
  }
  std::vector<size_t> widths(lines[0].size());
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], WidthOf(line[i]));
  }
  for (const auto& line : lines) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
      const bool number = !section.facts && section.rows[0][i].number.has_value();
      AddPadded(line[i], widths[i], number, &text);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    absl::StrAppend(out, text, "\n");
  }
}

std::string Quoted(std::string_view text) { return absl::StrCat("\"", JsonEscape(text), "\""); }

std::string CellJson(const Cell& cell) {
  if (!cell.number.has_value()) return Quoted(cell.text);
  if (!std::isfinite(*cell.number)) return "null";
  if (*cell.number == std::floor(*cell.number) && std::abs(*cell.number) < 1e15) {
    return absl::StrCat(static_cast<int64_t>(*cell.number));
  }
  return absl::StrFormat("%.15g", *cell.number);
}

std::string SectionJson(const Section& section) {
  if (section.json != nullptr) return section.json();
  if (section.picture.has_value()) return section.picture->json;
  std::string out = section.facts ? "{" : "[";
  for (size_t r = 0; r < section.rows.size(); ++r) {
    if (r > 0) out += ", ";
    if (section.facts) {
      absl::StrAppend(&out, Quoted(section.fact_ids[r]), ": ", CellJson(section.rows[r][1]));
      continue;
    }
    out += "{";
    for (size_t i = 0; i < section.columns.size(); ++i) {
      absl::StrAppend(&out, i > 0 ? ", " : "", Quoted(section.columns[i].id), ": ", CellJson(section.rows[r][i]));
    }
    out += "}";
  }
  return out + (section.facts ? "}" : "]");
}

}  // namespace

std::string ToText(const Document& document) {
  std::string out = absl::StrCat(Printable(document.title), ": ", Printable(document.state), "\n");
  for (const Section& section : document.sections) {
    if (section.programs_only) continue;
    out += "\n";
    if (!section.title.empty()) absl::StrAppend(&out, Printable(section.title), "\n");
    if (section.picture.has_value()) {
      out += section.picture->text;
    } else if (section.rows.empty()) {
      absl::StrAppend(&out, Printable(section.empty), "\n");
    } else {
      AddPlainTable(section, &out);
    }
  }
  return out;
}

std::string ToJson(const Document& document) {
  std::string out = absl::StrCat("{\"title\": ", Quoted(document.title), ", \"state\": ", Quoted(document.state));
  for (const Section& section : document.sections) {
    absl::StrAppend(&out, ",\n ", Quoted(section.id), ": ", SectionJson(section));
  }
  return out + "}\n";
}

}  // namespace penstock
