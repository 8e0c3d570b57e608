// What the leader believes of what a rank tells of a run. rank_group.cc has what comes of it.

#include <cstddef>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/rank_message.h"
#include "engine/base/shape_text.h"
#include "engine/base/status_macros.h"
#include "engine/exec/rank_group.h"

namespace penstock {

absl::StatusOr<std::shared_ptr<Run>> RankGroup::Hear(Rank rank, int64_t run, bool Told::*what) {
  absl::MutexLock lock(&mu_);
  const auto found = open_.find(run);
  if (found != open_.end() && found->second.started) {
    const auto of_rank = found->second.ranks.find(rank);
    const bool may_tell = of_rank != found->second.ranks.end() && !of_rank->second.left;
    if (may_tell && (what == nullptr || !std::exchange(of_rank->second.*what, true))) return found->second.run;
  }
  const char* const field = what == &Told::ties ? "ties.run" : what == &Told::norms ? "norms.run" : "left.run";
  return BadRankMessage(field, absl::StrCat("must be a run of which rank ", rank.value(), " has not told this yet"),
                        absl::StrCat(run));
}

// Ties are of all uses, and have gradients of those on the rank that tells them.
absl::Status RankGroup::CheckTies(Rank rank, const Run& run, const TiedGradients& own) const {
  if (tied_.empty() || !run.spec.Steps()) {
    return BadRankMessage("ties.run", "must be one with a step that has ties", absl::StrCat(run.spec.id));
  }
  if (own.size() != tied_.size()) {
    return BadRankMessage("ties.uses", absl::StrCat("must be of ", tied_.size(), " parameters"),
                          absl::StrCat(own.size()));
  }
  for (size_t group = 0; group < own.size(); ++group) {
    const std::vector<Rank>& ranks = tied_[group].ranks;
    if (own[group].size() != ranks.size()) {
      return BadRankMessage("ties.uses", absl::StrCat("must be ", ranks.size(), " of ", tied_[group].name),
                            absl::StrCat(own[group].size()));
    }
    for (size_t use = 0; use < ranks.size(); ++use) {
      const at::Tensor& gradient = own[group][use];
      if (!gradient.defined()) continue;
      if (ranks[use] != rank) {
        return BadRankMessage("ties.gradients", absl::StrCat("must be of uses on rank ", rank.value()),
                              absl::StrCat("one on rank ", ranks[use].value()));
      }
      const at::Tensor& shape = tied_shapes_[group];
      if (gradient.sizes() == shape.sizes() && gradient.scalar_type() == shape.scalar_type()) continue;
      return BadRankMessage("ties.gradients",
                            absl::StrCat("must be as ", tied_[group].name, ", ", ShapeText(shape.sizes())),
                            ShapeText(gradient.sizes()));
    }
  }
  return absl::OkStatus();
}

// Norms are of all stages of the rank that tells them, each once.
absl::Status RankGroup::CheckStages(Rank rank, const Run& run, const std::vector<NormsOfStage>& norms) const {
  if (!run.spec.Steps()) return BadRankMessage("norms.run", "must be one with a step", absl::StrCat(run.spec.id));
  std::set<int> missing;
  for (int stage = 0; stage <= last_stage(); ++stage) {
    if (plan_.stages[stage].rank == rank) missing.insert(stage);
  }
  for (const NormsOfStage& of_stage : norms) {
    if (missing.erase(of_stage.stage) > 0) continue;
    return BadRankMessage("norms.stage", absl::StrCat("must be a stage of rank ", rank.value(), ", and stand once"),
                          absl::StrCat(of_stage.stage));
  }
  if (missing.empty()) return absl::OkStatus();
  return BadRankMessage("norms.stage", absl::StrCat("must be there for stage ", *missing.begin()), "nothing");
}

// Whoever has the last stage measures, and tells all of it once: with the norms of a step, else when it leaves. So each
// entry has one writer.
absl::Status RankGroup::CheckMeasures(Rank rank, const Run& run, const Measures& measures, bool with_norms) const {
  const Rank last = plan_.stages.back().rank;
  const bool due = rank == last && run.spec.Steps() == with_norms;
  if (!due) {
    if (measures.losses.empty() && measures.metric_sums.empty()) return absl::OkStatus();
    return BadRankMessage("measures.losses", absl::StrCat("must come once, from rank ", last.value()),
                          absl::StrCat("some from rank ", rank.value()));
  }
  const auto check = [](const char* field, size_t count, size_t given) {
    return given == count ? absl::OkStatus()
                          : BadRankMessage(field, absl::StrCat("must be ", count), absl::StrCat(given));
  };
  const auto micro_batches = static_cast<size_t>(run.micro_batches());
  PENSTOCK_RETURN_IF_ERROR(check("measures.losses", micro_batches, measures.losses.size()));
  PENSTOCK_RETURN_IF_ERROR(check("measures.metric_sums", micro_batches, measures.metric_sums.size()));
  for (const std::vector<MetricSum>& of_micro_batch : measures.metric_sums) {
    PENSTOCK_RETURN_IF_ERROR(check("measures.metric_sums.sums", run.metric_names.size(), of_micro_batch.size()));
  }
  return absl::OkStatus();
}

}  // namespace penstock
