#pragma once

// A status page before it is drawn: facts and tables, in one form that becomes HTML, text or JSON.

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {

// A value of a table. Texts are not escaped here; the code that draws them escapes them.
struct Cell {
  Cell(std::string text) : text(std::move(text)) {}  // NOLINT: {"a", 1.0} is a row
  Cell(const char* text) : text(text) {}             // NOLINT
  Cell(double number, std::string text) : text(std::move(text)), number(number) {}

  std::string text;              // for people
  std::optional<double> number;  // for programs, in base units
  std::string link = {};         // a path of ours
  std::string mark = {};         // a class of style.css, of our own making: "s-forward"
  std::string change = {};       // a path of ours: a button that POSTs there, for browsers with scripts
};

Cell Count(double number);     // "12"
Cell Bytes(double bytes);      // "1.5 MiB"
Cell Seconds(double seconds);  // "1.50 s", "2.0 ms", "3 h 12 min"
Cell Share(double ratio);      // "12.5 %"
Cell Unknown();                // "-"; for programs null: there is no such number yet
// The state's name in its colour.
Cell StateCell(std::string_view state);
Cell Linked(std::string text, std::string link);

struct Column {
  std::string id;     // key in JSON
  std::string title;  // heading
};

// A part of a page: a table, or a picture that is drawn by itself in each form.
struct Section {
  std::string id;         // key in JSON
  std::string title;      // may be empty
  std::string note = {};  // a sentence below the title
  std::vector<Column> columns = {};
  std::vector<std::vector<Cell>> rows = {};
  std::string empty = "none";  // what stands there without rows
  bool facts = false;          // one column of names, one of values: an object in JSON
  struct Picture {
    std::string html;  // escaped by its maker
    std::string text;
    std::string json;
  };
  std::optional<Picture> picture = {};
  std::function<std::string()> json = nullptr;  // what programs get instead: what a command prints with -o json
  bool programs_only = false;                   // in JSON alone

  // Adds a fact: a name for programs, one for people.
  void Fact(std::string id, std::string title, Cell value);
  std::vector<std::string> fact_ids = {};  // of the rows
};

struct Document {
  std::string title;
  std::string state;  // of the daemon, in one line
  std::vector<Section> sections;
  bool refresh = false;  // the page follows what happens
};

// A link of the navigation.
struct NavigationLink {
  std::string path;
  std::string title;
};

std::string ToHtml(const Document& document, const std::vector<NavigationLink>& navigation, std::string_view path);
std::string ToText(const Document& document);
std::string ToJson(const Document& document);

// Text as content or attribute value of HTML and SVG.
std::string HtmlEscape(std::string_view text);

}  // namespace penstock
