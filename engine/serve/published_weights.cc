#include "engine/serve/published_weights.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/freed_memory.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "engine/wire/tensor_header.h"

namespace penstock {

PublishedWeights::Prepared PublishedWeights::Prepare(Publication publication, MadeEngine engine,
                                                     CheckpointPins::Hold pin) {
  Prepared prepared;
  prepared.push_back({.engine = std::move(engine), .publication = std::move(publication), .pin = std::move(pin)});
  return prepared;
}

void PublishedWeights::Publish(Prepared next) noexcept {
  CheckpointPins::Hold pin;  // of what was published; goes after the lock
  absl::MutexLock lock(&engines_->mu);
  if (!engines_->entries.empty()) pin.swap(engines_->entries.back().pin);
  engines_->entries.splice(engines_->entries.end(), next);
}

absl::StatusOr<PublishedWeights::Entry*> PublishedWeights::Find(Engines& engines, std::string_view version) {
  Entry* published =
      engines.entries.empty() || !engines.entries.back().publication.any() ? nullptr : &engines.entries.back();
  if (version.empty()) return published;
  if (version == absl::StrCat(kLiveVersion)) return nullptr;
  const std::string number = published == nullptr ? "" : absl::StrCat(published->publication.version);
  if (published != nullptr && version == number) return published;
  const std::string others =
      published == nullptr ? "" : absl::StrCat(", the live weights, and ", number, ", the published ones");
  const std::string given = Shortened(std::string(version));
  return Error(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND",
               absl::StrCat("version: there is ", kLiveVersion, others, ", got ", given))
      .With("field", "version")
      .With("value", given);
}

absl::StatusOr<WeightsPointer> PublishedWeights::Select(std::string_view version) const {
  struct Held {
    ~Held() {
      if (entry != nullptr) LetGo(*engines, entry);
    }
    const std::shared_ptr<Engines> engines;
    const Entry* entry = nullptr;
    InferenceWeights weights = {};
  };
  std::shared_ptr<Held> held;
  {
    absl::MutexLock lock(&engines_->mu);
    PENSTOCK_ASSIGN_OR_RETURN(Entry* const entry, Find(*engines_, version));
    if (entry == nullptr) return WeightsPointer();
    PENSTOCK_RETURN_IF_ERROR(entry->publication.error);
    held.reset(new Held{engines_});
    held->weights = {entry->engine.pipeline.get(), entry->publication.version};
    held->entry = entry;
    ++entry->holds;
  }
  return WeightsPointer(held, &held->weights);
}

// The entry may be gone: Close() waits for nobody.
void PublishedWeights::LetGo(Engines& engines, const Entry* entry) {
  bool unused = false;
  {
    absl::MutexLock lock(&engines.mu);
    for (Entry& one : engines.entries) {
      if (&one != entry) continue;
      --one.holds;
      unused = one.holds == 0 && &one != &engines.entries.back();
      break;
    }
  }
  // Without memory to tell, the next publication destroys it.
  if (unused && engines.unused) Guarded("weights that nobody uses", engines.unused).IgnoreError();
}

absl::Status PublishedWeights::Check(std::string_view version) const {
  absl::MutexLock lock(&engines_->mu);
  return Find(*engines_, version).status();
}

absl::Status PublishedWeights::CheckReady(std::string_view version) const {
  absl::MutexLock lock(&engines_->mu);
  PENSTOCK_ASSIGN_OR_RETURN(const Entry* const entry, Find(*engines_, version));
  return entry == nullptr ? absl::OkStatus() : entry->publication.error;
}

Publication PublishedWeights::now() const {
  absl::MutexLock lock(&engines_->mu);
  return engines_->entries.empty() ? Publication() : engines_->entries.back().publication;
}

void PublishedWeights::DestroyUnused() {
  std::list<Entry> gone;  // after the lock
  {
    absl::MutexLock lock(&engines_->mu);
    for (auto it = engines_->entries.begin();
         it != engines_->entries.end() && std::next(it) != engines_->entries.end();) {
      const auto one = it++;
      if (one->holds == 0) gone.splice(gone.end(), engines_->entries, one);
    }
  }
  if (gone.empty()) return;
  gone.clear();
  ReturnFreedMemory();
}

void PublishedWeights::Close() {
  std::list<Entry> gone;  // after the lock
  absl::MutexLock lock(&engines_->mu);
  gone.swap(engines_->entries);
}

}  // namespace penstock
