#include "client/cli/pipeline_text.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "client/cli/output.h"
#include "client/lib/call_error.h"
#include "client/lib/durations.h"
#include "engine/base/error.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

std::string CheckpointWord(v1::CheckpointMode mode) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::CheckpointMode_Name(mode), "CHECKPOINT_MODE_"));
}

std::string Milliseconds(double seconds, int digits = 2) { return absl::StrFormat("%.*f ms", digits, seconds * 1e3); }

// "lag 5" of a kind with a parameter of its own.
std::string KindText(const v1::ScheduleSpec& schedule) {
  std::string text = schedule.kind();
  if (schedule.has_lag()) absl::StrAppend(&text, " ", schedule.lag());
  if (schedule.has_live_limit()) absl::StrAppend(&text, " ", schedule.live_limit());
  return text;
}

// The model's name or program, or how many layers it lists.
std::string ModelText(const v1::ModelSpec& model) {
  if (!model.program().empty()) return model.program();
  return model.name().empty() ? absl::StrCat(model.layers_size(), " layers of a list") : model.name();
}

// "embedding, gpt_block x 4" rather than a long row of equal kinds.
std::string LayersText(const google::protobuf::RepeatedPtrField<std::string>& layers, bool all) {
  if (all || layers.size() <= 4) return absl::StrJoin(layers, ", ");
  return absl::StrCat(layers[0], ", ", layers[1], ", ... ", layers[layers.size() - 1], " (", layers.size(), ")");
}

std::string SignatureText(const google::protobuf::RepeatedPtrField<v1::TensorSignature>& tensors) {
  std::vector<std::string> parts;
  for (const v1::TensorSignature& tensor : tensors) {
    const std::string_view type = DataTypeName(static_cast<DataType>(tensor.type()));
    if (tensor.any()) {
      parts.push_back(tensor.name().empty() ? "any values" : tensor.name() + " (any value)");
      continue;
    }
    parts.push_back(absl::StrCat(tensor.name(), " ", std::string(type), "[", absl::StrJoin(tensor.shape(), ", "), "]"));
  }
  return parts.empty() ? "-" : absl::StrJoin(parts, ", ");
}

}  // namespace

std::string ShortName(const std::string& name) { return name.substr(name.rfind('/') + 1); }

std::string StateWord(v1::PipelineState state) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::PipelineState_Name(state), "PIPELINE_STATE_"));
}

std::string PlanText(const v1::Plan& plan, bool wide) {
  Table table({{"STAGE", true},
               {"DEVICE"},
               {"LAYERS"},
               {"FORWARD", true},
               {"BACKWARD", true},
               {"RECOMPUTE", true, true},
               {"PARAMETERS", true},
               {"OPTIMIZER", true, true},
               {"PEAK ACTIVATIONS", true}});
  for (const v1::StagePlan& stage : plan.stages()) {
    table.Add({absl::StrCat(stage.stage()), stage.device(), LayersText(stage.layers(), wide),
               Milliseconds(stage.forward_seconds()), Milliseconds(stage.backward_seconds()),
               Milliseconds(stage.recompute_seconds()), BytesText(stage.parameter_bytes()),
               BytesText(stage.optimizer_bytes()), BytesText(stage.peak_activation_bytes())});
  }
  return table.Text(wide) + "\n" +
         absl::StrCat(
             "Schedule  ", plan.schedule(), plan.chunks() > 1 ? absl::StrCat(", ", plan.chunks(), " chunks") : "", ", ",
             plan.micro_batches(), " micro-batches, checkpoint ", CheckpointWord(plan.checkpoint()), "\n", "Step      ",
             Milliseconds(plan.makespan_seconds()), " predicted\n", "Bubble    ", PercentText(plan.predicted_bubble()),
             " predicted, ", PercentText(plan.ideal_bubble()), " ideal\n");
}

std::string PlanDetailText(const v1::Plan& plan) {
  std::string text;
  if (plan.layers_size() > 0) {
    Table table({{"LAYER"},
                 {"STAGE", true},
                 {"DEVICE"},
                 {"FORWARD", true},
                 {"BACKWARD", true},
                 {"STASH", true},
                 {"OUTPUT", true},
                 {"PARAMETERS", true}});
    for (const v1::LayerPlan& layer : plan.layers()) {
      const bool placed = layer.stage() >= 0 && layer.stage() < plan.stages_size();
      table.Add({layer.name(), absl::StrCat(layer.stage()), placed ? plan.stages(layer.stage()).device() : "-",
                 Milliseconds(layer.forward_seconds(), 3), Milliseconds(layer.backward_seconds(), 3),
                 BytesText(layer.stash_bytes()), BytesText(layer.output_bytes()), BytesText(layer.parameter_bytes())});
    }
    absl::StrAppend(&text, "\n", table.Text(true));
  }
  for (const v1::SkipPlan& skip : plan.skips()) {
    absl::StrAppend(&text, &skip == &plan.skips(0) ? "\nSkips     " : "          ", "stage ", skip.from_stage(), " -> ",
                    skip.to_stage(), ": ", absl::StrJoin(skip.names(), ", "));
    if (skip.bytes() > 0) absl::StrAppend(&text, ", ", BytesText(skip.bytes()), " per micro-batch");
    text += "\n";
  }
  for (const v1::LinkPlan& link : plan.links()) {
    absl::StrAppend(&text, &link == &plan.links(0) ? "\nLinks     " : "          ", "rank ", link.rank(), " - ",
                    link.other_rank(), ": ",
                    link.measured() ? absl::StrCat(Milliseconds(link.latency_seconds(), 3), ", ",
                                                   BytesText(static_cast<int64_t>(link.bytes_per_second())), "/s\n")
                                    : "not measured\n");
  }
  for (const v1::TransferPlan& transfer : plan.transfers()) {
    absl::StrAppend(&text, &transfer == &plan.transfers(0) ? "\nTransfers " : "          ", "stage ",
                    transfer.from_stage(), " -> ", transfer.to_stage(), ": ", BytesText(transfer.bytes()), ", ",
                    Milliseconds(transfer.seconds(), 3), " predicted\n");
  }
  for (const std::string& sentence : plan.why()) {
    absl::StrAppend(&text, &sentence == &plan.why(0) ? "\nWhy       " : "          ", sentence, "\n");
  }
  return text;
}

std::string PlannedText(const v1::ModelSpec& model, const v1::Plan& plan, bool wide) {
  return absl::StrCat("Model     ", ModelText(model), "\n\n", PlanText(plan, wide), PlanDetailText(plan));
}

std::string CandidatesText(const v1::PlanPipelineResponse& search, bool wide) {
  Table table({{"CANDIDATE", true},
               {"SCHEDULE"},
               {"CHUNKS", true},
               {"MICRO-BATCHES", true},
               {"CHECKPOINT"},
               {"STEP", true},
               {"MEASURED"},
               {"BUBBLE", true},
               {"MOST MEMORY", true},
               {"ON", false, true},
               {"LARGEST CLASS", false, true},
               {"ROWS", true, true},
               {"MESSAGES", true, true},
               {"BALANCE", false, true}});
  int place = 0;
  for (const v1::PlanCandidate& one : search.candidates()) {
    const v1::PlannedMemory* most = nullptr;
    for (const v1::PlannedMemory& need : one.memory()) {
      if (most == nullptr || need.bytes() > most->bytes()) most = &need;
    }
    table.Add({absl::StrCat(++place), KindText(one.schedule()), absl::StrCat(one.schedule().chunks()),
               absl::StrCat(one.schedule().micro_batches()), CheckpointWord(one.schedule().checkpoint()),
               Milliseconds(one.has_rehearsed_seconds() ? one.rehearsed_seconds() : one.makespan_seconds()),
               one.has_rehearsed_seconds() ? "step"
               : one.confirmed()           ? "stages"
                                           : "layers",
               PercentText(one.predicted_bubble()), most == nullptr ? "-" : BytesText(most->bytes()),
               most == nullptr ? "-" : most->device(), most == nullptr ? "-" : most->largest_class(),
               one.micro_batch_rows() > 0 ? absl::StrCat(one.micro_batch_rows()) : "-", absl::StrCat(one.messages()),
               absl::StrJoin(one.balance(), ",")});
  }
  std::string text = absl::StrCat("\n", table.Text(wide), "\nSearch    ", search.considered(),
                                  search.considered() == 1 ? " schedule" : " schedules", " considered",
                                  search.complete() ? "" : "; the time was up: these are the best so far", "\n");
  for (const v1::RefusedCandidate& one : search.refused()) {
    if (!wide) continue;
    const v1::ScheduleSpec& schedule = one.schedule();
    absl::StrAppend(&text, &one == &search.refused(0) ? "\nRefused   " : "          ", KindText(schedule), ", ",
                    schedule.chunks(), schedule.chunks() == 1 ? " chunk, " : " chunks, ", schedule.micro_batches(),
                    " micro-batches, ", CheckpointWord(schedule.checkpoint()), ": ", one.why().message(), "\n");
  }
  return text;
}

std::string PipelineText(const v1::Pipeline& pipeline, bool wide) {
  std::string text = absl::StrCat("Pipeline  ", ShortName(pipeline.name()), "  ", StateWord(pipeline.state()),
                                  "  step ", pipeline.step(), "\n", "Model     ", ModelText(pipeline.spec().model()),
                                  ", ", CountText(pipeline.parameters()), " parameters\n", "Takes     ",
                                  SignatureText(pipeline.signature().inputs()), "\n", "Gives     ",
                                  SignatureText(pipeline.signature().outputs()), "\n", "Learns    ",
                                  SignatureText(pipeline.signature().targets()), "\n");
  if (pipeline.has_published()) {
    const v1::PublishedCheckpoint& published = pipeline.published();
    absl::StrAppend(&text, "Published ", ShortName(published.checkpoint()), "  step ", published.step(), ", version ",
                    published.version(), ", ",
                    absl::FormatTime(FromMessage(published.publish_time()), absl::UTCTimeZone()), "\n");
    if (published.has_error()) {
      const absl::Status error = StatusFromMessage(published.error());
      absl::StrAppend(&text, "          ", ReasonOf(error), ": ", error.message(), "\n");
    }
  }
  if (wide) {
    absl::StrAppend(&text, "Epoch     ", pipeline.epoch(), "\nState     ", pipeline.state_token(), "\nCreated   ",
                    absl::FormatTime(FromMessage(pipeline.create_time()), absl::UTCTimeZone()), "\n");
  }
  if (pipeline.has_error()) {
    const absl::Status error = StatusFromMessage(pipeline.error());
    absl::StrAppend(&text, "Error     ", ReasonOf(error), ": ", error.message(), "\n");
  }
  return text + "\n" + PlanText(pipeline.plan(), wide) + (wide ? PlanDetailText(pipeline.plan()) : "");
}

std::string PipelineListText(const std::vector<v1::Pipeline>& pipelines, bool wide) {
  if (pipelines.empty()) return "no pipelines\n";
  Table table({{"PIPELINE"},
               {"STATE"},
               {"STEP", true},
               {"MODEL"},
               {"PARAMETERS", true},
               {"STAGES", true},
               {"SCHEDULE"},
               {"MICRO-BATCHES", true},
               {"CHECKPOINT", false, true},
               {"BUBBLE PREDICTED", true, true},
               {"IDEAL", true, true},
               {"CREATED", false, true}});
  for (const v1::Pipeline& pipeline : pipelines) {
    table.Add({ShortName(pipeline.name()), StateWord(pipeline.state()), absl::StrCat(pipeline.step()),
               ModelText(pipeline.spec().model()), CountText(pipeline.parameters()),
               absl::StrCat(pipeline.plan().stages_size()), pipeline.plan().schedule(),
               absl::StrCat(pipeline.plan().micro_batches()), CheckpointWord(pipeline.plan().checkpoint()),
               PercentText(pipeline.plan().predicted_bubble()), PercentText(pipeline.plan().ideal_bubble()),
               absl::FormatTime(FromMessage(pipeline.create_time()), absl::UTCTimeZone())});
  }
  return table.Text(wide);
}

}  // namespace penstock
