#include "server/rpc/convert/recipe_convert.h"

#include <memory>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/journal/journal_errors.h"
#include "server/rpc/convert/checkpoint_convert.h"
#include "server/rpc/convert/payload_digest.h"
#include "server/rpc/convert/proto_convert.h"

namespace penstock {
namespace {

void ClearDevices(google::protobuf::RepeatedPtrField<v1::LayerSpec>* layers) {
  for (v1::LayerSpec& layer : *layers) {
    layer.clear_device();
    ClearDevices(layer.mutable_layers());
  }
}

// What a checkpoint remembers of the pipeline that it was saved from: the model and the rule that
// shaped its optimizer state. Cut, schedule, devices and autocast may change between save and restore.
std::string SpecDigest(const v1::PipelineSpec& spec) {
  v1::PipelineSpec lasting;
  *lasting.mutable_model() = spec.model();
  ClearDevices(lasting.mutable_model()->mutable_layers());
  lasting.mutable_model()->clear_layer_devices();
  lasting.mutable_model()->clear_autocast();
  // The digest of a program's file says all of it; the table adds it once the file was read.
  lasting.mutable_model()->clear_program();
  lasting.mutable_model()->clear_program_cuts();
  lasting.mutable_model()->clear_program_digest();
  lasting.mutable_optimizer()->set_name(spec.optimizer().name());
  return PayloadDigest(lasting);
}

}  // namespace

absl::StatusOr<PipelineRecipe> RecipeOf(const v1::PipelineSpec& spec, const v1::PipelineSpec& described) {
  PipelineRecipe recipe;
  PENSTOCK_ASSIGN_OR_RETURN(recipe.spec, FromProto(spec));
  recipe.spec_digest = SpecDigest(spec);
  recipe.describe = [described](const Plan& plan, const ModelSpec& model, const OptimizerSpec& optimizer) {
    return SpecificationBytes(described, plan, model, optimizer);
  };
  return recipe;
}

absl::StatusOr<PipelineRecipe> RecipeFrom(const std::string& specification) {
  const CheckpointInfo kept{.specification = std::make_shared<const std::string>(specification)};
  const absl::StatusOr<CheckpointSpecifications> specs = SpecificationFrom(kept, v1::PipelineSpec());
  if (!specs.ok()) return JournalCorrupt("the specification of a pipeline can't be read");
  PENSTOCK_ASSIGN_OR_RETURN(PipelineRecipe recipe, RecipeOf(specs->planned, specs->asked));
  PENSTOCK_ASSIGN_OR_RETURN(recipe.asked, FromProto(specs->asked));
  return recipe;
}

}  // namespace penstock
