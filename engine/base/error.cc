#include "engine/base/error.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace penstock {
namespace {

constexpr std::string_view kReasonUrl = "penstock/reason";
constexpr std::string_view kValuePrefix = "penstock/value/";

// Abseil's string_view is a type of its own in the packaged version.
absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

Error::Error(absl::StatusCode code, std::string_view reason, std::string_view message) : status_(code, View(message)) {
  status_.SetPayload(View(kReasonUrl), absl::Cord(View(reason)));
}

Error& Error::With(std::string_view name, std::string_view value) & {
  status_ = WithValue(std::move(status_), name, value);
  return *this;
}

Error&& Error::With(std::string_view name, std::string_view value) && {
  status_ = WithValue(std::move(status_), name, value);
  return std::move(*this);
}

absl::Status InvalidField(std::string_view field, std::string_view problem, std::string_view value) {
  return Error(absl::StatusCode::kInvalidArgument, "FIELD_INVALID",
               absl::StrCat(View(field), ": ", View(problem), ", got ", View(value)))
      .With("field", field)
      .With("value", value);
}

std::string ReasonOf(const absl::Status& status) {
  auto payload = status.GetPayload(View(kReasonUrl));
  return payload.has_value() ? std::string(*payload) : std::string();
}

std::map<std::string, std::string> ValuesOf(const absl::Status& status) {
  std::map<std::string, std::string> values;
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    if (absl::StartsWith(url, View(kValuePrefix))) {
      values.emplace(std::string(url.substr(kValuePrefix.size())), std::string(payload));
    }
  });
  return values;
}

absl::Status WithValue(absl::Status status, std::string_view name, std::string_view value) {
  status.SetPayload(absl::StrCat(View(kValuePrefix), View(name)), absl::Cord(View(value)));
  return status;
}

absl::Status WithPrefix(const absl::Status& status, std::string_view prefix) {
  absl::Status longer(status.code(), absl::StrCat(View(prefix), status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { longer.SetPayload(url, payload); });
  return longer;
}

}  // namespace penstock
