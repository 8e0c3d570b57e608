#include "engine/program/exported_program.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/model/safetensors.h"
#include "engine/program/program_names.h"
#include "tests/unit/program/program_archives.h"

namespace penstock {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::GoldenFile;
using ::testing::HasSubstr;
using testing::Repacked;
using testing::Shared;
using testing::ZipWriter;

constexpr char kModel[] = "models/model.json";
constexpr char kWeights[] = "data/weights/model_weights_config.json";

ExportedProgram Golden(const std::string& file) {
  absl::StatusOr<ExportedProgram> program = ReadExportedProgram(Shared(GoldenFile(file)));
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

// A refusal that names the field.
void ExpectRefused(const absl::StatusOr<ExportedProgram>& program, const std::string& sentence) {
  ASSERT_FALSE(program.ok()) << "should say: " << sentence;
  EXPECT_EQ(program.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(program.status()), "SPEC_INVALID");
  EXPECT_THAT(std::string(program.status().message()), HasSubstr(sentence));
  EXPECT_LT(program.status().message().size(), 512);
}

const ProgramTensor& TensorNamed(const ExportedProgram& program, const std::string& name) {
  return *std::find_if(program.tensors.begin(), program.tensors.end(),
                       [&](const ProgramTensor& tensor) { return tensor.name == name; });
}

TEST(ExportedProgram, ReadsTensorsWithTheirNamesAndKinds) {
  const ExportedProgram program = Golden("conv_net.pt2");
  const ProgramTensor& weight = TensorNamed(program, "layer1.0.conv1.weight");
  EXPECT_EQ(weight.kind, ProgramTensor::Kind::kParameter);
  EXPECT_EQ(weight.sizes, (std::vector<int64_t>{4, 4, 3, 3}));
  EXPECT_EQ(TensorNamed(program, "layer1.0.bn1.running_var").kind, ProgramTensor::Kind::kBuffer);
  EXPECT_EQ(TensorNamed(program, "layer1.0.bn1.num_batches_tracked").type, at::kLong);
  EXPECT_TRUE(at::equal(LoadTensor(TensorNamed(program, "layer1.0.bn1.running_var"), false), at::ones({4})));
  EXPECT_EQ(LoadTensor(weight, true).sizes(), weight.sizes);
  EXPECT_TRUE(LoadTensor(weight, true).is_meta());
}

TEST(ExportedProgram, ReadsGraphsWithModulesInputsAndOutputs) {
  const ExportedProgram program = Golden("language.pt2");
  ASSERT_EQ(program.graph.inputs.size(), 2);
  EXPECT_EQ(program.graph.inputs[0].name, "ids");
  EXPECT_EQ(program.graph.inputs[0].type, at::kLong);
  ASSERT_EQ(program.graph.inputs[1].shape.size(), 2);
  EXPECT_EQ(program.graph.inputs[1].shape[1].symbol, program.graph.inputs[0].shape[1].symbol);
  EXPECT_EQ(program.graph.symbols.at(program.graph.inputs[0].shape[1].symbol).most, 64);
  ASSERT_EQ(program.graph.outputs.size(), 3);
  EXPECT_EQ(program.graph.outputs[0].name, "logits");
  EXPECT_EQ(program.graph.outputs[1].name, "hidden");
  EXPECT_FALSE(program.graph.outputs[2].tensor) << "None";
  std::vector<std::string> targets;
  for (const ProgramNode& node : program.graph.nodes) {
    if (node.modules.empty() || node.modules.back().name != "blocks.1.norm2") continue;
    targets.push_back(node.target);
    EXPECT_EQ(node.modules.back().type, "torch.nn.modules.normalization.LayerNorm");
    EXPECT_EQ(node.modules.front().name, "");
  }
  EXPECT_THAT(targets, ElementsAre("torch.ops.aten.layer_norm.default"));
  EXPECT_FALSE(program.training.has_value());
}

TEST(ExportedProgram, UnfoldsGraphsInsideGraphsAndKnowsThatTheyHaveNoGradients) {
  const ExportedProgram program = Golden("language.pt2");
  int without = 0;
  for (const ProgramNode& node : program.graph.nodes) {
    EXPECT_THAT(node.target, ::testing::Not(HasSubstr("higher_order")));
    without += node.gradients ? 0 : 1;
    if (node.target == "torch.ops.aten.cos.default") {
      EXPECT_FALSE(node.gradients);
    }
  }
  EXPECT_GT(without, 5);
}

TEST(ExportedProgram, APickleIsToldWhatToWriteInstead) {
  ZipWriter zip;
  zip.Add({"net/data.pkl", "pickled"});
  zip.Add({"net/version", "3"});
  const absl::Status refused = ReadExportedProgram(Shared(zip.Bytes()), {}).status();
  EXPECT_EQ(ReasonOf(refused), "SPEC_INVALID");
  EXPECT_THAT(
      std::string(refused.message()),
      HasSubstr("must be an exported program (penstock.export, torch.export.save), not a pickle, got data.pkl"));
}

TEST(ExportedProgram, FindsTiedWeights) {
  const ExportedProgram program = Golden("language.pt2");
  const ProgramTensor& embedding = TensorNamed(program, "embedding.weight");
  const ProgramTensor& head = TensorNamed(program, "head.weight");
  EXPECT_EQ(embedding.same_as, -1);
  EXPECT_EQ(head.same_as, &embedding - program.tensors.data());
  for (const auto& [value, tensor] : program.graph.tensors) EXPECT_NE(&program.tensors[tensor], &head);
}

TEST(ExportedProgram, NamesTiedWeightsAsTheModelMeetsThemFirst) {
  Repacked swapped("language.pt2");  // now the name that comes first in the alphabet comes last in the model
  for (const std::string record : {kModel, kWeights}) {
    std::string& text = swapped[record];
    for (size_t at = 0; (at = text.find("\"head.weight\"", at)) != std::string::npos; ++at) {
      text.replace(at, 13, "\"a.weight\"");
    }
  }
  const absl::StatusOr<ExportedProgram> program = swapped.Read();
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(TensorNamed(*program, "embedding.weight").same_as, -1);
  EXPECT_EQ(TensorNamed(*program, "a.weight").same_as,
            &TensorNamed(*program, "embedding.weight") - program->tensors.data());
}

TEST(ExportedProgram, ReadsBothModes) {
  const ExportedProgram program = Golden("conv_net_both.pt2");
  ASSERT_TRUE(program.training.has_value());
  const auto counts = [](const ProgramGraph& graph) {
    return std::count_if(graph.nodes.begin(), graph.nodes.end(),
                         [](const ProgramNode& node) { return node.target == "torch.ops.aten.add_.Tensor"; });
  };
  EXPECT_EQ(counts(*program.training) - counts(program.graph), 6) << "one counter for each batch norm";
}

TEST(ExportedProgram, HoldsWhatEagerPyTorchHolds) {
  const ExportedProgram program = Golden("conv_net.pt2");
  const absl::StatusOr<Safetensors> reference = ReadSafetensors(GoldenFile("conv_net.safetensors"));
  ASSERT_TRUE(reference.ok());
  int compared = 0;
  for (const NamedTensor& named : reference->tensors) {
    if (named.name.rfind("gradient.", 0) != 0) continue;
    EXPECT_EQ(LoadTensor(TensorNamed(program, named.name.substr(9)), false).sizes(), named.tensor.sizes());
    ++compared;
  }
  EXPECT_EQ(compared, 24);
}

TEST(ExportedProgram, ATensorHasNoMoreThanItsOwnElements) {
  const float storage[] = {0, 1, 2, 3, 4, 5, 6};
  const ProgramTensor tensor = {.sizes = {2, 2},
                                .strides = {1, 3},
                                .offset = 1,
                                .bytes = {reinterpret_cast<const char*>(storage), sizeof(storage)}};
  const at::Tensor loaded = LoadTensor(tensor, /*shapes_only=*/false);
  EXPECT_TRUE(loaded.equal(at::tensor({1.0f, 4.0f, 2.0f, 5.0f}).view({2, 2})));
  EXPECT_EQ(loaded.storage().nbytes(), 4 * sizeof(float)) << "what lies between them is not kept";
}

TEST(ExportedProgram, RefusesTruncatedFiles) {
  const std::string whole = GoldenFile("counting_both.pt2");
  for (size_t size = 0; size < whole.size(); size += 1 + size / 40) {
    const absl::StatusOr<ExportedProgram> program = ReadExportedProgram(Shared(whole.substr(0, size)));
    ASSERT_FALSE(program.ok()) << size;
    EXPECT_EQ(ReasonOf(program.status()), "SPEC_INVALID");
  }
}

TEST(ExportedProgram, RefusesAFlippedBitInWhatItReads) {
  const std::string whole = GoldenFile("counting_both.pt2");
  std::string flipped = whole;
  flipped[whole.find("\"nodes\"") + 3] ^= 1;
  ExpectRefused(ReadExportedProgram(Shared(flipped)), "content does not fit its checksum, got models/model.json");
}

TEST(ExportedProgram, RefusesPickles) {
  Repacked flagged("counting_both.pt2");
  flagged.Replace(kWeights, "\"use_pickle\": false", "\"use_pickle\": true");
  ExpectRefused(flagged.Read(), "must be raw elements, got a pickle");
  Repacked hidden("counting_both.pt2");
  hidden["data/weights/weight_0"] = std::string("\x80\x02}q\x00X\x05\x00\x00\x00", 12) + std::string(200, 'x');
  ExpectRefused(hidden.Read(), "data/weights/weight_0: must hold the 96 bytes of its tensors, got 212");
}

TEST(ExportedProgram, RefusesLyingSizes) {
  Repacked larger("counting_both.pt2");
  larger.Replace(kWeights, "{\"as_int\": 4}", "{\"as_int\": 4000000000000}");
  ExpectRefused(larger.Read(), "must lie within its record");
  Repacked overflowing("counting_both.pt2");
  overflowing.Replace(kWeights, "{\"as_int\": 4}", "{\"as_int\": 9223372036854775807}");
  ExpectRefused(overflowing.Read(), "must lie within its record");
  Repacked repeated("counting_both.pt2");  // a small record that would become a large tensor
  repeated.Replace(kWeights, "\"sizes\": [{\"as_int\": 6}, {\"as_int\": 4}]",
                   "\"sizes\": [{\"as_int\": 6000000000}, {\"as_int\": 4}]");
  repeated.Replace(kWeights, "\"strides\": [{\"as_int\": 4}, {\"as_int\": 1}]",
                   "\"strides\": [{\"as_int\": 0}, {\"as_int\": 1}]");
  ExpectRefused(repeated.Read(), "must lie within its record");
  Repacked negative("counting_both.pt2");
  negative.Replace(kWeights, "\"strides\": [{\"as_int\": 4}", "\"strides\": [{\"as_int\": -4}");
  ExpectRefused(negative.Read(), "must have sizes and strides from 0, got -4");
  Repacked shifted("counting_both.pt2");
  shifted.Replace(kWeights, "\"storage_offset\": {\"as_int\": 0}", "\"storage_offset\": {\"as_int\": 1}");
  ExpectRefused(shifted.Read(), "must lie within its record");
}

TEST(ExportedProgram, RefusesDanglingAndCyclicGraphs) {
  Repacked dangling("counting_both.pt2");
  dangling.Replace(kModel, R"({"name": "self", "arg": {"as_tensor": {"name": "linear"}})",
                   R"({"name": "self", "arg": {"as_tensor": {"name": "nowhere"}})");
  ExpectRefused(dangling.Read(), "node tanh: uses a value that no operator before it makes, got nowhere");
  Repacked cyclic("counting_both.pt2");
  cyclic.Replace(kModel, R"({"name": "self", "arg": {"as_tensor": {"name": "linear"}})",
                 R"({"name": "self", "arg": {"as_tensor": {"name": "tanh"}})");
  ExpectRefused(cyclic.Read(), "uses a value that no operator before it makes, got tanh");
  Repacked twice("counting_both.pt2");
  twice.Replace(kModel, R"("outputs": [{"as_tensor": {"name": "tanh"}}])",
                R"("outputs": [{"as_tensor": {"name": "linear"}}])");
  ExpectRefused(twice.Read(), "a value must be made once, got linear");
}

TEST(ExportedProgram, RefusesOtherVersionsByName) {
  Repacked schema("counting_both.pt2");
  schema.Replace(kModel, "\"schema_version\": {\"major\": 8", "\"schema_version\": {\"major\": 9");
  ExpectRefused(schema.Read(), "schema_version must be 8.0 to 8.17, as PyTorch up to 2.11 writes it, got 9.17");
  Repacked operators("counting_both.pt2");
  operators.Replace(kModel, "\"opset_version\": {\"aten\": 10}", "\"opset_version\": {\"mine\": 10}");
  ExpectRefused(operators.Read(), "opset_version must be aten 10, got mine 10");
  Repacked format("counting_both.pt2");
  format["archive_version"] = "7";
  ExpectRefused(format.Read(), "archive_version: must be 0, got 7");
  Repacked order("counting_both.pt2");
  order["byteorder"] = "big";
  ExpectRefused(order.Read(), "byteorder: must be little, got big");
}

TEST(ExportedProgram, RefusesWhatItDoesNotKnowByName) {
  Repacked field("counting_both.pt2");
  field.Replace(kModel, "\"outputs\"", "\"surprise\": 1, \"outputs\"");
  ExpectRefused(field.Read(), "has an unknown field, got surprise");
  Repacked higher("language.pt2");
  higher.Replace(kModel, "wrap_with_set_grad_enabled", "while_loop");
  ExpectRefused(higher.Read(), "higher-order operator is not supported, got torch.ops.higher_order.while_loop");
  Repacked mutation("counting_both.pt2");
  mutation.Replace(kModel, "\"output_specs\": [{\"user_output\": {",
                   "\"output_specs\": [{\"buffer_mutation\": {\"buffer_name\": \"mean\", ");
  ExpectRefused(mutation.Read(), "must be what the model gives: export it without run_decompositions");
  Repacked two("counting_both.pt2");
  two["models/other.json"] = "{}";
  ExpectRefused(two.Read(), "must hold one model, models/model.json, got models/other.json");
}

TEST(ExportedProgram, RefusesJsonThatIsDeepRepeatedOrBroken) {
  Repacked deep("counting_both.pt2");
  deep[kModel] = std::string(1'000'000, '[');
  ExpectRefused(deep.Read(), "models/model.json: must be at most 48 deep");
  Repacked repeated("counting_both.pt2");
  repeated.Replace(kModel, "\"nodes\"", "\"inputs\": [], \"nodes\"");
  ExpectRefused(repeated.Read(), "models/model.json: must not repeat a key, got inputs");
  Repacked broken("counting_both.pt2");
  broken[kModel].resize(broken[kModel].size() / 2);
  ExpectRefused(broken.Read(), "models/model.json: must be valid JSON");
  Repacked large("counting_both.pt2");
  const absl::StatusOr<ExportedProgram> refused = ReadExportedProgram(Shared(large.Bytes()), {.graph_bytes = 1000});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused.status()), "TENSOR_TOO_LARGE");
}

TEST(ExportedProgram, SurvivesLongExpressions) {
  Repacked nested("counting_both.pt2");
  std::string expression;
  for (int i = 0; i < 100'000; ++i) expression += "Mul(";
  nested.Replace(kModel, "\"expr_str\": \"Symbol('s77', positive=True, integer=True)\"",
                 "\"expr_str\": \"" + expression + "\"");
  ExpectRefused(nested.Read(), "has too long a dimension");
}

// The names' record of a program that takes x and gives output.
absl::StatusOr<ExportedProgram> Named(const std::string& record, const std::string& file = "counting_both.pt2") {
  Repacked named(file);
  named[kNamesRecord] = record;
  return named.Read();
}

TEST(ProgramNames, AreTheAuthorsInBothGraphs) {
  const std::string longest(128, 'N');
  const absl::StatusOr<ExportedProgram> program = Named(R"({"inputs": ["INPUT0"], "outputs": [")" + longest + R"("]})");
  ASSERT_TRUE(program.ok()) << program.status();
  for (const ProgramGraph& graph : {program->graph, *program->training}) {
    EXPECT_EQ(graph.inputs[0].name, "INPUT0");
    EXPECT_EQ(graph.outputs[0].name, longest);
  }
  const absl::StatusOr<ExportedProgram> two =
      Named(R"({"inputs": ["x", "X"], "outputs": ["a b/c:0", "hidden", "none"]})", "language.pt2");
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->graph.inputs[0].name, "x");
  EXPECT_EQ(two->graph.inputs[1].name, "X");
  EXPECT_EQ(two->graph.outputs[0].name, "a b/c:0");
}

TEST(ProgramNames, AFileThatLiesIsRefusedByEntry) {
  const std::string in = "exported program extra/penstock_names.json";
  ExpectRefused(Named(R"({"inputs": [""], "outputs": ["y"]})"), in + ": inputs[0]: must be 1 to 128 printable");
  ExpectRefused(Named(R"({"inputs": ["a\nb"], "outputs": ["y"]})"), in + ": inputs[0]: must be 1 to 128 printable");
  ExpectRefused(Named(R"({"inputs": ["x"], "outputs": ["\u00e9"]})"), in + ": outputs[0]: must be 1 to 128 printable");
  ExpectRefused(Named(R"({"inputs": [")" + std::string(129, 'x') + R"("], "outputs": ["y"]})"), in + ": inputs[0]");
  ExpectRefused(Named(R"({"inputs": ["x"], "outputs": [7]})"), in + ": outputs[0]");
  ExpectRefused(Named(R"({"inputs": [], "outputs": ["y"]})"), in + ": inputs must name each of 1, got 0");
  ExpectRefused(Named(R"({"inputs": ["x"], "outputs": ["y", "z"]})"), in + ": outputs must name each of 1, got 2");
  ExpectRefused(Named(R"({"inputs": ["x"]})"), in);
  ExpectRefused(Named(R"({"inputs": "x", "outputs": ["y"]})"), in);
  ExpectRefused(Named(R"({"inputs": ["x"], "outputs": ["y"], "more": 1})"), in);
  ExpectRefused(Named("[]"), in);
  ExpectRefused(Named(R"({"inputs": ["x", "x"], "outputs": ["a", "b", "c"]})", "language.pt2"),
                in + ": inputs[1]: must not repeat, got x");
}

// Thousands of damaged files, the checksums put right so that the damage gets in. None may crash or take much memory.
TEST(ExportedProgram, SurvivesDamagedRecords) {
  Repacked whole("counting_both.pt2");
  const std::vector<std::string> records = {kModel, kWeights, "data/constants/model_constants_config.json",
                                            kTrainingRecord};
  uint64_t state = 20240611;  // of the sequence; printed with a failure by SCOPED_TRACE
  const auto next = [&state](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  const std::vector<std::string> tokens = {
      "-1", "0", "1e400", "null", "{}", "[]", "\"\"", "true", "9223372036854775807"};
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    SCOPED_TRACE(state);
    Repacked damaged = whole;
    std::string& text = damaged[records[next(records.size())]];
    for (uint64_t faults = 1 + next(3); faults > 0; --faults) {
      if (text.empty()) break;
      const size_t at = next(text.size());
      switch (next(4)) {
        case 0:
          text[at] = static_cast<char>(next(256));
          break;
        case 1:
          text.erase(at, 1 + next(20));
          break;
        case 2:
          text.insert(at, tokens[next(tokens.size())]);
          break;
        default: {  // a number becomes another
          const size_t digit = text.find_first_of("0123456789", at);
          if (digit != std::string::npos) text.replace(digit, 1, tokens[next(tokens.size())]);
        }
      }
    }
    const absl::StatusOr<ExportedProgram> program = damaged.Read();
    if (program.ok()) continue;
    ++refused;
    EXPECT_NE(ReasonOf(program.status()), "");
    EXPECT_NE(ReasonOf(program.status()), "BUG");
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace penstock
