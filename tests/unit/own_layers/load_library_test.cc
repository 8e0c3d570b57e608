#include "engine/own_layers/load_library.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/model/layer_registry.h"

namespace penstock {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Library() { return std::getenv("PENSTOCK_TEST_LAYERS"); }

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string Write(const std::string& name, const std::string& content) {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

// Replaces every occurrence in a text, by one of the same length.
std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  EXPECT_EQ(from.size(), to.size());
  EXPECT_THAT(text, HasSubstr(from));
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) text.replace(at, to.size(), to);
  return text;
}

void ExpectRefused(const std::string& file, const std::string& problem) {
  const absl::Status status = LoadLayerLibraries({file});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(ReasonOf(status), "FIELD_INVALID");
  EXPECT_THAT(std::string(status.message()), HasSubstr("--layer-library: " + problem));
  EXPECT_THAT(std::string(status.message()), HasSubstr("got " + file)) << "the file is named";
}

void ExpectRefusedIfItsRegistration(const std::string& fault, const std::string& problem) {
  setenv("PENSTOCK_TEST_LAYERS_FAULT", fault.c_str(), 1);
  ExpectRefused(Library(), problem);
  unsetenv("PENSTOCK_TEST_LAYERS_FAULT");
}

TEST(LoadLayerLibraries, RefusesWhatIsNoLibraryOfLayers) {
  ExpectRefused("/nowhere/layers.so", "must name a file that can be read (");
  ExpectRefused(::testing::TempDir(), "must name a regular file");
  ExpectRefused("/dev/zero", "must name a regular file");
  ExpectRefused(Write("text.so", "these are words"), "is not a shared object");
  ExpectRefused(Write("empty.so", ""), "is not a shared object");
  ExpectRefused(Write("other.so", Replaced(Content(Library()), "penstock-layer-library:", "penstock-other-library:")),
                "is not a library of layers: it has no PENSTOCK_LAYER_LIBRARY");
}

TEST(LoadLayerLibraries, RefusesAnotherBuildWithBothVersions) {
  const std::string good = Content(Library());
  ExpectRefused(Write("penstock.so", Replaced(good, "library:Penstock 0.", "library:Penstock 9.")),
                "was built for Penstock 9.");
  const std::string torch = Write("torch.so", Replaced(good, " and LibTorch 2.", " and LibTorch 1."));
  ExpectRefused(torch, "was built for Penstock 0.");
  const absl::Status status = LoadLayerLibraries({torch});
  EXPECT_THAT(std::string(status.message()), HasSubstr(" and LibTorch 1.11.0, but this daemon is of Penstock 0."));
  EXPECT_THAT(std::string(status.message()), HasSubstr(" and LibTorch 2.11.0, got "));
}

TEST(LoadLayerLibraries, RefusesWhatCannotBeLinked) {
  const std::string good = Content(Library());
  ExpectRefused(Write("unknown.so", Replaced(good, "_ZN8penstock9OnlyInput", "_ZN8penstock9OnlyInpux")),
                "can't be loaded (");
}

TEST(LoadLayerLibraries, RefusesARegistrationThatFails) {
  ExpectRefusedIfItsRegistration("throws", "fails when it registers its kinds (these kinds are not ready)");
  ExpectRefusedIfItsRegistration("throws_nonsense", "fails when it registers its kinds (an exception of unknown type)");
  ExpectRefusedIfItsRegistration("nothing", "registers no kind");
  ExpectRefusedIfItsRegistration("misnamed", "registers kind 'Test-Kind', which needs");
  ExpectRefusedIfItsRegistration("digit_first", "registers kind '2_test', which needs");
  ExpectRefusedIfItsRegistration("no_factory", "registers kind 'test_no_factory', which needs");
  ExpectRefusedIfItsRegistration("built_in", "registers kind linear, which is known already");
  EXPECT_THAT(LayerKinds(), Not(Contains("test_no_factory")));
}

// One test: a library stays loaded.
TEST(LoadLayerLibraries, AddsKindsThatAreBuiltAndRunLikeOthers) {
  ASSERT_TRUE(LoadLayerLibraries({Library()}).ok());
  EXPECT_THAT(LayerKinds(), Contains("test_twice"));
  EXPECT_THAT(LayerKinds(), Contains("test_faulty"));
  ExpectRefused(Library(), "registers kind test_twice, which is known already");

  const auto layers = *BuildLayers({{"test_twice", "a", {}}}, 0);
  EXPECT_TRUE(layers[0].layer->Forward({at::ones({2})}, {}).TensorAt(0).equal(at::mul(at::ones({2}), 2)));
  EXPECT_EQ(ValuesOf(BuildLayers({{"test_twice", "a", {{"x", true}}}}, 0).status())["field"],
            "spec.model.layers[0].options[x]");

  const std::string name = std::filesystem::path(Library()).filename();
  absl::Status status = BuildLayers({{"test_faulty", "a", {{"fault", std::string("factory")}}}}, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), "LAYER_FAILED");
  EXPECT_EQ(std::string(status.message()),
            absl::StrCat("kind test_faulty of ", name, ": this factory fails on purpose"));
  status = BuildLayers({{"test_faulty", "a", {{"fault", std::string("same_name")}}}}, 0).status();
  EXPECT_EQ(std::string(status.message()),
            absl::StrCat("kind test_faulty of ", name, ": the layer has two tensors called 'weight'"));
  status = BuildLayers({{"test_faulty", "a", {{"fault", std::string("null")}}}}, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), "LAYER_FAILED");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("kind test_faulty of ", name, ": its factory made no layer")));
}

}  // namespace
}  // namespace penstock
