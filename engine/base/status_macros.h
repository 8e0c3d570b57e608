#pragma once

// Early return of errors from functions that return absl::Status or absl::StatusOr.

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define PENSTOCK_RETURN_IF_ERROR(expression)                  \
  do {                                                        \
    if (absl::Status status_ = (expression); !status_.ok()) { \
      return status_;                                         \
    }                                                         \
  } while (false)

#define PENSTOCK_CONCAT_INNER_(a, b) a##b
#define PENSTOCK_CONCAT_(a, b) PENSTOCK_CONCAT_INNER_(a, b)

// PENSTOCK_ASSIGN_OR_RETURN(auto value, Compute()); leaves the function with Compute's error.
#define PENSTOCK_ASSIGN_OR_RETURN(left, expression) \
  PENSTOCK_ASSIGN_OR_RETURN_(PENSTOCK_CONCAT_(status_or_, __LINE__), left, expression)
#define PENSTOCK_ASSIGN_OR_RETURN_(temporary, left, expression) \
  auto temporary = (expression);                                \
  if (!temporary.ok()) {                                        \
    return std::move(temporary).status();                       \
  }                                                             \
  left = *std::move(temporary)
