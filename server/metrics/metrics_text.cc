#include "server/metrics/metrics_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "engine/base/check.h"

namespace penstock {
namespace {

constexpr size_t kBytesPerSample = 160;
constexpr double kExactIntegers = 1e15;  // below, a double without a fraction is its digits

std::string_view TypeName(prometheus::MetricType type) {
  switch (type) {
    case prometheus::MetricType::Counter:
      return "counter";
    case prometheus::MetricType::Gauge:
      return "gauge";
    case prometheus::MetricType::Histogram:
      return "histogram";
    default:
      PENSTOCK_CHECK(false);
  }
}

template <typename Number>
void AppendDigits(Number number, std::string* text) {
  std::array<char, 32> digits;
  const std::to_chars_result end = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  text->append(digits.data(), end.ptr);
}

void AppendNumber(double number, std::string* text) {
  if (std::isnan(number)) {
    *text += "NaN";
  } else if (std::isinf(number)) {
    *text += number > 0 ? "+Inf" : "-Inf";
  } else if (std::abs(number) < kExactIntegers && number == std::trunc(number)) {
    AppendDigits(static_cast<int64_t>(number), text);
  } else {
    std::array<char, 32> digits;
    const std::to_chars_result end =
        std::to_chars(digits.data(), digits.data() + digits.size(), number, std::chars_format::general);
    text->append(digits.data(), end.ptr);
  }
}

// A help text or a label value; only in the latter does a quotation mark need a stroke before it.
void AppendEscaped(std::string_view part, bool quoted, std::string* text) {
  for (size_t next; (next = part.find_first_of("\\\n\"")) != std::string_view::npos; part.remove_prefix(next + 1)) {
    text->append(part.substr(0, next));
    if (part[next] == '\n') {
      *text += "\\n";
    } else {
      if (quoted || part[next] == '\\') *text += '\\';
      *text += part[next];
    }
  }
  text->append(part);
}

// `a="x",b="y"`
std::string LabelsOf(const prometheus::ClientMetric& sample) {
  std::string labels;
  for (const prometheus::ClientMetric::Label& label : sample.label) {
    if (!labels.empty()) labels += ',';
    labels += label.name;
    labels += "=\"";
    AppendEscaped(label.value, /*quoted=*/true, &labels);
    labels += '"';
  }
  return labels;
}

// `name_suffix{labels} `
void AppendKey(std::string_view name, std::string_view suffix, std::string_view labels, std::string* text) {
  text->append(name).append(suffix);
  if (!labels.empty()) text->append("{").append(labels).append("}");
  *text += ' ';
}

void AppendHistogram(std::string_view name, const prometheus::ClientMetric::Histogram& histogram,
                     const std::string& labels, std::string* text) {
  AppendKey(name, "_count", labels, text);
  AppendDigits(histogram.sample_count, text);
  *text += '\n';
  AppendKey(name, "_sum", labels, text);
  AppendNumber(histogram.sample_sum, text);
  *text += '\n';
  const auto bucket = [&](double bound, uint64_t count) {
    text->append(name).append("_bucket{").append(labels).append(labels.empty() ? "le=\"" : ",le=\"");
    AppendNumber(bound, text);
    *text += "\"} ";
    AppendDigits(count, text);
    *text += '\n';
  };
  for (const prometheus::ClientMetric::Bucket& one : histogram.bucket) bucket(one.upper_bound, one.cumulative_count);
  bucket(HUGE_VAL, histogram.sample_count);
}

}  // namespace

std::string MetricsText(const std::vector<prometheus::MetricFamily>& families) {
  size_t samples = 0;
  for (const prometheus::MetricFamily& family : families) {
    for (const prometheus::ClientMetric& sample : family.metric) {
      const size_t buckets = sample.histogram.bucket.size();
      samples += buckets == 0 ? 1 : buckets + 3;
    }
  }
  std::string text;
  text.reserve(samples * kBytesPerSample);
  for (const prometheus::MetricFamily& family : families) {
    text.append("# HELP ").append(family.name).append(" ");
    AppendEscaped(family.help, /*quoted=*/false, &text);
    text.append("\n# TYPE ").append(family.name).append(" ").append(TypeName(family.type)).append("\n");
    for (const prometheus::ClientMetric& sample : family.metric) {
      const std::string labels = LabelsOf(sample);
      if (family.type == prometheus::MetricType::Histogram) {
        AppendHistogram(family.name, sample.histogram, labels, &text);
        continue;
      }
      AppendKey(family.name, "", labels, &text);
      const bool counter = family.type == prometheus::MetricType::Counter;
      AppendNumber(counter ? sample.counter.value : sample.gauge.value, &text);
      text += '\n';
    }
  }
  return text;
}

}  // namespace penstock
