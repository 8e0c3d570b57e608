#include "engine/program/graph_layer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "engine/model/model_signature.h"
#include "engine/model/safetensors.h"
#include "tests/unit/program/program_runner.h"

namespace penstock {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using testing::GoldenFile;
using ::testing::HasSubstr;
using testing::ProgramRunner;
using testing::Repacked;

std::map<std::string, at::Tensor> Reference(const std::string& file) {
  std::map<std::string, at::Tensor> tensors;
  const absl::StatusOr<Safetensors> read = ReadSafetensors(GoldenFile(file));
  EXPECT_TRUE(read.ok());
  for (const NamedTensor& named : read->tensors) tensors[named.name] = named.tensor;
  return tensors;
}

std::vector<at::Tensor> Inputs(const std::map<std::string, at::Tensor>& reference) {
  std::vector<at::Tensor> inputs;
  while (reference.count("input." + std::to_string(inputs.size())) != 0) {
    inputs.push_back(reference.at("input." + std::to_string(inputs.size())));
  }
  return inputs;
}

void ExpectClose(const at::Tensor& left, const at::Tensor& right, const std::string& what) {
  ASSERT_TRUE(left.defined()) << what;
  EXPECT_EQ(left.sizes(), right.sizes()) << what;
  EXPECT_TRUE(at::allclose(left, right, 1e-5, 1e-6)) << what << "\n" << left << "\n" << right;
}

// Forward in both modes and gradients, against what eager PyTorch made when the file was written. `nones` of its
// outputs are None, the others `outputs`.
void ExpectAsEager(ProgramRunner runner, const std::string& reference_file, const std::vector<std::string>& outputs,
                   size_t nones = 0) {
  const std::map<std::string, at::Tensor> reference = Reference(reference_file);
  {
    const at::NoGradGuard no_graph;
    const Batch evaluated = runner.Forward(Inputs(reference), {});
    ASSERT_EQ(evaluated.size(), outputs.size() + nones);
    auto expected = outputs.begin();
    for (const Value& value : evaluated) {
      if (value.is_none()) continue;
      ExpectClose(*value.tensor(), reference.at("eval." + *expected), *expected);
      ++expected;
    }
    EXPECT_EQ(expected, outputs.end());
  }
  const Batch trained = runner.Forward(Inputs(reference), {.training = true});
  ExpectClose(trained.TensorAt(0), reference.at("train." + outputs[0]), "training");
  trained.TensorAt(0).square().mean().backward();
  const std::map<std::string, at::Tensor> gradients = runner.Gradients();
  int compared = 0;
  for (const auto& [name, tensor] : reference) {
    if (name.rfind("gradient.", 0) != 0) continue;
    ASSERT_EQ(gradients.count(name.substr(9)), 1) << name;
    ExpectClose(gradients.at(name.substr(9)), tensor, name);
    ++compared;
  }
  EXPECT_EQ(compared, gradients.size());
  runner.Commit();
  for (const auto& [name, tensor] : reference) {
    if (name.rfind("buffer.", 0) != 0 || !runner.Buffer(name.substr(7)).defined()) continue;
    ExpectClose(runner.Buffer(name.substr(7)), tensor, name);
  }
}

TEST(GraphLayer, EqualsEagerPyTorchWithSkipsOverBlocksAndBuffersBetweenThem) {
  for (const ProgramCuts cuts : {ProgramCuts::kModules, ProgramCuts::kNodes}) {
    ExpectAsEager(ProgramRunner("mixed_both.pt2", cuts), "mixed.safetensors", {"values", "early", "mean"}, 1);
  }
}

std::vector<std::string> LayerNames(const ProgramRunner& runner) {
  std::vector<std::string> names;
  for (const NamedLayer& layer : runner.layers) names.push_back(layer.name);
  return names;
}

TEST(GraphLayer, EqualsEagerPyTorchInBothModesFromAnyFile) {
  for (const std::string file : {"conv_net.pt2", "conv_net_training.pt2", "conv_net_both.pt2"}) {
    SCOPED_TRACE(file);
    ExpectAsEager(ProgramRunner(file), "conv_net.safetensors", {"output"});
    ExpectAsEager(ProgramRunner(file, ProgramCuts::kNodes), "conv_net.safetensors", {"output"});
  }
}

TEST(GraphLayer, EqualsEagerPyTorchWithSeveralInputsOutputsTiesAndNone) {
  ExpectAsEager(ProgramRunner("language.pt2"), "language.safetensors", {"logits", "hidden"}, 1);
  ExpectAsEager(ProgramRunner("language.pt2", ProgramCuts::kNodes), "language.safetensors", {"logits", "hidden"}, 1);
}

TEST(GraphLayer, CutsBetweenModulesAndBlocks) {
  EXPECT_THAT(LayerNames(ProgramRunner("conv_net_both.pt2")),
              ElementsAre("stem", "layer1_0", "layer1_1", "layer2_0", "layer2_1", "pool", "drop", "fc"));
  EXPECT_THAT(LayerNames(ProgramRunner("language_dropout_both.pt2")), Contains("blocks_1"));
}

TEST(GraphLayer, KeepsTheNamesOfStateDict) {
  const ProgramRunner runner("conv_net.pt2");
  EXPECT_EQ(runner.layers[1].layer->parameters()[0].name, "layer1.0.conv1.weight");
  EXPECT_TRUE(runner.Buffer("layer1.0.bn2.num_batches_tracked").defined());
}

TEST(GraphLayer, TiesWhatSeveralLayersUse) {
  const ProgramRunner runner("language.pt2");
  ASSERT_EQ(runner.model->ties().size(), 1);
  EXPECT_THAT(runner.model->ties()[0].parameters, ElementsAre("embedding.weight", "embedding.weight-head"));
}

TEST(GraphLayer, CutsWhereverTheyFallChangeNoBit) {
  for (const std::string file : {"conv_net_both.pt2", "language.pt2"}) {
    SCOPED_TRACE(file);
    const auto inputs = Inputs(Reference(file == "language.pt2" ? "language.safetensors" : "conv_net.safetensors"));
    ProgramRunner modules(file);
    ProgramRunner nodes(file, ProgramCuts::kNodes);
    EXPECT_GT(nodes.layers.size(), 2 * modules.layers.size());
    const Batch left = modules.Forward(inputs, {.training = true});
    const Batch right = nodes.Forward(inputs, {.training = true});
    EXPECT_TRUE(at::equal(left.TensorAt(0), right.TensorAt(0)));
    left.TensorAt(0).square().mean().backward();
    right.TensorAt(0).square().mean().backward();
    const std::map<std::string, at::Tensor> gradients = modules.Gradients();
    for (const auto& [name, gradient] : nodes.Gradients()) {
      EXPECT_TRUE(at::equal(gradient, gradients.at(name))) << name;
    }
  }
}

TEST(GraphLayer, BatchNormStatisticsChangeWithTheStepOnly) {
  ProgramRunner runner("conv_net_training.pt2");
  const auto inputs = Inputs(Reference("conv_net.safetensors"));
  const at::Tensor before = runner.Buffer("layer1.0.bn1.running_mean").clone();
  runner.Forward(inputs, {.training = true, .micro_batch = 0});
  runner.Forward(inputs, {.training = true, .recomputing = true, .micro_batch = 0});
  runner.Forward(inputs, {.training = true, .micro_batch = 1});
  runner.Forward(inputs, {.training = true, .micro_batch = 2});
  EXPECT_TRUE(at::equal(runner.Buffer("layer1.0.bn1.running_mean"), before));
  runner.Discard(2);
  runner.Commit();
  EXPECT_FALSE(at::equal(runner.Buffer("layer1.0.bn1.running_mean"), before));
  EXPECT_EQ(runner.Buffer("layer1.0.bn1.num_batches_tracked").item<int64_t>(), 2);
  // What was noted stays until the step is over on all stages: it may have to be undone.
  runner.Discard(0);
  runner.Commit();
  EXPECT_EQ(runner.Buffer("layer1.0.bn1.num_batches_tracked").item<int64_t>(), 2) << "nothing is left to commit";
}

TEST(GraphLayer, BuffersThatTheGraphChangesFollowMicroBatchesInOrder) {
  ProgramRunner runner("counting_both.pt2");
  at::Tensor expected = at::zeros({6});
  const auto parameter = [&](const std::string& name) {
    for (const NamedLayer& layer : runner.layers) {
      for (const NamedTensor& one : layer.layer->parameters()) {
        if (one.name == name) return one.tensor.detach();
      }
    }
    return at::Tensor();
  };
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < 3; ++i) inputs.push_back(at::randn({4, 4}));
  for (const int i : {2, 0, 1}) {  // in any order
    runner.Forward({inputs[i]}, {.training = true, .micro_batch = i});
    runner.Forward({inputs[i]}, {.training = true, .recomputing = true, .micro_batch = i});
  }
  EXPECT_EQ(runner.Buffer("calls").item<int64_t>(), 0);
  runner.Discard(2);
  runner.Commit();
  EXPECT_EQ(runner.Buffer("calls").item<int64_t>(), 2);
  for (int i = 0; i < 2; ++i) {
    const at::Tensor seen = (inputs[i].matmul(parameter("first.weight").t()) + parameter("first.bias")).tanh();
    expected = expected * 0.9 + seen.mean(0) * 0.1;
  }
  ExpectClose(runner.Buffer("mean"), expected, "mean");
  const at::NoGradGuard no_graph;
  runner.Forward({inputs[0]}, {});
  EXPECT_EQ(runner.Buffer("calls").item<int64_t>(), 2) << "evaluation counts nothing";
}

// What a buffer gets is what the graph had there, not what became of it in place: twice, with a change between.
TEST(GraphLayer, BuffersTakeWhatIsChangedInPlaceAfterwards) {
  ProgramRunner runner("remembering_training.pt2");
  for (int i = 0; i < 2; ++i) runner.Forward({at::full({2, 4}, i + 1.0)}, {.training = true, .micro_batch = i});
  for (int times = 0; times < 2; ++times) {  // a step that is undone is taken again
    runner.Commit();
    ExpectClose(runner.Buffer("before"), at::full({4}, -2.0), "before");  // x * -1
    ExpectClose(runner.Buffer("after"), at::zeros({4}), "after");
    ExpectClose(runner.Buffer("sum"), at::full({4}, (times + 1) * 2 * -3.0), "sum");  // of both, over two rows
  }
}

TEST(GraphLayer, WhatPassesHaveNotedGoesOutAndIntoAnotherLayer) {
  const auto inputs = Inputs(Reference("conv_net.safetensors"));
  const std::vector<at::Tensor> rows = {at::randn({4, 4})};
  for (const std::string file : {"conv_net_training.pt2", "counting_both.pt2", "remembering_training.pt2"}) {
    SCOPED_TRACE(file);
    ProgramRunner runner(file);
    ProgramRunner other(file);
    for (int i = 0; i < 12; ++i) {  // more than one digit
      runner.Forward(file.starts_with("conv") ? inputs : rows, {.training = true, .micro_batch = i});
    }
    size_t notes = 0;
    for (size_t i = 0; i < runner.layers.size(); ++i) {
      const NamedTensors noted = runner.layers[i].layer->Notes();
      other.layers[i].layer->SetNotes(noted);
      notes += noted.size();
    }
    EXPECT_GT(notes, 0);
    runner.Commit();
    other.Commit();
    for (size_t i = 0; i < runner.layers.size(); ++i) {
      const NamedTensors& wanted = runner.layers[i].layer->buffers();
      for (size_t b = 0; b < wanted.size(); ++b) {
        EXPECT_TRUE(at::equal(other.layers[i].layer->buffers()[b].tensor, wanted[b].tensor)) << wanted[b].name;
      }
    }
    runner.Discard(0);
    for (const NamedLayer& layer : runner.layers) EXPECT_TRUE(layer.layer->Notes().empty());
  }
}

TEST(GraphLayer, CountsInABufferThatIsOnlyNamedLikeABatchNorms) {
  Repacked renamed("counting_both.pt2");
  for (const std::string record :
       {"models/model.json", "data/weights/model_weights_config.json", "extra/penstock_training.json"}) {
    std::string& text = renamed[record];
    for (size_t at = 0; (at = text.find("\"calls\"", at)) != std::string::npos; ++at) {
      text.replace(at, 7, "\"num_batches_tracked\"");
    }
  }
  ProgramRunner runner(renamed.Read());
  runner.Forward({at::ones({2, 4})}, {.training = true});
  runner.Commit();
  EXPECT_EQ(runner.Buffer("num_batches_tracked").item<int64_t>(), 1);
}

TEST(GraphLayer, RefusesStatisticsThatMoveUnseen) {
  Repacked changed("language.pt2");  // a norm of another kind, with a buffer where its statistics would be
  changed.Replace("models/model.json", R"({"target": "torch.ops.aten.layer_norm.default", "inputs": [)",
                  R"({"target": "torch.ops.aten.instance_norm.default", "inputs": [)"
                  R"({"name": "running_mean", "arg": {"as_tensor": {"name": "p_norm_weight"}}, "kind": 1},)");
  absl::StatusOr<ExportedProgram> program = changed.Read();
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(ReasonOf(ProgramModel::Create(*std::move(program)).status()), "SPEC_INVALID");
}

TEST(GraphLayer, RefusesAChangeOfAParameter) {
  Repacked changed("counting_training.pt2");
  const std::string call = R"({"target": "torch.ops.aten.mul_.Tensor", "inputs": [{"name": "self", "arg": )";
  changed.Replace("models/model.json", call + R"({"as_tensor": {"name": "b_mean"}})",
                  call + R"({"as_tensor": {"name": "p_first_bias"}})");
  absl::StatusOr<ExportedProgram> program = changed.Read();
  ASSERT_TRUE(program.ok()) << program.status();
  const absl::Status refused = ProgramModel::Create(*std::move(program)).status();
  EXPECT_EQ(ReasonOf(refused), "SPEC_INVALID");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("must not change a parameter in place, got first.bias"));
}

TEST(GraphLayer, DrawsFromTheKeyedGenerator) {
  const std::vector<at::Tensor> inputs = Inputs(Reference("language.safetensors"));
  ProgramRunner runner("language_dropout_both.pt2");
  const at::Tensor first = runner.Forward(inputs, {.training = true, .micro_batch = 1}).TensorAt(0);
  const at::Tensor again =
      runner.Forward(inputs, {.training = true, .recomputing = true, .micro_batch = 1}).TensorAt(0);
  const at::Tensor other = runner.Forward(inputs, {.training = true, .micro_batch = 2}).TensorAt(0);
  EXPECT_TRUE(at::equal(first, again));
  EXPECT_FALSE(at::equal(first, other));
  const at::Tensor evaluated = runner.Forward(inputs, {}).TensorAt(0);
  EXPECT_TRUE(at::equal(evaluated, runner.Forward(inputs, {}).TensorAt(0)));
}

TEST(GraphLayer, AttentionDropsFromTheKeyedGenerator) {
  // Every other dropout is switched off, so that what differs is the attention's.
  Repacked changed("language_dropout_both.pt2");
  std::string& graph = changed[kTrainingRecord];
  for (size_t at = 0; (at = graph.find("\"as_bool\": true", at)) != std::string::npos; ++at) {
    if (graph.substr(at - 30, 30).find("\"train\"") != std::string::npos) graph.replace(at, 15, "\"as_bool\": false");
  }
  ProgramRunner runner(changed.Read());
  const std::vector<at::Tensor> inputs = Inputs(Reference("language.safetensors"));
  const at::Tensor first = runner.Forward(inputs, {.training = true, .micro_batch = 1}).TensorAt(0);
  EXPECT_TRUE(at::equal(first, runner.Forward(inputs, {.training = true, .micro_batch = 1}).TensorAt(0)));
  EXPECT_FALSE(at::equal(first, runner.Forward(inputs, {.training = true, .micro_batch = 2}).TensorAt(0)));
  EXPECT_FALSE(at::equal(first, runner.Forward(inputs, {}).TensorAt(0)));
}

// With equal queries and keys all weights are 1/n before the dropout; the identity as values shows what became of each.
TEST(GraphLayer, AttentionDropsItsShareAndScalesTheRest) {
  constexpr int64_t kPlaces = 64;
  constexpr double kDropped = 0.25;
  constexpr double kKept = 1 / (kPlaces * (1 - kDropped));
  ProgramRunner runner("attending_both.pt2");
  const at::Tensor same = at::ones({2, 1, kPlaces, 8});
  const at::Tensor identity = at::eye(kPlaces).expand({2, 1, kPlaces, kPlaces}).clone().requires_grad_(true);
  EXPECT_TRUE(at::allclose(runner.Forward({same, same, identity}, {}).TensorAt(0),
                           at::full({2, 1, kPlaces, kPlaces}, 1.0 / kPlaces)));
  const at::Tensor weights = runner.Forward({same, same, identity}, {.training = true, .micro_batch = 1}).TensorAt(0);
  const at::Tensor kept = weights.ne(0);
  EXPECT_TRUE(at::allclose(weights, kept * kKept));
  EXPECT_NEAR(1 - kept.to(at::kDouble).mean().item<double>(), kDropped, 0.02) << "of 8192";
  for (int64_t head = 0; head < 2; ++head) {
    const double zeros = 1 - kept[head].to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(zeros, kDropped, 0.03) << "of row " << head;
  }
  EXPECT_FALSE(at::equal(kept[0], kept[1])) << "each row has a mask of its own";
  // The backward goes through the same mask.
  const at::Tensor upstream = at::randn_like(weights);
  weights.backward(upstream);
  EXPECT_TRUE(at::allclose(identity.grad(), weights.detach().transpose(2, 3).matmul(upstream), 1e-5, 1e-6));
}

// The mask by its formula: Bernoulli numbers of the layer's key, one for each query, key and head, drawn on the CPU.
TEST(GraphLayer, AttentionsMaskFollowsFromItsKeyAndIsDrawnAgainForARecomputation) {
  constexpr int64_t kPlaces = 64;
  ProgramRunner runner("attending_both.pt2");
  ASSERT_EQ(runner.layers.size(), 1u);
  const at::Tensor same = at::ones({2, 1, kPlaces, 8});
  const at::Tensor identity = at::eye(kPlaces).expand({2, 1, kPlaces, kPlaces}).contiguous();
  for (const int micro_batch : {0, 5}) {
    KeyedRandom random(7, StepId(3), MicroBatchIndex(micro_batch), LayerIndex(0));
    const at::Tensor kept = at::empty({2, 1, kPlaces, kPlaces}, at::kBool).bernoulli_(0.75, random.Next());
    const Tensors inputs = {same, same, identity};
    const at::Tensor weights = runner.Forward(inputs, {.training = true, .micro_batch = micro_batch}).TensorAt(0);
    EXPECT_TRUE(at::equal(weights.ne(0), kept));
    const at::Tensor again =
        runner.Forward(inputs, {.training = true, .recomputing = true, .micro_batch = micro_batch}).TensorAt(0);
    EXPECT_TRUE(at::equal(again, weights));
  }
}

TEST(GraphLayer, RefusesRandomNumbersInEvaluation) {
  ProgramRunner runner("counting_training.pt2");
  const absl::Status status = RunTorch([&] { runner.Forward({at::ones({2, 4})}, {}); });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("draws random numbers in evaluation: export the model in both"));
}

TEST(GraphLayer, SaysWhatItTakesAndGives) {
  const ProgramRunner runner("language.pt2");
  const absl::StatusOr<ModelSignature> signature = SignatureOf(runner.layers, nullptr);
  ASSERT_TRUE(signature.ok()) << signature.status();
  ASSERT_EQ(signature->inputs.size(), 2);
  EXPECT_EQ(signature->inputs[0].name, "ids");
  EXPECT_EQ(signature->inputs[0].type, DataType::kInt64);
  EXPECT_THAT(signature->inputs[0].shape, ElementsAre(-1, -1));
  EXPECT_EQ(runner.layers[0].layer->LargestOpenDimension(), 6);
  const std::vector<TensorSignature> outputs = runner.layers.back().layer->OutputSignature();
  ASSERT_EQ(outputs.size(), 3);
  EXPECT_EQ(outputs[0].name, "logits");
  EXPECT_THAT(outputs[0].shape, ElementsAre(-1, -1, 11));
  EXPECT_TRUE(outputs[2].any) << "None";
}

void ExpectInputRefused(ProgramRunner& runner, const std::vector<at::Tensor>& inputs, const std::string& sentence) {
  const absl::Status status = RunTorch([&] { runner.Forward(inputs, {}); });
  EXPECT_EQ(ReasonOf(status), "TENSOR_SIGNATURE");
  EXPECT_THAT(std::string(status.message()), HasSubstr(sentence));
}

TEST(GraphLayer, RefusesWhatBreaksTheExportedConstraints) {
  ProgramRunner conv("conv_net.pt2");
  ExpectInputRefused(conv, {at::ones({2, 3, 9, 8})}, "inputs[0].shape[2]: was exported as 8, got 9");
  ExpectInputRefused(conv, {at::ones({0, 3, 8, 8})}, "inputs[0].shape[0]: must be from 1 to 4096");
  ExpectInputRefused(conv, {at::ones({2, 3, 8})}, "inputs[0].shape: must have 4 dimensions, got 3");
  ExpectInputRefused(conv, {at::ones({2, 3, 8, 8}, at::kDouble)}, "must be of the exported type Float, got Double");
  ProgramRunner language("language.pt2");
  const auto ids = [](int64_t rows, int64_t length) { return at::ones({rows, length}, at::kLong); };
  ExpectInputRefused(language, {ids(2, 65), ids(2, 65)}, "inputs[0].shape[1]: must be from 1 to 64");
  ExpectInputRefused(language, {ids(2, 6), ids(2, 5)}, "inputs[1].shape[1]: must fit inputs[0].shape[1], 6, got 5");
  ExpectInputRefused(language, {ids(2, 6)}, "inputs: must be 2 values, got 1");
  ExpectInputRefused(language, {ids(2, 6) * 100, ids(2, 6)}, "exported program node embedding (");
}

TEST(GraphLayer, NamesAllUnknownOperatorsAtOnce) {
  Repacked changed("counting_both.pt2");
  changed.Replace("models/model.json", "torch.ops.aten.tanh.default", "torch.ops.mine.tanh.default");
  changed.Replace("models/model.json", "torch.ops.aten.sub.Tensor", "torch.ops.aten.from_file.default");
  absl::StatusOr<ExportedProgram> program = changed.Read();
  ASSERT_TRUE(program.ok());
  const absl::StatusOr<std::shared_ptr<const ProgramModel>> layers = ProgramModel::Create(*std::move(program));
  EXPECT_EQ(ReasonOf(layers.status()), "SPEC_INVALID");
  EXPECT_THAT(std::string(layers.status().message()),
              HasSubstr("are not supported, got torch.ops.aten.from_file.default, torch.ops.mine.tanh.default"));
}

TEST(GraphLayer, KeepsAssertionsAsErrors) {
  Repacked changed("counting_both.pt2");  // a check that the exporter would write, of the rows
  changed.Replace(
      "models/model.json", R"({"target": "torch.ops.aten.linear.default")",
      R"({"target": "_operator.ge", "inputs": [)"
      R"({"name": "a", "arg": {"as_sym_int": {"as_name": "x_rows"}}, "kind": 1},)"
      R"({"name": "b", "arg": {"as_int": 3}, "kind": 1}], "outputs": [{"as_sym_bool": {"as_name": "many"}}],)"
      R"("metadata": {}}, {"target": "torch.ops.aten._assert_scalar.default", "inputs": [)"
      R"({"name": "self", "arg": {"as_sym_bool": {"as_name": "many"}}, "kind": 1},)"
      R"({"name": "assert_msg", "arg": {"as_string": "needs three rows"}, "kind": 1}], "outputs": [],)"
      R"("metadata": {}, "name": "check"}, {"target": "torch.ops.aten.linear.default")");
  changed.Replace("models/model.json", R"("nodes": [)",
                  R"("nodes": [{"target": "torch.ops.aten.sym_size.int", "inputs": [)"
                  R"({"name": "self", "arg": {"as_tensor": {"name": "x"}}, "kind": 1},)"
                  R"({"name": "dim", "arg": {"as_int": 0}, "kind": 1}],)"
                  R"("outputs": [{"as_sym_int": {"as_name": "x_rows"}}], "metadata": {}}, )");
  ProgramRunner runner(changed.Read());
  EXPECT_TRUE(RunTorch([&] { runner.Forward({at::ones({3, 4})}, {}); }).ok());
  ExpectInputRefused(runner, {at::ones({2, 4})}, "node check: needs three rows, got false");
}

TEST(GraphLayer, BuildsShapesWithoutMemory) {
  const ProgramRunner runner("conv_net.pt2", ProgramCuts::kModules, {.shapes_only = true});
  for (const NamedLayer& layer : runner.layers) {
    for (const NamedTensor& parameter : layer.layer->parameters()) EXPECT_TRUE(parameter.tensor.is_meta());
  }
}

// --- A file that says something else than its graph does ---

absl::Status RunsWith(const std::vector<std::pair<std::string, std::string>>& replaced) {
  Repacked lying("scaled.pt2");
  for (const auto& [from, to] : replaced) lying.Replace("models/model.json", from, to);
  ProgramRunner runner(lying.Read());
  return RunTorch([&] { runner.Forward({at::ones({2, 4}), at::ones({})}, {}); });
}

void ExpectLie(const absl::Status& status, const std::string& sentence) {
  EXPECT_EQ(ReasonOf(status), "SPEC_INVALID") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(sentence));
}

TEST(GraphLayer, AnOutputThatIsNotWhatTheFileSaysIsRefusedByName) {
  EXPECT_TRUE(RunsWith({}).ok());
  const std::string meta = R"("mul": {"dtype": 7, "sizes": [)";
  ExpectLie(RunsWith({{meta, R"("mul": {"dtype": 8, "sizes": [)"}}),
            "outputs[output].dtype: must be Double, as the file says, got Float");
  ExpectLie(RunsWith({{meta, meta + R"({"as_int": 1}, )"}}), "outputs[output].shape: must be [1, -1, 3]");
  // A type that no client can be sent.
  ExpectLie(RunsWith({{"torch.ops.aten.mul.Tensor", "torch.ops.aten.complex.default"},
                      {R"({"name": "self", "arg": {"as_tensor": {"name": "linear_1"}})",
                       R"({"name": "real", "arg": {"as_tensor": {"name": "linear_1"}})"},
                      {R"({"name": "other", "arg": {"as_tensor": {"name": "scale"}})",
                       R"({"name": "imag", "arg": {"as_tensor": {"name": "scale"}})"}}),
            "outputs[output].dtype: must be Float, as the file says, got ComplexFloat");
}

}  // namespace
}  // namespace penstock
