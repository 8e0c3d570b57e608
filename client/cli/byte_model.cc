#include "client/cli/byte_model.h"

#include "absl/strings/str_cat.h"
#include "client/cli/exit_code.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

// 0: the pipeline does not say.
int64_t LongestSequence(const v1::Pipeline& pipeline) {
  const int64_t fixed = pipeline.signature().inputs(0).shape(1);
  if (fixed > 0) return fixed;
  const auto& options = pipeline.spec().model().options();
  const auto option = options.find("sequence");
  return option == options.end() ? 0 : option->second.int_value();
}

}  // namespace

absl::StatusOr<ByteModel> AsByteModel(const v1::Pipeline& pipeline, int64_t sequence) {
  const v1::ModelSignature& signature = pipeline.signature();
  if (signature.inputs_size() != 1 || signature.inputs(0).type() != v1::DATA_TYPE_INT64 ||
      signature.inputs(0).shape_size() != 2 || signature.outputs_size() < 1) {
    return Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
                 "the command feeds bytes: the pipeline must take one INT64 input [rows, sequence]")
        .With("pipeline", pipeline.name());
  }
  ByteModel model;
  model.pipeline = pipeline.name();
  model.input = signature.inputs(0).name();
  model.output = signature.outputs(0).name();
  model.target = signature.targets_size() > 0 ? signature.targets(0).name() : "target";
  if (signature.targets_size() == 0) model.loss = "cross_entropy";

  const int64_t longest = LongestSequence(pipeline);
  if (sequence > 0 && longest > 0 && sequence > longest) {
    return UsageError("--sequence", absl::StrCat("must be at most ", longest, ", got ", sequence));
  }
  model.sequence = sequence > 0 ? sequence : longest;
  if (model.sequence <= 0) return UsageError("--sequence", "needed: the pipeline does not say how long a row may be");
  return model;
}

}  // namespace penstock
