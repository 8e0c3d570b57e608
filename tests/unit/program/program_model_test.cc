#include "engine/program/program_model.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "engine/model/model_signature.h"
#include "engine/model/skip_spec.h"
#include "engine/model/ties.h"
#include "engine/program/program_file.h"
#include "tests/unit/program/program_archives.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::shared_ptr<const ProgramModel>> Load(const std::string& name) {
  return LoadProgram(PENSTOCK_EXPORTED_FOLDER, name, RealFileSystem());
}

ModelSpec Spec(const std::string& name) {
  ModelSpec spec;
  spec.program = name;
  spec.loaded_program = *Load(name);
  return spec;
}

TEST(ProgramModel, BecomesLayersThatTheRegistryBuilds) {
  const ModelSpec spec = Spec("language.pt2");
  const absl::StatusOr<std::vector<LayerSpec>> expanded = ExpandModel(spec);
  ASSERT_TRUE(expanded.ok()) << expanded.status();
  const absl::StatusOr<std::vector<NamedLayer>> shapes = BuildLayerShapes(*expanded, BuildOptionsOf(spec));
  const absl::StatusOr<std::vector<NamedLayer>> layers = BuildLayers(*expanded, 0, BuildOptionsOf(spec));
  ASSERT_TRUE(shapes.ok()) << shapes.status();
  ASSERT_TRUE(layers.ok()) << layers.status();
  ASSERT_EQ(layers->size(), expanded->size());
  std::vector<std::string> names;
  std::vector<SkipDeclaration> skips;
  for (size_t i = 0; i < layers->size(); ++i) {
    names.push_back((*layers)[i].name);
    skips.push_back((*layers)[i].layer->skips());
    for (const NamedTensor& parameter : (*shapes)[i].layer->parameters()) EXPECT_TRUE(parameter.tensor.is_meta());
  }
  EXPECT_TRUE(CheckSkips(names, skips).ok()) << CheckSkips(names, skips);
  const absl::StatusOr<std::vector<TieGroup>> ties = CheckTies(TiesOf(spec), *shapes);
  ASSERT_TRUE(ties.ok()) << ties.status();
  EXPECT_EQ(ties->size(), 1);
  EXPECT_TRUE(SignatureOf(*shapes, nullptr).ok());
  EXPECT_EQ((*layers)[0].TensorName("embedding.weight"), "embedding.weight") << "as in state_dict()";
}

TEST(ProgramModel, IsNoKindByItself) {
  const absl::Status status = BuildLayers({{"exported_program", "x", {{"layer", int64_t{0}}}}}, 0).status();
  EXPECT_EQ(ReasonOf(status), "SPEC_INVALID");
  EXPECT_THAT(std::string(status.message()), HasSubstr("named by spec.model.program"));
}

TEST(ProgramModel, ExcludesOtherModelsAndPrecisions) {
  ModelSpec named = Spec("conv_net.pt2");
  named.name = "mlp";
  EXPECT_THAT(std::string(ExpandModel(named).status().message()),
              HasSubstr("a program, a name or layers, got several"));
  ModelSpec cast = Spec("conv_net.pt2");
  cast.dtype = "bf16";
  EXPECT_EQ(ValuesOf(ExpandModel(cast).status())["field"], "spec.model.dtype");
  ModelSpec missing;
  missing.program = "conv_net.pt2";
  EXPECT_EQ(ReasonOf(ExpandModel(missing).status()), "MODEL_NOT_FOUND");
}

TEST(ProgramModel, RefusesModesThatTakeOrGiveOtherThings) {
  const absl::StatusOr<ExportedProgram> both =
      ReadExportedProgram(testing::Shared(testing::GoldenFile("conv_net_both.pt2")));
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_TRUE(ProgramModel::Create(*both).ok());
  ExportedProgram other_output = *both;
  other_output.training->outputs.at(0).name = "another";
  ExportedProgram other_rank = *both;
  other_rank.training->inputs.at(0).shape.pop_back();
  for (const ExportedProgram& program : {other_output, other_rank}) {
    const absl::Status refused = ProgramModel::Create(program).status();
    EXPECT_EQ(ReasonOf(refused), "SPEC_INVALID");
    EXPECT_THAT(std::string(refused.message()), HasSubstr("must take and give the same in both modes"));
  }
}

TEST(LoadProgram, TakesNamesOfTheRootOnly) {
  for (const std::string name :
       {"../conv_net.pt2", "/etc/passwd", "a/b.pt2", ".hidden.pt2", "-x.pt2", "x.pt", ".pt2", "a\\b.pt2", ""}) {
    const absl::Status status = Load(name).status();
    EXPECT_EQ(ReasonOf(status), "SPEC_INVALID") << name;
    EXPECT_EQ(ValuesOf(status)["field"], "spec.model.program") << name;
  }
  EXPECT_EQ(ReasonOf(Load("absent.pt2").status()), "MODEL_NOT_FOUND");
  EXPECT_EQ(ReasonOf(LoadProgram("", "conv_net.pt2", RealFileSystem()).status()), "MODEL_NOT_FOUND");
  EXPECT_TRUE(Load("conv_net.pt2").ok());
}

}  // namespace
}  // namespace penstock
