// Reads foreign checkpoints as a folder has them: a manifest and the file with the tensors, which must fit each other. The
// first byte: whether the manifest gets the file's size and checksum, and whether the file has the second name; two bytes
// with the manifest's length follow, then both.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/checkpoint/checkpoint_file.h"
#include "engine/checkpoint/checkpoint_manifest.h"
#include "engine/wire/checksum.h"
#include "tests/fuzz/fuzz_checks.h"
#include "tests/support/fake_clock.h"
#include "tests/support/temporary_folder.h"

namespace {

using penstock::CheckpointFolder;
using penstock::CheckpointInfo;
using penstock::testing::Demand;
using penstock::testing::DemandReason;

constexpr char kId[] = "saved";

void Write(const std::string& path, std::string_view bytes) {
  const auto file = penstock::RealFileSystem()->Create(path);
  Demand(file.ok() && (*file)->Append(bytes).ok() && (*file)->Close().ok(), "there is no room for the input");
}

std::unique_ptr<CheckpointFolder> Open(const std::string& state_dir, penstock::Clock* clock) {
  auto folder = CheckpointFolder::Open(penstock::RealFileSystem(), clock, state_dir, "pipe");
  Demand(folder.ok(), "a folder with a damaged checkpoint can't be opened");
  return *std::move(folder);
}

std::vector<std::string> NamesOf(const penstock::NamedTensors& state) {
  std::vector<std::string> names;
  for (const penstock::NamedTensor& tensor : state) names.push_back(tensor.name);
  return names;
}

// What loads is in order, may be copied and replaced, and is then what it was.
void TryLoaded(CheckpointFolder& folder, const penstock::LoadedCheckpoint& loaded, const std::string& place,
               penstock::Clock* clock) {
  Demand(folder.Find(kId)->damage.empty(), "a damaged checkpoint was loaded");
  const std::string into = absl::StrCat(place, "/copy/pipelines/pipe/checkpoints");
  Demand(penstock::RealFileSystem()->CreateDirectories(into).ok(), "there is no room for a copy");
  Demand(folder.CopyTo(kId, into).ok(), "a checkpoint that was loaded can't be copied");
  const auto copied = Open(absl::StrCat(place, "/copy"), clock)->Load(kId);
  Demand(copied.ok() && NamesOf(copied->state) == NamesOf(loaded.state), "a copy is another checkpoint");
  const CheckpointInfo& info = loaded.info;
  const penstock::CheckpointFacts facts{.step = info.step,
                                        .spec_digest = info.spec_digest,
                                        .specification = info.specification,
                                        .rotating = info.rotating,
                                        .place = info.place};
  DemandReason(folder.Save(kId, facts, loaded.state, {.replace = true}).status());
  const auto again = folder.Load(kId);
  Demand(again.ok() && NamesOf(again->state) == NamesOf(loaded.state), "a checkpoint that was replaced is another one");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  penstock::ConfigureLog(penstock::LogLevel::kError, penstock::LogFormat::kText);
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 3, size - 3);
  std::string text(bytes.substr(0, size_t{data[1]} << 8 | data[2]));
  const std::string_view tensors = bytes.substr(text.size());
  auto manifest = penstock::ParseManifest(text);
  if ((data[0] & 1) != 0 && manifest.ok()) {
    manifest->bytes = static_cast<int64_t>(tensors.size());
    manifest->crc32c = penstock::Crc32c(tensors);
    text = penstock::FormatManifest(*manifest);
  }
  const penstock::testing::TemporaryFolder place;
  penstock::testing::FakeClock clock;
  const std::string folder_path = absl::StrCat(place.path(), "/pipelines/pipe/checkpoints/", kId);
  Demand(penstock::RealFileSystem()->CreateDirectories(folder_path).ok(), "there is no room for the input");
  Write(absl::StrCat(folder_path, "/manifest.json"), text);
  Write(absl::StrCat(folder_path, (data[0] & 2) != 0 ? "/state-2.safetensors" : "/state.safetensors"), tensors);
  const std::unique_ptr<CheckpointFolder> folder = Open(place.path(), &clock);
  const std::vector<CheckpointInfo> listed = folder->List();
  Demand(listed.size() == 1 && listed[0].id == kId, "another checkpoint is listed");
  const auto loaded = folder->Load(kId);
  DemandReason(loaded.status());
  if (loaded.ok()) {
    TryLoaded(*folder, *loaded, place.path(), &clock);
  } else {
    Demand(!folder->Find(kId)->damage.empty(), "a damaged checkpoint is in order in the list");
  }
  return 0;
}
