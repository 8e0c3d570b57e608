#include "server/metrics/metrics_page.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/log.h"
#include "server/metrics/metric_names.h"
#include "server/metrics/metrics_collector.h"
#include "server/metrics/metrics_text.h"

namespace penstock {
namespace {

std::string Quoted(std::string_view text) { return "\"" + JsonEscape(text) + "\""; }

// "[a, b]" of the texts that `text_of` gives for each element.
template <typename Range, typename TextOf>
std::string Array(const Range& range, TextOf text_of) {
  std::string text;
  for (const auto& element : range) absl::StrAppend(&text, text.empty() ? "" : ", ", text_of(element));
  return "[" + text + "]";
}

std::string LabelJson(const MetricLabel& label) {
  return absl::StrCat("{\"name\": ", Quoted(label.name), ", \"values\": ", Array(label.values, Quoted), "}");
}

std::string RowJson(const MetricInfo& info) {
  return absl::StrCat(
      "{\"name\": ", Quoted(info.name), ", \"type\": ", Quoted(NameOf(info.type)), ", \"help\": ", Quoted(info.help),
      ", \"labels\": ", Array(info.labels, LabelJson), ", \"buckets\": ",
      Array(info.buckets, [](int64_t nanos) { return absl::StrCat(static_cast<double>(nanos) / 1e9); }), "}");
}

}  // namespace

std::string MetricsPage(const MetricsRegistry& registry) { return MetricsText(MetricsCollector(&registry).Collect()); }

std::string MetricTableJson() {
  std::string json;
  for (const MetricInfo& info : MetricTable()) absl::StrAppend(&json, json.empty() ? "" : ",\n  ", RowJson(info));
  return "[\n  " + json + "\n]\n";
}

}  // namespace penstock
