#include "engine/serve/last_saves.h"

#include <cstddef>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"

namespace penstock {
namespace {

// One save at a time, in the order in which the pipelines' work ends: one whose work does not end holds up no other.
class LastSaveRun : public std::enable_shared_from_this<LastSaveRun> {
 public:
  LastSaveRun(std::vector<std::shared_ptr<ServedPipeline>> pipelines, ServedPipeline::LastSave save,
              std::shared_ptr<CancelToken> cancel, std::function<void(LastSaves)> done)
      : pipelines_(std::move(pipelines)),
        save_(save),
        cancel_(std::move(cancel)),
        done_(std::move(done)),
        left_(pipelines_.size()) {
    // What takes memory comes first.
    idle_.reserve(pipelines_.size());
    saves_.failed.reserve(pipelines_.size());
    saves_.unemptied.reserve(pipelines_.size());
    for (const auto& pipeline : pipelines_) names_.push_back(pipeline->name());
  }

  void Start() {
    if (pipelines_.empty()) return done_({});
    for (size_t i = 0; i < pipelines_.size(); ++i) {
      const absl::Status drains = Guarded(
          "a last save", [&] { pipelines_[i]->Drain(save_.force, [run = shared_from_this(), i] { run->OnIdle(i); }); });
      if (!drains.ok()) OnEnd(i, drains);
    }
  }

 private:
  void OnIdle(size_t i) {
    {
      absl::MutexLock lock(&mu_);
      idle_.push_back(i);
    }
    SaveNext();
  }
  void SaveNext() {
    size_t next = 0;
    {
      absl::MutexLock lock(&mu_);
      if (saving_ || taken_ == idle_.size()) return;
      saving_ = true;
      next = idle_[taken_++];
    }
    const absl::Status begun = Guarded("a last save", [&] {
      pipelines_[next]->SaveLast(
          save_, cancel_, [run = shared_from_this(), next](const auto& saved) { run->OnSaved(next, saved.status()); });
    });
    if (!begun.ok()) OnSaved(next, begun);
  }
  void OnSaved(size_t i, const absl::Status& saved) {
    {
      absl::MutexLock lock(&mu_);
      saving_ = false;
    }
    OnEnd(i, saved);
    SaveNext();
  }
  void OnEnd(size_t i, const absl::Status& saved) {
    const bool keeps_journal = save_.empty_journal && !pipelines_[i]->life().empty();
    if (keeps_journal && !saved.ok()) {
      Guarded("the log of a last save", [&] {
        LogError("the journal is not empty: the next start makes its calls again",
                 {{"pipeline", names_[i]}, {"reason", ReasonOf(saved)}, {"error", std::string(saved.message())}});
      }).IgnoreError();
    }
    {
      absl::MutexLock lock(&mu_);
      if (!saved.ok()) (keeps_journal ? saves_.unemptied : saves_.failed).push_back(std::move(names_[i]));
      if (--left_ > 0) return;
    }
    done_(std::move(saves_));  // nobody else is left
  }

  const std::vector<std::shared_ptr<ServedPipeline>> pipelines_;
  const ServedPipeline::LastSave save_;
  const std::shared_ptr<CancelToken> cancel_;
  const std::function<void(LastSaves)> done_;

  absl::Mutex mu_;
  std::vector<std::string> names_;
  std::vector<size_t> idle_ ABSL_GUARDED_BY(mu_);  // pipelines whose work has ended, in that order
  size_t taken_ ABSL_GUARDED_BY(mu_) = 0;          // of these, those whose save has begun
  bool saving_ ABSL_GUARDED_BY(mu_) = false;
  size_t left_ ABSL_GUARDED_BY(mu_);
  LastSaves saves_;
};

}  // namespace

void SaveAllLast(std::vector<std::shared_ptr<ServedPipeline>> pipelines, ServedPipeline::LastSave save,
                 std::shared_ptr<CancelToken> cancel, std::function<void(LastSaves)> done) {
  std::make_shared<LastSaveRun>(std::move(pipelines), save, std::move(cancel), std::move(done))->Start();
}

}  // namespace penstock
