#include "server/http/document.h"

#include <cmath>
#include <cstdio>
#include <limits>

#include "absl/strings/str_cat.h"

namespace penstock {
namespace {

std::string Digits(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

}  // namespace

Cell Count(double number) { return {number, Digits(number, number == std::floor(number) ? 0 : 4)}; }

Cell Bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = bytes;
  size_t unit = 0;
  while (std::abs(value) >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return {bytes, absl::StrCat(Digits(value, unit == 0 || value >= 100 ? 0 : 1), " ", kUnits[unit])};
}

Cell Seconds(double seconds) {
  if (seconds == 0) return {0, "0 s"};
  if (seconds < 1e-3) return {seconds, absl::StrCat(Digits(seconds * 1e6, 0), " us")};
  if (seconds < 1) return {seconds, absl::StrCat(Digits(seconds * 1e3, 1), " ms")};
  if (seconds < 120) return {seconds, absl::StrCat(Digits(seconds, 2), " s")};
  const auto minutes = static_cast<int64_t>(seconds / 60);
  if (minutes < 60) return {seconds, absl::StrCat(minutes, " min ", static_cast<int64_t>(seconds) % 60, " s")};
  if (minutes < 48 * 60) return {seconds, absl::StrCat(minutes / 60, " h ", minutes % 60, " min")};
  return {seconds, absl::StrCat(minutes / (24 * 60), " d ", minutes / 60 % 24, " h")};
}

Cell Share(double ratio) { return {ratio, absl::StrCat(Digits(ratio * 100, 1), " %")}; }

Cell Unknown() { return {std::numeric_limits<double>::quiet_NaN(), "-"}; }

Cell StateCell(std::string_view state) {
  Cell cell{std::string(state)};
  cell.mark = absl::StrCat("state s-", std::string(state));
  return cell;
}

Cell Linked(std::string text, std::string link) {
  Cell cell(std::move(text));
  cell.link = std::move(link);
  return cell;
}

void Section::Fact(std::string id, std::string title, Cell value) {
  facts = true;
  fact_ids.push_back(std::move(id));
  rows.push_back({std::move(title), std::move(value)});
}

}  // namespace penstock
