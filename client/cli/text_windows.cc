#include "client/cli/text_windows.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/exit_code.h"
#include "client/cli/split_mix.h"
#include "engine/base/check.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

HostTensor Integers(std::string name, std::vector<int64_t> shape, const std::vector<int64_t>& values) {
  auto tensor = HostTensor::FromValues<int64_t>(std::move(name), std::move(shape), values);
  PENSTOCK_CHECK(tensor.ok());
  return *std::move(tensor);
}

}  // namespace

absl::Status CheckBatch(int64_t rows, int64_t sequence) {
  const int64_t most = WireLimits().max_tensor_bytes / static_cast<int64_t>(sizeof(int64_t)) / sequence;
  if (rows <= most) return absl::OkStatus();
  return UsageError("--batch", absl::StrCat("must be at most ", most, " rows of ", sequence, " bytes, got ", rows));
}

absl::StatusOr<TextWindows> TextWindows::Create(std::string text, int64_t sequence, uint64_t seed) {
  if (static_cast<int64_t>(text.size()) < sequence + 2) {
    return UsageError("--text", absl::StrCat("needs more than ", sequence + 1, " bytes, has ", text.size()));
  }
  return TextWindows(std::move(text), sequence, seed);
}

TextWindows::Batch TextWindows::BatchOf(int64_t step, int64_t rows) const {
  const uint64_t places = text_.size() - static_cast<uint64_t>(sequence_);
  std::vector<int64_t> inputs;
  std::vector<int64_t> targets;
  inputs.reserve(rows * sequence_);
  targets.reserve(rows * sequence_);
  for (int64_t row = 0; row < rows; ++row) {
    const uint64_t key = SplitMix(SplitMix(SplitMix(seed_) ^ static_cast<uint64_t>(step)) ^ static_cast<uint64_t>(row));
    const char* window = text_.data() + key % places;
    for (int64_t i = 0; i < sequence_; ++i) {
      inputs.push_back(static_cast<uint8_t>(window[i]));
      targets.push_back(static_cast<uint8_t>(window[i + 1]));
    }
  }
  return {Integers("inputs", {rows, sequence_}, inputs), Integers("targets", {rows, sequence_}, targets)};
}

HostTensor BytesAsTensor(std::string name, std::string_view bytes) {
  std::vector<int64_t> values;
  values.reserve(bytes.size());
  for (char byte : bytes) values.push_back(static_cast<uint8_t>(byte));
  return Integers(std::move(name), {1, static_cast<int64_t>(values.size())}, values);
}

}  // namespace penstock
