#pragma once

// Errors with a machine-readable reason. An absl::Status carries, as payloads, one reason (for example HANDLE_EXPIRED)
// and any number of named values (for example field=tensors[0].shape). The edges turn them into google.rpc.ErrorInfo;
// the rooms between only pass the Status on.

#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace penstock {

// Builds a Status with a reason and named values, which clients read beside the message.
//
// Model:     the reason is a word of docs/reference/errors.md; reason and values are payloads of the Status, so every
//            Status that is made from this one keeps them (WithPrefix, WithValue).
// Threads:   a plain value.
// Example:   return Error(absl::StatusCode::kNotFound, "HANDLE_EXPIRED", "handle has expired").With("handle", id);
class Error {
 public:
  Error(absl::StatusCode code, std::string_view reason, std::string_view message);

  // Adds a named value; a later value under the same name replaces the earlier one.
  Error& With(std::string_view name, std::string_view value) &;
  Error&& With(std::string_view name, std::string_view value) &&;

  operator absl::Status() const& { return status_; }         // NOLINT: meant to convert
  operator absl::Status() && { return std::move(status_); }  // NOLINT: meant to convert

 private:
  absl::Status status_;
};

// INVALID_ARGUMENT / FIELD_INVALID that names the field and its value: "FIELD: PROBLEM, got VALUE".
absl::Status InvalidField(std::string_view field, std::string_view problem, std::string_view value);

// The reason of a Status, or "" if it has none.
std::string ReasonOf(const absl::Status& status);

// Every named value of a Status.
std::map<std::string, std::string> ValuesOf(const absl::Status& status);

// The same status (code, message, payloads) with one more named value.
absl::Status WithValue(absl::Status status, std::string_view name, std::string_view value);

// The same payloads and code with `prefix` put before the message.
absl::Status WithPrefix(const absl::Status& status, std::string_view prefix);

}  // namespace penstock
