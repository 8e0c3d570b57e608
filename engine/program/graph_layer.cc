#include "engine/program/graph_layer.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"
#include "engine/program/program_archive.h"
#include "engine/tensor/codec.h"

namespace penstock {
namespace {

[[noreturn]] void ThrowInput(const std::string& field, const std::string& problem, const std::string& value) {
  ThrowStatus(
      Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE", absl::StrCat(field, ": ", problem, ", got ", value))
          .With("field", field)
          .With("value", value));
}

c10::IValue ToIValue(const Value& value) {
  if (const at::Tensor* tensor = value.any_tensor()) return *tensor;
  if (const int64_t* integer = value.integer()) return *integer;
  if (const bool* boolean = value.boolean()) return *boolean;
  if (const double* number = value.number()) return *number;
  return {};
}

Value ToValue(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) return value.toTensor();
  if (value.isInt()) return value.toInt();
  if (value.isBool()) return value.toBool();
  if (value.isDouble()) return value.toDouble();
  return {};
}

std::vector<HandedValue> AsSkips(const std::set<std::pair<std::string, int>>& handed) {
  std::vector<HandedValue> skips;
  for (const auto& [name, position] : handed) {
    skips.push_back({.name = {.skip_namespace = "", .name = name}, .position = position});
  }
  return skips;
}

// Routes are the same for both modes. Where one of them uses an input elsewhere, or not at all, none hands it on.
std::vector<HandedValue> InputsHanded(const GraphPart& one, const GraphPart& other) {
  std::set<std::pair<std::string, int>> handed;
  for (const auto& input : one.handed_inputs) {
    const GraphPart::Handed& others = other.handed_inputs;
    if (std::find(others.begin(), others.end(), input) != others.end()) handed.insert(input);
  }
  return AsSkips(handed);
}

// An output may leave from one stage in one mode and from another in the other: there is None of it elsewhere. But no
// skip may be one in one mode and more than that in the other.
std::vector<HandedValue> OutputsHanded(const GraphPart& one, const GraphPart& other) {
  std::set<std::pair<std::string, int>> handed;
  for (const auto& [mode, beside] : {std::pair(&one, &other), std::pair(&other, &one)}) {
    for (const auto& output : mode->handed_outputs) {
      const bool has = std::any_of(beside->pops.begin(), beside->pops.end(),
                                   [&](const auto& skip) { return skip.first == output.first; });
      const auto& others = beside->handed_outputs;
      if (!has || std::find(others.begin(), others.end(), output) != others.end()) handed.insert(output);
    }
  }
  return AsSkips(handed);
}

// What LibTorch said, with the node that said it. A fault of the machine stays what it is.
absl::Status AtNode(const absl::Status& status, const std::string& node) {
  if (absl::StartsWith(status.message(), "exported program")) return status;
  if (ReasonOf(status) == "LAYER_FAILED") {
    return Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
                 absl::StrCat("exported program node ", node, ": ", status.message()))
        .With("field", node);
  }
  return WithPrefix(status, absl::StrCat("exported program node ", node, ": "));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GraphLayer>> GraphLayer::Create(const GraphLayerRequest& request) {
  std::unique_ptr<GraphLayer> layer(new GraphLayer);
  PENSTOCK_RETURN_IF_ERROR(layer->Build(request));
  return layer;
}

absl::Status GraphLayer::Build(const GraphLayerRequest& request) {
  first_ = request.first;
  AddTensors(request);
  PENSTOCK_RETURN_IF_ERROR(BuildMode(request, request.evaluation, /*training=*/false, evaluation_));
  PENSTOCK_RETURN_IF_ERROR(BuildMode(request, request.training, /*training=*/true, training_));
  for (const Mode* mode : {&evaluation_, &training_}) {
    for (const auto& [name, place] : mode->pops) pop_names_.insert(name);
    for (const auto& [name, place] : mode->stashes) stash_names_.insert(name);
  }
  const GraphPart& evaluation = *request.evaluation.part;
  const GraphPart& training = *request.training.part;
  handed_inputs_ = InputsHanded(evaluation, training);
  handed_outputs_ = OutputsHanded(evaluation, training);
  for (const std::string& name : stash_names_) DeclareStash(name);
  for (const std::string& name : pop_names_) DeclarePop(name);
  Describe(request);
  return absl::OkStatus();
}

void GraphLayer::AddTensors(const GraphLayerRequest& request) {
  const auto keep = [&](int tensor, at::Tensor made, bool moves) {
    positions_[tensor] = static_cast<int>(tensors_.size());
    tensors_.push_back(std::move(made));
    moves_.push_back(moves);
  };
  const std::vector<ProgramTensor>& all = request.program->tensors;
  for (size_t i = 0; i < request.parameters.size(); ++i) {
    const int t = request.parameters[i];
    keep(t, AddParameter(request.parameter_names[i], LoadTensor(all[t], request.shapes_only)), false);
  }
  for (const int t : request.buffers) {
    keep(t, AddBuffer(all[t].name, LoadTensor(all[t], request.shapes_only)), false);
  }
  for (const GraphLayerMode* mode : {&request.evaluation, &request.training}) {
    for (const int t : mode->part->tensors) {
      const bool constant = all[t].kind == ProgramTensor::Kind::kConstant;
      if (constant && positions_.count(t) == 0) keep(t, LoadTensor(all[t], request.shapes_only), true);
    }
  }
}

void GraphLayer::Describe(const GraphLayerRequest& request) {
  const ProgramGraph& graph = *request.evaluation.graph->graph;
  inputs_ = outputs_ = {{.name = "value", .type = DataType::kUnspecified, .shape = {}, .any = true}};
  if (request.first) {
    inputs_.clear();
    program_inputs_ = graph.inputs;
    symbols_ = graph.symbols;
    for (const ProgramInput& input : graph.inputs) {
      TensorSignature signature{.name = input.name, .type = *ToDataType(input.type), .shape = {}};
      for (size_t d = 0; d < input.shape.size(); ++d) {
        const ProgramDimension& dimension = input.shape[d];
        const bool open = d == 0 || !dimension.symbol.empty();
        signature.shape.push_back(open ? -1 : dimension.addend);
        if (open && d > 0) largest_open_dimension_ = std::max(largest_open_dimension_, dimension.example);
        if (d == 0) signature.rows = absl::StrCat(dimension.factor, " ", dimension.symbol, " ", dimension.addend);
      }
      inputs_.push_back(std::move(signature));
    }
  }
  if (request.last && !graph.outputs.empty()) {
    outputs_.clear();
    for (const ProgramOutput& output : graph.outputs) {
      const DataType type = output.tensor ? *ToDataType(output.type) : DataType::kUnspecified;
      outputs_.push_back({.name = output.name, .type = type, .shape = output.shape, .any = !output.tensor});
    }
  }
}

void GraphLayer::CheckShapes(const Batch& inputs) const {
  std::map<std::string, std::pair<int64_t, std::string>> known;  // symbols, and which dimension said so
  for (size_t i = 0; i < program_inputs_.size(); ++i) {
    const ProgramInput& wanted = program_inputs_[i];
    const at::Tensor* const tensor = inputs[i].any_tensor();
    const std::string field = absl::StrCat("inputs[", i, "]");
    if (tensor == nullptr) ThrowInput(field, "must be a tensor", inputs[i].TypeName());
    if (tensor->scalar_type() != wanted.type) {
      ThrowInput(field, absl::StrCat("must be of the exported type ", c10::toString(wanted.type)),
                 c10::toString(tensor->scalar_type()));
    }
    if (tensor->dim() != static_cast<int64_t>(wanted.shape.size())) {
      ThrowInput(field + ".shape", absl::StrCat("must have ", wanted.shape.size(), " dimensions"),
                 absl::StrCat(tensor->dim()));
    }
    for (size_t d = 0; d < wanted.shape.size(); ++d) {
      const ProgramDimension& dimension = wanted.shape[d];
      const int64_t size = tensor->size(static_cast<int64_t>(d));
      const std::string where = absl::StrCat(field, ".shape[", d, "]");
      if (dimension.symbol.empty()) {
        if (size != dimension.addend)
          ThrowInput(where, absl::StrCat("was exported as ", dimension.addend), absl::StrCat(size));
        continue;
      }
      int64_t rest = 0;
      if (__builtin_sub_overflow(size, dimension.addend, &rest) || rest % dimension.factor != 0) {
        ThrowInput(where, absl::StrCat("must be ", dimension.factor, " times a number plus ", dimension.addend),
                   absl::StrCat(size));
      }
      const int64_t value = rest / dimension.factor;
      const ProgramRange& range = symbols_.at(dimension.symbol);
      if (value < range.least || value > range.most) {
        ThrowInput(where, absl::StrCat("must be from ", range.least, " to ", range.most, " in what was exported"),
                   absl::StrCat(value));
      }
      const auto [before, is_new] = known.emplace(dimension.symbol, std::pair(value, where));
      if (!is_new && before->second.first != value) {
        ThrowInput(where, absl::StrCat("must fit ", before->second.second, ", ", before->second.first),
                   absl::StrCat(value));
      }
    }
  }
}

at::Tensor GraphLayer::TensorOn(int tensor, c10::Device device) {
  at::Tensor& kept = tensors_[tensor];
  if (moves_[tensor] && kept.device() != device) kept = kept.to(device);
  return kept;
}

std::vector<c10::IValue> GraphLayer::PlaceValues(const Mode& mode, const Batch& inputs, const LayerContext& context) {
  if (inputs.size() != mode.arrivals.size()) {
    ThrowInput("inputs", absl::StrCat("must be ", mode.arrivals.size(), " values"), absl::StrCat(inputs.size()));
  }
  if (first_) CheckShapes(inputs);
  std::vector<c10::IValue> values(static_cast<size_t>(mode.places));
  for (size_t i = 0; i < mode.arrivals.size(); ++i) values[mode.arrivals[i]] = ToIValue(inputs[i]);
  for (const std::string& name : pop_names_) {
    PENSTOCK_CHECK(context.skips != nullptr);
    const Value value = context.skips->Pop(name);
    const auto place = mode.pops.find(name);
    if (place != mode.pops.end()) values[place->second] = ToIValue(value);
  }
  for (const Place place : mode.copied) {
    if (values[place].isTensor()) values[place] = values[place].toTensor().clone();
  }
  for (const auto& [place, constant] : mode.constants) values[place] = constant;
  return values;
}

void GraphLayer::RunStep(const Step& step, std::vector<c10::IValue>& values, const OperatorPass& pass) const {
  std::optional<at::NoGradGuard> without_gradients;
  std::optional<c10::impl::ExcludeDispatchKeyGuard> without_autocast;
  if (!step.gradients) without_gradients.emplace();
  if (!step.autocast) without_autocast.emplace(c10::autocast_dispatch_keyset);
  step.call.Run(values, pass, step.batch_norm);
}

// What the step takes now, for the time when it changes the buffer itself.
void GraphLayer::NoteInputs(const Step& step, const std::vector<c10::IValue>& values, std::vector<c10::IValue>& note) {
  for (const auto& [place, changes] : step.noted) {
    const c10::IValue& value = values[place];
    if (!value.isTensor()) {
      note.push_back(value);
      continue;
    }
    const at::Tensor seen = value.toTensor().detach();
    note.push_back(changes ? seen.clone() : seen);
  }
}

Batch GraphLayer::Forward(const Batch& inputs, const LayerContext& context) {
  const Mode& mode = context.training ? training_ : evaluation_;
  std::vector<c10::IValue> values = PlaceValues(mode, inputs, context);
  OperatorPass pass{.layer = context, .train_literals = mode.train_literals};
  if (!tensors_.empty()) pass.device = tensors_[0].device();
  for (const Value& input : inputs) {
    if (input.any_tensor() == nullptr || input.any_tensor()->is_meta()) continue;
    pass.device = input.any_tensor()->device();
    break;
  }
  for (const auto& [place, tensor] : mode.tensors) values[place] = TensorOn(tensor, pass.device);
  for (const auto& [place, tensor] : mode.states) values[place] = TensorOn(tensor, pass.device).detach().clone();
  const bool notes = context.training && !context.recomputing && !mode.states.empty();
  std::vector<c10::IValue> note;
  const Step* running = nullptr;
  const absl::Status status = RunLayerCode([&] {
    for (const Step& step : mode.steps) {
      running = &step;
      if (notes) NoteInputs(step, values, note);
      RunStep(step, values, pass);
      for (const Place place : step.ends) values[place] = c10::IValue();
    }
  });
  if (!status.ok()) ThrowStatus(running == nullptr ? status : AtNode(status, running->node));
  if (notes) notes_[context.micro_batch] = std::move(note);
  return Finish(mode, values, context);
}

Batch GraphLayer::Finish(const Mode& mode, std::vector<c10::IValue>& values, const LayerContext& context) const {
  for (const std::string& name : stash_names_) {
    const auto place = mode.stashes.find(name);
    context.skips->Stash(name, place == mode.stashes.end() ? Value() : ToValue(values[place->second]));
  }
  for (const auto& [place, output] : mode.given) CheckOutput(output, ToValue(values[place]));
  std::vector<Value> leaves;
  size_t fixed = 0;
  for (const Place place : mode.leaves) {
    leaves.push_back(ToValue(place < 0 ? mode.fixed_leaves[fixed++] : values[place]));
  }
  for (size_t i = 0; i < mode.outputs.size(); ++i) {
    const Value& value = leaves[leaves.size() - mode.outputs.size() + i];
    if (value.is_none() && mode.handed_outputs.count(static_cast<int>(i)) != 0) continue;
    CheckOutput(mode.outputs[i], value);
  }
  if (leaves.size() == 1) return {leaves[0]};
  return Batch::Tuple(std::move(leaves));
}

// What the graph gives against what the file says of it: results go to clients, who trust the signature. Autocast
// narrows floating numbers.
void GraphLayer::CheckOutput(const ProgramOutput& output, const Value& value) {
  if (!output.tensor) return;
  const std::string field = absl::StrCat("outputs[", output.name, "]");
  const auto wrong = [](const std::string& field, const std::string& wanted, const std::string& found) {
    ThrowStatus(ProgramError(field, absl::StrCat("must be ", wanted, ", as the file says"), found));
  };
  const at::Tensor* const tensor = value.any_tensor();
  if (tensor == nullptr) wrong(field, "a tensor", value.TypeName());
  const bool narrowed = at::isFloatingType(output.type) && tensor->is_floating_point() &&
                        at::autocast::is_autocast_enabled(tensor->device().type());
  if (tensor->scalar_type() != output.type && !narrowed) {
    wrong(field + ".dtype", c10::toString(output.type), c10::toString(tensor->scalar_type()));
  }
  bool fits = tensor->dim() == static_cast<int64_t>(output.shape.size());
  for (size_t d = 0; fits && d < output.shape.size(); ++d) {
    fits = output.shape[d] < 0 || output.shape[d] == tensor->size(static_cast<int64_t>(d));
  }
  if (!fits) {
    wrong(field + ".shape", absl::StrCat("[", absl::StrJoin(output.shape, ", "), "]"),
          absl::StrCat("[", absl::StrJoin(tensor->sizes(), ", "), "]"));
  }
}

void GraphLayer::Cast(at::ScalarType) {
  ThrowStatus(
      Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID",
            "spec.model.dtype: an exported program names element types itself: export it in the wanted one, got "
            "another")
          .With("field", "spec.model.dtype"));
}

void GraphLayer::CommitStatistics() {
  for (const auto& batch_norm : batch_norms_) batch_norm->Commit();
  const at::NoGradGuard no_graph;
  const LayerContext context{.training = true};
  for (const auto& [micro_batch, note] : notes_) {
    OperatorPass pass{.layer = context, .train_literals = training_.train_literals};
    std::vector<c10::IValue> values(static_cast<size_t>(training_.places));
    for (const auto& [place, constant] : training_.constants) values[place] = constant;
    for (const auto& [place, tensor] : training_.tensors) values[place] = tensors_[tensor];
    for (const auto& [place, tensor] : training_.states) {
      values[place] = tensors_[tensor];
      pass.device = tensors_[tensor].device();
    }
    auto noted = note.begin();
    for (const int s : training_.state_steps) {
      const Step& step = training_.steps[s];
      for (const auto& [place, changes] : step.noted) {
        // A step that is undone is taken again, with the same notes.
        values[place] = changes && noted->isTensor() ? noted->toTensor().clone() : *noted;
        ++noted;
      }
      RunStep(step, values, pass);
    }
  }
}

void GraphLayer::DiscardStatistics(MicroBatchIndex first) {
  for (const auto& batch_norm : batch_norms_) batch_norm->Discard(first);
  notes_.erase(notes_.lower_bound(first), notes_.end());
}

NamedTensors GraphLayer::Notes() const {
  NamedTensors notes;
  for (size_t i = 0; i < batch_norms_.size(); ++i) AddUnder(std::to_string(i), batch_norms_[i]->Notes(), &notes);
  NamedTensors of_passes;
  for (const auto& [micro_batch, note] : notes_) {
    const std::vector<char> bytes = torch::jit::pickle_save(c10::ivalue::Tuple::create(note));
    at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
    std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tensor.mutable_data_ptr()));
    of_passes.push_back({std::to_string(micro_batch.value()), std::move(tensor)});
  }
  AddUnder("passes", std::move(of_passes), &notes);
  return notes;
}

void GraphLayer::SetNotes(const NamedTensors& notes) {
  for (size_t i = 0; i < batch_norms_.size(); ++i) batch_norms_[i]->SetNotes(TensorsUnder(std::to_string(i), notes));
  notes_.clear();
  for (const NamedTensor& note : TensorsUnder("passes", notes)) {
    const char* const bytes = static_cast<const char*>(note.tensor.const_data_ptr());
    const c10::IValue values = torch::jit::pickle_load(std::vector<char>(bytes, bytes + note.tensor.numel()));
    notes_[MicroBatchIndex(std::stoi(note.name))] = values.toTupleRef().elements().vec();
  }
}

}  // namespace penstock
