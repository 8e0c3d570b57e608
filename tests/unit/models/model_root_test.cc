#include "server/models/model_root.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "engine/base/error.h"
#include "engine/program/program_model.h"
#include "engine/wire/sha256.h"
#include "tests/unit/models/model_folder.h"

namespace penstock::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ModelRoot, TellsWhatAFileHolds) {
  ModelFolder folder;
  folder.Put("language.pt2", GoldenFile("language.pt2"));
  ModelRoot root(folder.Options());
  const absl::StatusOr<ModelDescription> model = root.Describe("language.pt2");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->bytes, static_cast<int64_t>(GoldenFile("language.pt2").size()));
  EXPECT_EQ(model->digest, Sha256::Of(GoldenFile("language.pt2")));
  EXPECT_EQ(model->signature.inputs.size(), 2u);
  EXPECT_TRUE(model->evaluation_graph);
  EXPECT_FALSE(model->training_graph);
  ASSERT_EQ(model->dimensions.size(), 2u);
  EXPECT_THAT(model->dimensions[0].inputs, ElementsAre("ids[0]", "mask[0]"));
  EXPECT_EQ(model->dimensions[0].range.most, 4096);
  EXPECT_EQ(model->tied_names.size(), 1u);
  EXPECT_EQ(model->tied_names.at("head.weight"), "embedding.weight");
  int64_t sum = 0;
  for (const ModelDescription::LayerInfo& layer : model->layers) sum += layer.parameters;
  EXPECT_EQ(sum, model->parameters) << "a tied weight counts once";
  EXPECT_GT(model->operators.at("aten.linear.default"), 0);
}

TEST(ModelRoot, ReadsAFileAgainWhenItChanges) {
  ModelFolder folder;
  folder.Put("a.pt2", GoldenFile("language.pt2"));
  ModelRoot root(folder.Options());
  const std::string before = root.Describe("a.pt2")->digest;
  folder.Put("a.pt2", GoldenFile("conv_net.pt2"));
  EXPECT_NE(root.Describe("a.pt2")->digest, before);
  folder.Put("a.pt2", "rubbish");
  EXPECT_EQ(ReasonOf(root.Describe("a.pt2").status()), "SPEC_INVALID");
  std::filesystem::remove(folder.path() + "/a.pt2");
  EXPECT_EQ(ReasonOf(root.Describe("a.pt2").status()), "MODEL_NOT_FOUND");
}

TEST(ModelRoot, ReadsAFileAgainThatHidesItsChange) {
  ModelFolder folder;
  std::string bytes = GoldenFile("language.pt2");
  folder.Put("a.pt2", bytes);
  ModelRoot root(folder.Options());
  const std::string before = root.Describe("a.pt2")->digest;
  const auto changed = std::filesystem::last_write_time(folder.path() + "/a.pt2");
  folder.Put("a.pt2", std::string(bytes.size(), 'x'));
  std::filesystem::last_write_time(folder.path() + "/a.pt2", changed);  // as cp -p does
  EXPECT_EQ(ReasonOf(root.Describe("a.pt2").status()), "SPEC_INVALID");
}

TEST(ModelRoot, OneListReadsABoundedAmountAndKnowsItAfterwards) {
  ModelFolder folder;
  const std::string bytes = GoldenFile("conv_net.pt2");
  for (const char* name : {"a.pt2", "b.pt2", "c.pt2"}) folder.Put(name, bytes);
  ModelRoot::Options options = folder.Options();
  options.max_list_bytes = 2 * static_cast<int64_t>(bytes.size());
  ModelRoot root(options);
  const auto names = [&](const std::string& after, int limit) {
    std::vector<std::string> found;
    const ModelRoot::Page page = *root.List(after, limit);
    for (const ModelDescription& model : page.models) found.push_back(model.name);
    if (page.more) found.push_back("...");
    return found;
  };
  EXPECT_THAT(names("", 10), ElementsAre("a.pt2", "b.pt2", "..."));
  EXPECT_THAT(names("b.pt2", 10), ElementsAre("c.pt2"));
  EXPECT_THAT(names("", 10), ElementsAre("a.pt2", "b.pt2", "c.pt2")) << "nothing is read again";
  EXPECT_THAT(names("", 2), ElementsAre("a.pt2", "b.pt2", "..."));
  options.max_list_bytes = 1;
  ModelRoot careful(options);
  EXPECT_EQ(careful.List("", 10)->models.size(), 1u) << "one at least";
}

TEST(ModelRoot, ReadsNothingThatDoesNotFit) {
  ModelFolder folder;
  folder.Put("large.pt2", std::string(kMaxModelBytes + 1, 'x'));
  folder.Put("language.pt2", GoldenFile("language.pt2"));
  ModelRoot::Options options = folder.Options();
  MemoryLedger memory(2 * kMaxModelBytes);
  options.memory = &memory;
  MemoryReservation other = *memory.Take({MemoryClass::kPipelines, "ann", "gpt"}, 2 * kMaxModelBytes - 1000);
  ModelRoot root(options);
  EXPECT_EQ(ReasonOf(root.Describe("large.pt2").status()), "MODEL_TOO_LARGE");
  const absl::Status full = root.Describe("language.pt2").status();
  EXPECT_EQ(ReasonOf(full), "HOST_MEMORY");
  EXPECT_EQ(ValuesOf(full)["model"], "language.pt2");
  EXPECT_THAT(std::string(full.message()), HasSubstr("held: pipelines (pipeline gpt, caller ann) "));
  ModelSpec spec;
  spec.program = "language.pt2";
  EXPECT_EQ(ReasonOf(root.Load(&spec)), "HOST_MEMORY");
  other.Release();
  EXPECT_TRUE(root.Describe("language.pt2").ok()) << "a want of memory passes";
  EXPECT_EQ(memory.bytes(), 0) << "it was only read";
  ASSERT_TRUE(root.Load(&spec).ok());
  EXPECT_EQ(memory.bytes(), static_cast<int64_t>(GoldenFile("language.pt2").size()));
  spec.loaded_program = nullptr;
  EXPECT_EQ(memory.bytes(), 0);
}

TEST(ModelRoot, LoadsWhatASpecificationNames) {
  ModelFolder folder;
  folder.Put("a.pt2", GoldenFile("language.pt2"));
  ModelRoot root(folder.Options());
  ModelSpec spec;
  EXPECT_TRUE(root.Load(&spec).ok());
  EXPECT_EQ(spec.loaded_program, nullptr) << "it names none";
  spec.program = "a.pt2";
  ASSERT_TRUE(root.Load(&spec).ok());
  EXPECT_EQ(spec.program_digest, Sha256::Of(GoldenFile("language.pt2")));
  const int modules = spec.loaded_program->size();
  spec.program_cuts = ProgramCuts::kNodes;
  ASSERT_TRUE(root.Load(&spec).ok()) << "the digest fits";
  EXPECT_GT(spec.loaded_program->size(), modules);
  folder.Put("a.pt2", GoldenFile("conv_net.pt2"));
  const absl::Status changed = root.Load(&spec);
  EXPECT_EQ(ReasonOf(changed), "MODEL_MISMATCH");
  EXPECT_THAT(std::string(changed.message()), HasSubstr("another one"));
  for (const char* bad : {"../a.pt2", "b.pt2", "a"}) {
    spec = ModelSpec();
    spec.program = bad;
    EXPECT_EQ(ValuesOf(root.Load(&spec))["field"], "spec.model.program") << bad;
  }
}

TEST(ModelRoot, DeletesNothingThatIsUsed) {
  ModelFolder folder;
  folder.Put("a.pt2", GoldenFile("language.pt2"));
  ModelRoot::Options options = folder.Options();
  std::vector<std::string> users = {"mine"};
  options.users = [&](const std::string& model) { return model == "a.pt2" ? users : std::vector<std::string>(); };
  ModelRoot root(options);
  const absl::Status used = root.Delete("a.pt2");
  EXPECT_EQ(ReasonOf(used), "MODEL_IN_USE");
  EXPECT_EQ(ValuesOf(used)["pipeline"], "mine");
  users.clear();
  EXPECT_TRUE(root.Delete("a.pt2").ok());
  EXPECT_THAT(folder.Names(), ElementsAre());
  EXPECT_EQ(ReasonOf(root.Delete("a.pt2")), "MODEL_NOT_FOUND");
}

// A disk that calls back in the middle of a read.
class InterruptedDisk : public FaultyFileSystem {
 public:
  InterruptedDisk() : FaultyFileSystem(RealFileSystem()) {}
  absl::Status ReadInto(const std::string& path, const Arrived& arrived, std::string* bytes) override {
    if (interrupt != nullptr) interrupt();
    return FaultyFileSystem::ReadInto(path, arrived, bytes);
  }
  std::function<void()> interrupt;
};

TEST(ModelRoot, DeletesNothingThatIsBeingLoaded) {
  ModelFolder folder;
  folder.Put("a.pt2", GoldenFile("language.pt2"));
  InterruptedDisk disk;
  ModelRoot::Options options = folder.Options();
  options.files = &disk;
  ModelRoot root(options);
  absl::Status deleted;
  disk.interrupt = [&] { deleted = root.Delete("a.pt2"); };
  ModelSpec spec;
  spec.program = "a.pt2";
  EXPECT_TRUE(root.Load(&spec).ok());
  EXPECT_EQ(ReasonOf(deleted), "MODEL_IN_USE");
  EXPECT_TRUE(root.Delete("a.pt2").ok()) << "it is loaded";
}

// A disk that tells of half of a file, and then fails.
class HalvingDisk : public FaultyFileSystem {
 public:
  HalvingDisk() : FaultyFileSystem(RealFileSystem()) {}
  absl::Status ReadInto(const std::string& path, const Arrived& arrived, std::string* bytes) override {
    const absl::Status read = FaultyFileSystem::ReadInto(path, nullptr, bytes);
    if (!read.ok()) return read;
    arrived(std::string_view(*bytes).substr(0, bytes->size() / 2));
    return absl::InternalError("read: the disk is gone");
  }
};

TEST(ModelRoot, AFileThatStopsComingIsTheErrorOfItsRead) {
  ModelFolder folder;
  folder.Put("a.pt2", std::string(1'000'000, 'x'));  // whose digest takes longer than the read
  HalvingDisk disk;
  ModelRoot::Options options = folder.Options();
  options.files = &disk;
  ModelSpec spec;
  spec.program = "a.pt2";
  for (int i = 0; i < 20; ++i) {
    EXPECT_THAT(std::string(ModelRoot(options).Load(&spec).message()), HasSubstr("the disk is gone"));
  }
  EXPECT_EQ(spec.program_digest, "");
}

TEST(ModelRoot, ACopyIsKeptAndReadWhateverTheFolderHas) {
  ModelFolder folder;
  ModelFolder journal;
  const std::string kept = journal.path() + "/program";
  folder.Put("a.pt2", GoldenFile("language.pt2"));
  ModelRoot root(folder.Options());
  ModelSpec spec;
  spec.program = "a.pt2";
  ASSERT_TRUE(root.Load(&spec, kept).ok());
  const std::string digest = spec.program_digest;
  for (const char* now : {"another one", "none"}) {
    if (now == std::string("none")) {
      std::filesystem::remove(folder.path() + "/a.pt2");
    } else {
      folder.Put("a.pt2", GoldenFile("conv_net.pt2"));
    }
    for (const std::string& wanted : {digest, std::string()}) {
      spec.program_digest = wanted;
      spec.loaded_program = nullptr;
      ASSERT_TRUE(root.Load(&spec, kept).ok()) << now;
      EXPECT_EQ(spec.program_digest, digest);
      EXPECT_NE(spec.loaded_program, nullptr);
    }
  }
  EXPECT_EQ(ReasonOf(root.Load(&spec, kept + "-of-another")), "MODEL_NOT_FOUND");
  EXPECT_THAT(journal.Names(), ElementsAre("program"));
  journal.Put("program", GoldenFile("conv_net.pt2"));
  const absl::Status changed = root.Load(&spec, kept);
  EXPECT_EQ(ReasonOf(changed), "MODEL_MISMATCH");
  EXPECT_THAT(std::string(changed.message()), HasSubstr("the file in the journal"));
}

TEST(ModelRoot, ALoadThatThrowsLeavesNoMark) {
  ModelFolder folder;
  ModelRoot root(folder.Options());
  folder.Put("a.pt2", GoldenFile("language.pt2"));
  folder.files().ThrowIn("Read");
  ModelSpec spec;
  spec.program = "a.pt2";
  EXPECT_THROW(root.Load(&spec).IgnoreError(), std::bad_alloc);
  EXPECT_TRUE(root.Delete("a.pt2").ok()) << "nobody loads it any more";
}

TEST(ModelRoot, WithoutAFolderHasNoModels) {
  ModelFolder folder;
  ModelRoot::Options options = folder.Options();
  options.root = "";
  ModelRoot root(options);
  EXPECT_TRUE(root.List("", 10)->models.empty());
  EXPECT_EQ(ReasonOf(root.Describe("a.pt2").status()), "MODEL_NOT_FOUND");
}

}  // namespace
}  // namespace penstock::testing
