#include "client/cli/text_batches.h"

#include <memory>
#include <utility>

#include "client/cli/byte_model.h"
#include "client/cli/text_windows.h"
#include "engine/base/status_macros.h"

namespace penstock {

absl::StatusOr<BatchSource> TextBatches(const v1::Pipeline& pipeline, std::string text, int64_t rows, int64_t sequence,
                                        uint64_t seed) {
  PENSTOCK_ASSIGN_OR_RETURN(const ByteModel model, AsByteModel(pipeline, sequence));
  PENSTOCK_RETURN_IF_ERROR(CheckBatch(rows, model.sequence));
  PENSTOCK_ASSIGN_OR_RETURN(TextWindows made, TextWindows::Create(std::move(text), model.sequence, seed));
  const auto windows = std::make_shared<const TextWindows>(std::move(made));
  return [windows, model, rows](int64_t number) -> absl::StatusOr<Batch> {
    TextWindows::Batch drawn = windows->BatchOf(number, rows);
    drawn.inputs.set_name(model.input);
    drawn.targets.set_name(model.target);
    Batch batch;
    batch.inputs.push_back(std::move(drawn.inputs));
    batch.target = std::move(drawn.targets);
    batch.loss = model.loss;
    return batch;
  };
}

}  // namespace penstock
