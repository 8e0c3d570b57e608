#include "absl/strings/str_cat.h"
#include "server/http/document.h"

namespace penstock {
namespace {

std::string CellHtml(const Cell& cell) {
  std::string inner = HtmlEscape(cell.text);
  if (!cell.change.empty()) {
    return absl::StrCat("<button type=\"button\" data-change=\"", HtmlEscape(cell.change), "\">", inner, "</button>");
  }
  if (!cell.mark.empty()) inner = absl::StrCat("<span class=\"", HtmlEscape(cell.mark), "\">", inner, "</span>");
  if (!cell.link.empty()) inner = absl::StrCat("<a href=\"", HtmlEscape(cell.link), "\">", inner, "</a>");
  return inner;
}

void AddFacts(const Section& section, std::string* out) {
  *out += "<dl>\n";
  for (const auto& row : section.rows) {
    absl::StrAppend(out, "<div><dt>", CellHtml(row[0]), "</dt><dd>", CellHtml(row[1]), "</dd></div>\n");
  }
  *out += "</dl>\n";
}

void AddHtmlTable(const Section& section, std::string* out) {
  *out += "<div class=\"wide\"><table>\n<thead><tr>";
  for (size_t i = 0; i < section.columns.size(); ++i) {
    const bool number = !section.rows.empty() && section.rows[0][i].number.has_value();
    absl::StrAppend(out, number ? "<th scope=\"col\" class=\"number\">" : "<th scope=\"col\">",
                    HtmlEscape(section.columns[i].title), "</th>");
  }
  *out += "</tr></thead>\n<tbody>\n";
  for (const auto& row : section.rows) {
    *out += "<tr>";
    for (const Cell& cell : row) {
      absl::StrAppend(out, cell.number.has_value() ? "<td class=\"number\">" : "<td>", CellHtml(cell), "</td>");
    }
    *out += "</tr>\n";
  }
  *out += "</tbody></table></div>\n";
}

void AddSection(const Section& section, std::string* out) {
  if (section.programs_only) return;
  absl::StrAppend(out, "<section id=\"", HtmlEscape(section.id), "\">\n");
  if (!section.title.empty()) absl::StrAppend(out, "<h2>", HtmlEscape(section.title), "</h2>\n");
  if (!section.note.empty()) absl::StrAppend(out, "<p class=\"note\">", HtmlEscape(section.note), "</p>\n");
  if (section.picture.has_value()) {
    *out += section.picture->html;
  } else if (section.rows.empty()) {
    absl::StrAppend(out, "<p class=\"empty\">", HtmlEscape(section.empty), "</p>\n");
  } else if (section.facts) {
    AddFacts(section, out);
  } else {
    AddHtmlTable(section, out);
  }
  *out += "</section>\n";
}

}  // namespace

std::string HtmlEscape(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        // Control characters are not allowed in HTML, not even escaped.
        out += static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return out;
}

std::string ToHtml(const Document& document, const std::vector<NavigationLink>& navigation, std::string_view path) {
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n";
  absl::StrAppend(&out, "<title>", HtmlEscape(document.title), " - Penstock</title>\n",
                  "<link rel=\"stylesheet\" href=\"/style.css\">\n<link rel=\"icon\" href=\"/icon.svg\">\n",
                  document.refresh ? "<script src=\"/refresh.js\" defer></script>\n" : "", "</head>\n<body>\n",
                  "<a class=\"skip\" href=\"#content\">To the content</a>\n<header>\n<a class=\"name\" "
                  "href=\"/\">Penstock</a>\n<nav aria-label=\"Pages\">\n");
  for (const NavigationLink& link : navigation) {
    absl::StrAppend(&out, "<a href=\"", HtmlEscape(link.path), "\"", link.path == path ? " aria-current=\"page\"" : "",
                    ">", HtmlEscape(link.title), "</a>\n");
  }
  absl::StrAppend(&out, "</nav>\n</header>\n<main id=\"content\" tabindex=\"-1\">\n<h1>", HtmlEscape(document.title),
                  "</h1>\n<p class=\"line\">", HtmlEscape(document.state), "</p>\n");
  for (const Section& section : document.sections) AddSection(section, &out);
  out += "</main>\n<footer>The same as text: <code>curl</code>; for programs: <code>?format=json</code></footer>\n";
  return out + "</body>\n</html>\n";
}

}  // namespace penstock
