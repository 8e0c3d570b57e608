#include "server/option_units.h"

#include <limits>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "engine/base/error.h"

namespace penstock {

absl::StatusOr<int64_t> ParseBytes(std::string_view text, std::string_view field) {
  struct Suffix {
    const char* name;
    int shift;
  };
  absl::string_view digits(text.data(), text.size());
  int shift = 0;
  for (const Suffix& suffix : {Suffix{"KiB", 10}, Suffix{"MiB", 20}, Suffix{"GiB", 30}, Suffix{"TiB", 40}}) {
    if (absl::EndsWith(digits, suffix.name)) {
      digits.remove_suffix(3);
      shift = suffix.shift;
      break;
    }
  }
  int64_t number;
  if (!absl::SimpleAtoi(digits, &number) || number < 0 || number > (std::numeric_limits<int64_t>::max() >> shift)) {
    return InvalidField(field, "must be bytes, as in 67108864 or 64MiB", text);
  }
  return number << shift;
}

absl::StatusOr<absl::Duration> ParseTime(std::string_view text, std::string_view field) {
  absl::Duration time;
  double seconds;
  std::string spelled(text);
  if (absl::EndsWith(spelled, "min")) spelled.resize(spelled.size() - 2);  // absl says "m"
  if (absl::SimpleAtod(spelled, &seconds)) {
    time = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(spelled, &time)) {
    return InvalidField(field, "must be a time, as in 5s, 500ms or 1h", text);
  }
  if (time < absl::ZeroDuration() || time > absl::Hours(24 * 365)) {
    return InvalidField(field, "must be at least 0 and at most a year", text);
  }
  return time;
}

}  // namespace penstock
