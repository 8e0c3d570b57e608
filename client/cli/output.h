#pragma once

// What commands print to stdout.

#include <ostream>
#include <string>
#include <vector>

#include "client/cli/message_json.h"

namespace penstock {

enum class OutputFormat { kTable, kWide, kJson, kJsonLines, kName };

// Rows under headings, aligned.
//
// Model:     Columns that are only for `wide` are left out otherwise. Numbers stand to the right.
// Fails:     never; a row with too few cells ends in blanks.
class Table {
 public:
  struct Column {
    std::string heading;
    bool right = false;
    bool wide = false;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string Text(bool wide) const;
  bool empty() const { return rows_.empty(); }

 private:
  const std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// One result in every output format (text, table, JSON, names).
struct Document {
  Json json;                       // one document
  std::vector<Json> lines;         // of jsonl; empty: `json` itself
  std::vector<std::string> names;  // of name
  std::string text;                // of table
  std::string wide;                // empty: as text
};

void Print(const Document& document, OutputFormat format, std::ostream& out);

// "1.5 MiB", "17.3 %", "412", "1:02:03".
std::string BytesText(double bytes);
std::string PercentText(double share);
std::string ClockText(double seconds);
std::string NumberText(double value, int digits);
std::string CountText(int64_t value);  // 6,412,544

}  // namespace penstock
