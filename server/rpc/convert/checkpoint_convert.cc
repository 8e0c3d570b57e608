#include "server/rpc/convert/checkpoint_convert.h"

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/base/error.h"
#include "server/rpc/convert/message_entries.h"
#include "server/rpc/convert/message_limits.h"
#include "server/rpc/convert/proto_convert.h"

namespace penstock {
namespace {

constexpr size_t kMaxSpecificationBytes = 4 * kSpecificationMessageBytes;
constexpr size_t kNamedDifferences = 3;
constexpr size_t kDifferenceLength = 120;

// Nothing of bytes that are too many, or that are no specification.
std::optional<v1::CheckpointSpecification> ReadSpecification(const std::string& bytes) {
  v1::CheckpointSpecification specification;
  if (bytes.size() > kMaxSpecificationBytes) return std::nullopt;
  if (!CheckMessageEntries({std::string_view(bytes)}, specification.GetDescriptor()).ok()) return std::nullopt;
  if (!specification.ParseFromString(bytes)) return std::nullopt;
  return specification;
}

absl::Status Corrupt(const CheckpointInfo& info, std::string_view problem) {
  return WithValue(CheckpointCorrupt(info.id, problem), "pipeline", info.pipeline);
}

bool Says(const google::protobuf::Message& message) { return message.ByteSizeLong() > 0; }

bool NamesModel(const v1::ModelSpec& model) {
  return !model.name().empty() || !model.program().empty() || model.layers_size() > 0;
}

bool AnyLayerHasDevice(const google::protobuf::RepeatedPtrField<v1::LayerSpec>& layers) {
  return std::any_of(layers.begin(), layers.end(), [](const v1::LayerSpec& layer) {
    return !layer.device().empty() || AnyLayerHasDevice(layer.layers());
  });
}

// Clears the lists of `base` that `given` has, so that merging replaces them; maps are merged by key.
void ClearGivenLists(const google::protobuf::Message& given, google::protobuf::Message* base) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  const google::protobuf::Reflection* reflection = given.GetReflection();
  reflection->ListFields(given, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    if (field->is_repeated()) {
      if (!field->is_map()) base->GetReflection()->ClearField(base, field);
    } else if (field->message_type() != nullptr && base->GetReflection()->HasField(*base, field)) {
      ClearGivenLists(reflection->GetMessage(given, field), base->GetReflection()->MutableMessage(base, field));
    }
  }
}

void PutOver(const v1::PipelineSpec& given, v1::PipelineSpec* base) {
  const auto optimizer = [](const v1::PipelineSpec& spec) {
    return spec.optimizer().name().empty() ? OptimizerSpec().name : spec.optimizer().name();
  };
  const v1::ModelSpec& model = given.model();
  const bool same_model =
      model.layers_size() == 0 && model.name() == base->model().name() && model.program() == base->model().program();
  if (NamesModel(model) && !same_model) base->clear_model();
  // Layers with devices are a cut too.
  const bool places_layers = !model.layer_devices().empty();
  if (Says(given.cut()) || places_layers) base->clear_cut();
  if (Says(given.cut()) || places_layers || given.devices_size() > 0) base->mutable_model()->clear_layer_devices();
  if (Says(given.schedule())) base->clear_schedule();
  if (!given.optimizer().name().empty() && optimizer(given) != optimizer(*base)) base->clear_optimizer();
  const std::string& rate = given.optimizer().learning_rate_schedule().name();
  if (!rate.empty() && rate != base->optimizer().learning_rate_schedule().name())
    base->mutable_optimizer()->clear_learning_rate_schedule();
  if (!given.loss().name().empty() && given.loss().name() != base->loss().name()) base->clear_loss();
  ClearGivenLists(given, base);
  base->MergeFrom(given);
}

// A line for each field; empty if there is none.
std::string Differences(const v1::PipelineSpec& one, const v1::PipelineSpec& other) {
  std::string lines;
  google::protobuf::io::StringOutputStream stream(&lines);
  {
    google::protobuf::util::MessageDifferencer::StreamReporter reporter(&stream);  // writes all at its end
    google::protobuf::util::MessageDifferencer differencer;
    differencer.ReportDifferencesTo(&reporter);
    differencer.Compare(one, other);
  }
  return lines;
}

}  // namespace

v1::Checkpoint CheckpointMessages::Make(const CheckpointInfo& info, bool pipeline_exists) {
  if (info.specification != read_) {
    read_ = info.specification;
    facts_.Clear();
    std::optional<v1::CheckpointSpecification> specification;
    if (read_ != nullptr) specification = ReadSpecification(*read_);
    if (specification.has_value() && NamesModel(specification->spec().model())) {
      const v1::ModelSpec& model = specification->spec().model();
      facts_.set_model(model.program().empty() ? model.name() : model.program());
      facts_.set_program_digest(model.program_digest());
      facts_.set_has_specification(true);
    }
  }
  v1::Checkpoint message = facts_;
  message.set_name(absl::StrCat("pipelines/", info.pipeline, "/checkpoints/", info.id));
  message.set_step(info.step);
  message.set_byte_size(info.bytes);
  message.set_digest(info.digest);
  message.set_state(info.damage.empty() ? v1::CHECKPOINT_STATE_COMPLETE : v1::CHECKPOINT_STATE_DAMAGED);
  *message.mutable_create_time() = ToTimestamp(info.create_time);
  message.set_pipeline_exists(pipeline_exists);
  message.set_rotating(info.rotating);
  message.set_automatic(info.place.automatic);
  return message;
}

std::string SpecificationBytes(const v1::PipelineSpec& asked, const Plan& plan, const ModelSpec& model,
                               const OptimizerSpec& optimizer) {
  v1::CheckpointSpecification specification;
  *specification.mutable_spec() = asked;
  specification.mutable_spec()->mutable_model()->set_program_digest(model.program_digest);
  *specification.mutable_spec()->mutable_optimizer() = ToProto(optimizer);
  *specification.mutable_schedule() = ToProto(plan.schedule);
  for (const StagePlan& stage : plan.stages) specification.add_balance(static_cast<int>(stage.layers.size()));
  return specification.SerializeAsString();
}

absl::StatusOr<CheckpointSpecifications> SpecificationFrom(const CheckpointInfo& info, const v1::PipelineSpec& given) {
  if (!info.damage.empty()) return Corrupt(info, info.damage);
  if (info.specification == nullptr) {
    if (NamesModel(given.model())) return CheckpointSpecifications{given, given};
    return Error(absl::StatusCode::kFailedPrecondition, "CHECKPOINT_SPEC_MISSING",
                 absl::StrCat("checkpoint ", info.id,
                              " was saved before checkpoints kept specifications: give spec, with the model and the "
                              "optimizer of its pipeline"))
        .With("field", "spec")
        .With("value", "")
        .With("checkpoint", info.id)
        .With("pipeline", info.pipeline);
  }
  const std::optional<v1::CheckpointSpecification> kept = ReadSpecification(*info.specification);
  if (!kept.has_value() || !NamesModel(kept->spec().model())) return Corrupt(info, "its specification can't be read");
  CheckpointSpecifications both;
  both.asked = kept->spec();
  PutOver(given, &both.asked);
  both.planned = both.asked;
  v1::PipelineSpec& spec = both.planned;
  const bool planned =
      !Says(given.model()) && !Says(given.cut()) && !Says(given.schedule()) && given.devices_size() == 0;
  if (planned) {
    *spec.mutable_schedule() = kept->schedule();
    const bool cut_by_hand = spec.cut().balance_size() > 0 || spec.cut().starts_size() > 0;
    const bool by_devices = AnyLayerHasDevice(spec.model().layers()) || !spec.model().layer_devices().empty();
    if (!cut_by_hand && !by_devices) {
      spec.clear_cut();
      *spec.mutable_cut()->mutable_balance() = kept->balance();
      // A cut by cost uses fewer devices than lanes in turn; a balance wants one for each.
      const int lanes = kept->balance_size() / std::max(1, kept->schedule().chunks());
      const int named = spec.devices_size();
      for (int lane = named; named > 0 && lane < lanes; ++lane) *spec.add_devices() = spec.devices(lane % named);
    }
  } else if (!spec.schedule().has_micro_batches() && spec.schedule().actions().empty()) {
    spec.mutable_schedule()->set_micro_batches(kept->schedule().micro_batches());
  }
  return both;
}

absl::Status CheckSameSpecification(const PipelineEntry& entry, const std::vector<PipelineSpec>& asked) {
  std::string differences;  // of the first
  for (const PipelineSpec& spec : asked) {
    v1::PipelineSpec standing = ToProto(entry.spec);
    if (spec.model.program_digest.empty()) standing.mutable_model()->clear_program_digest();
    const std::string found = Differences(standing, ToProto(spec));
    if (found.empty()) return absl::OkStatus();
    if (differences.empty()) differences = found;
  }
  // Lines "modified: PATH: OLD -> NEW", "added: PATH: NEW", "deleted: PATH: OLD".
  std::vector<std::string> lines = absl::StrSplit(differences, '\n', absl::SkipEmpty());
  if (lines.size() > kNamedDifferences) lines.resize(kNamedDifferences);
  for (std::string& line : lines) {
    if (line.size() > kDifferenceLength) line = line.substr(0, kDifferenceLength) + "...";
  }
  const std::vector<std::string> first = absl::StrSplit(lines.empty() ? "" : lines[0], absl::MaxSplits(": ", 2));
  return Error(
             absl::StatusCode::kAlreadyExists, "PIPELINE_EXISTS",
             absl::StrCat("pipeline ", entry.name, " exists with another specification: ", absl::StrJoin(lines, "; ")))
      .With("field", absl::StrCat("spec.", first.size() > 1 ? first[1] : ""))
      .With("value", first.size() > 2 ? first[2] : "");
}

}  // namespace penstock
