#include "engine/serve/batching_check.h"

#include <ATen/ops/allclose.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "engine/plan/planning.h"
#include "engine/plan/profile.h"
#include "engine/serve/batch_rows.h"

namespace penstock {
namespace {

constexpr int64_t kOpenDimension = 8;                      // of what a signature leaves open beyond the rows
constexpr absl::Duration kLook = absl::Milliseconds(100);  // for whether it is wanted
// Between a row by itself and with another: what the order of sums changes is less, what rows do to each other more.
constexpr double kTolerance = 1e-2;

absl::Status Refused(const std::string& what) {
  return Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID", "spec.dynamic_batching: " + what)
      .With("field", "spec.dynamic_batching");
}

// CANCELLED where nobody wants it any more, whatever it came to.
absl::StatusOr<NamedValues> Infer(Pipeline* pipeline, NamedValues inputs, const Planning& planning) {
  absl::StatusOr<ForwardOutcome> outcome;
  absl::Notification done;
  ForwardRequest request;
  request.inputs = std::move(inputs);
  request.micro_batches = 1;
  const auto cancel = std::make_shared<CancelToken>();
  request.cancel = cancel;
  pipeline->InferAsync(std::move(request), [&](absl::StatusOr<ForwardOutcome> its) {
    outcome = std::move(its);
    done.Notify();
  });
  while (!done.WaitForNotificationWithTimeout(kLook)) {
    if (!planning.CheckWanted().ok()) cancel->Cancel();
  }
  PENSTOCK_RETURN_IF_ERROR(planning.CheckWanted());
  if (!outcome.ok()) return outcome.status();
  return std::move(outcome->outputs);
}

bool AreClose(const at::Tensor& alone, const at::Tensor& together) {
  if (alone.sizes() != together.sizes()) return false;
  if (!alone.is_floating_point()) return alone.equal(together);
  const at::Tensor expected = alone.to(at::kDouble);
  const double largest = expected.numel() == 0 ? 0 : expected.abs().max().item<double>();
  return at::allclose(expected, together.to(at::kDouble), kTolerance, kTolerance * largest, /*equal_nan=*/true);
}

// Rows whose integers differ where the model takes both.
NamedValues ExampleRow(const std::vector<TensorSignature>& signature, int64_t integer, int row) {
  NamedValues values;
  const Tensors rows = ExampleInputs(signature, 2, kOpenDimension, integer);
  for (size_t i = 0; i < rows.size(); ++i) values.push_back({signature[i].name, Value(rows[i].narrow(0, row, 1))});
  return values;
}

absl::Status CheckRows(Pipeline* pipeline, const Planning& planning) {
  const std::vector<TensorSignature>& inputs = pipeline->signature().inputs;
  std::vector<NamedValues> rows;
  std::vector<NamedValues> alone;
  for (const int row : {0, 1}) {
    absl::StatusOr<NamedValues> outputs;
    for (const int64_t integer : {row, 1}) {
      rows.resize(row + 1);
      rows[row] = ExampleRow(inputs, integer, row);
      outputs = Infer(pipeline, rows[row], planning);
      if (outputs.ok()) break;
    }
    PENSTOCK_RETURN_IF_ERROR(planning.CheckWanted());
    if (!outputs.ok()) return absl::OkStatus();  // it refuses what is made up
    alone.push_back(*std::move(outputs));
  }
  const absl::StatusOr<NamedValues> both = Infer(pipeline, JoinRows(rows), planning);
  PENSTOCK_RETURN_IF_ERROR(planning.CheckWanted());
  if (absl::IsResourceExhausted(both.status()) || absl::IsUnavailable(both.status())) return both.status();
  if (!both.ok()) {
    return Refused(absl::StrCat("two rows that run by themselves fail together: ", both.status().message()));
  }
  const absl::StatusOr<std::vector<NamedValues>> parted = PartRows(*both, {1, 1});
  if (!parted.ok()) return Refused(std::string(parted.status().message()));
  for (const int row : {0, 1}) {
    for (size_t i = 0; i < alone[row].size(); ++i) {
      const at::Tensor* expected = alone[row][i].value.tensor();
      if (expected != nullptr && AreClose(*expected, *(*parted)[row][i].value.tensor())) continue;
      return Refused(
          absl::StrCat("rows of output ", alone[row][i].name, " must not depend on other rows of the batch, and do"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckBatching(Pipeline* pipeline, const Planning& planning) {
  const std::vector<TensorSignature>& inputs = pipeline->signature().inputs;
  const bool told = std::none_of(inputs.begin(), inputs.end(), [](const TensorSignature& input) { return input.any; });
  if (inputs.empty() || !told) return absl::OkStatus();
  return Guarded("the check of batching", [&] { return CheckRows(pipeline, planning); });
}

}  // namespace penstock
