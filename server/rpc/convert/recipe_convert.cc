#include "server/rpc/convert/recipe_convert.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/journal/journal_errors.h"
#include "server/rpc/convert/checkpoint_convert.h"
#include "server/rpc/convert/payload_digest.h"
#include "server/rpc/convert/proto_convert.h"
#include "server/rpc/convert/spec_fields.h"

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

namespace {

// Whether a message has a value somewhere: one that is there and has none says nothing.
bool HasValues(const google::protobuf::Message& message) {
  std::vector<const google::protobuf::FieldDescriptor*> set;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  reflection.ListFields(message, &set);
  return std::any_of(set.begin(), set.end(), [&](const google::protobuf::FieldDescriptor* field) {
    const bool nested =
        !field->is_repeated() && field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE;
    return !nested || HasValues(reflection.GetMessage(message, field));
  });
}

// The fields of a specification that say something; batching does by being there.
std::vector<std::string> GivenFields(const v1::PipelineSpec& spec) {
  std::vector<const google::protobuf::FieldDescriptor*> set;
  const google::protobuf::Reflection& reflection = *spec.GetReflection();
  reflection.ListFields(spec, &set);
  std::vector<std::string> given;
  for (const google::protobuf::FieldDescriptor* field : set) {
    const bool nested =
        !field->is_repeated() && field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE;
    const bool batching = field->number() == v1::PipelineSpec::kDynamicBatchingFieldNumber;
    if (!nested || batching || HasValues(reflection.GetMessage(spec, field))) given.push_back(field->name());
  }
  return given;
}

absl::Status CheckChangeable(const v1::UpdatePipelineRequest& request) {
  static const auto* const kChangeable =
      new std::set<std::string>{"cut", "devices", "schedule", "bubble_filling", "planning_seconds", "dynamic_batching"};
  if (GivenFields(request.spec()).empty() && !request.no_dynamic_batching()) {
    return SpecInvalid("spec", "must have what shall be different", "nothing");
  }
  v1::PipelineSpec rest = request.spec();
  rest.mutable_model()->clear_layer_devices();
  for (const std::string& field : GivenFields(rest)) {
    if (!kChangeable->contains(field)) {
      return SpecInvalid("spec." + field, "no update changes it, it must be unset", "a value");
    }
  }
  if (request.no_dynamic_batching() && request.spec().has_dynamic_batching()) {
    return SpecInvalid("spec.dynamic_batching", "must be unset beside no_dynamic_batching", "a value");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PipelineRecipe> RecipeOver(const PipelineEntry& entry, const v1::UpdatePipelineRequest& request) {
  PENSTOCK_RETURN_IF_ERROR(CheckChangeable(request));
  const Pipeline& now = entry.pipeline->pipeline();
  v1::PipelineSpec asked = ToProto(entry.spec);
  if (request.no_dynamic_batching()) asked.clear_dynamic_batching();
  const CheckpointInfo standing{.specification = std::make_shared<const std::string>(
                                    SpecificationBytes(asked, now.plan(), entry.spec.model, now.optimizer()))};
  PENSTOCK_ASSIGN_OR_RETURN(CheckpointSpecifications specs, SpecificationFrom(standing, request.spec()));
  if (!request.spec().schedule().has_micro_batches() && specs.asked.schedule().actions().empty()) {
    specs.asked.mutable_schedule()->set_micro_batches(now.plan().schedule.micro_batches);  // for the next update, too
  }
  PENSTOCK_ASSIGN_OR_RETURN(PipelineRecipe recipe, RecipeOf(specs.planned, specs.asked));
  PENSTOCK_ASSIGN_OR_RETURN(recipe.asked, FromProto(specs.asked));
  return recipe;
}

absl::StatusOr<PipelineRecipe> RecipeNow(const PipelineEntry& entry) {
  const Pipeline& now = entry.pipeline->pipeline();
  return RecipeFrom(SpecificationBytes(ToProto(entry.spec), now.plan(), entry.spec.model, now.optimizer()));
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
