#include "server/journals.h"

#include <gtest/gtest.h>

#include <memory>
#include <regex>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/file.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/device/cpu_capability.h"
#include "penstock/journal/v1/journal.pb.h"
#include "penstock/v1/state.pb.h"
#include "tests/support/fake_clock.h"
#include "tests/support/temporary_folder.h"

namespace penstock {
namespace {

TEST(Journals, TheFingerprintNamesTheReleaseTheLibraryAndTheProcessor) {
  const std::regex form(R"((\d+\.\d+\.\d+), LibTorch (\d+\.\d+\.\S*), (.+))");
  std::smatch parts;
  const std::string fingerprint = Journals::Fingerprint();
  ASSERT_TRUE(std::regex_match(fingerprint, parts, form)) << fingerprint;
  EXPECT_EQ(parts[3], CpuCapability());
}

TEST(Journals, LieInTheStateFolderAndFindItsCheckpoints) {
  const testing::TemporaryFolder state;
  testing::FakeClock clock;
  const auto checkpoints = CheckpointStore::Open(RealFileSystem(), &clock, state.path(), nullptr);
  ASSERT_TRUE(checkpoints.ok() && (*checkpoints)->FolderOf("source").ok());
  DaemonOptions options;
  options.state_dir = state.path();
  const absl::StatusOr<std::unique_ptr<Journals>> journals = Journals::Open(options, checkpoints->get(), &clock);
  ASSERT_TRUE(journals.ok()) << journals.status();
  EXPECT_EQ((*journals)->setup()->folder, state.path() + "/journal");
  EXPECT_TRUE(RealFileSystem()->Exists(state.path() + "/journal/daemon.db"));

  v1::CopyCheckpointRequest copy;
  copy.set_source("pipelines/source/checkpoints/saved");
  journal::v1::Call row;
  row.set_request(copy.SerializeAsString());
  const auto call = (*journals)->setup()->records->ReadCall("CopyCheckpoint", row.SerializeAsString(), {});
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(std::get<CopyCall>(call->request).source_id, "saved");
}

}  // namespace
}  // namespace penstock
