#include "engine/serve/last_saves.h"

#include <optional>
#include <utility>

#include "absl/status/statusor.h"

namespace penstock {
namespace {

struct LastSaveRun {
  std::vector<std::shared_ptr<ServedPipeline>> left;
  std::shared_ptr<CancelToken> cancel;
  std::function<void(LastSaves)> done;
  std::vector<std::string> failed = {};
};

void SaveNext(const std::shared_ptr<LastSaveRun>& run) {
  if (run->left.empty()) return run->done({std::move(run->failed)});
  const std::shared_ptr<ServedPipeline> pipeline = std::move(run->left.back());
  run->left.pop_back();
  const std::string& name = pipeline->name();
  pipeline->SaveLast(run->cancel, [run, name](const absl::StatusOr<std::optional<CheckpointInfo>>& saved) {
    if (!saved.ok()) run->failed.push_back(name);
    SaveNext(run);
  });
}

}  // namespace

void SaveAllLast(std::vector<std::shared_ptr<ServedPipeline>> pipelines, std::shared_ptr<CancelToken> cancel,
                 std::function<void(LastSaves)> done) {
  SaveNext(std::make_shared<LastSaveRun>(LastSaveRun{std::move(pipelines), std::move(cancel), std::move(done)}));
}

}  // namespace penstock
