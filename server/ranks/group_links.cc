#include "server/ranks/group_links.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/transport/measure_link.h"

namespace penstock {
namespace {

const Link* Find(const std::vector<Link>& links, Rank one, Rank other) {
  const auto is_it = [&](const Link& link) { return link.one == one && link.other == other; };
  const auto found = std::find_if(links.begin(), links.end(), is_it);
  return found == links.end() ? nullptr : &*found;
}

// Those that are measured stay as they are.
std::vector<Link> MeasureOthers(const std::vector<Link>& known, int ranks, const GroupLinks::Measure& measure) {
  const int64_t pairs = std::max<int64_t>(1, int64_t{ranks} * (ranks - 1) / 2);
  const int64_t budget_nanos = std::min(kLinkBudgetNanos, GroupLinks::kGroupBudgetNanos / pairs);
  std::vector<Link> links;
  for (int rank = 0; rank + 1 < ranks; ++rank) {
    std::vector<Rank> peers;
    for (int peer = rank + 1; peer < ranks; ++peer) {
      const Link* link = Find(known, Rank(rank), Rank(peer));
      if (link != nullptr && link->measured) {
        links.push_back(*link);
      } else {
        peers.push_back(Rank(peer));
      }
    }
    if (peers.empty()) continue;
    const std::vector<Link> measured = measure(Rank(rank), peers, budget_nanos);
    for (const Rank peer : peers) {
      const Link* link = Find(measured, Rank(rank), peer);
      links.push_back(link != nullptr ? *link
                                      : Link{.one = Rank(rank),
                                             .other = peer,
                                             .problem = absl::StrCat("rank ", rank, " has not told it in time")});
    }
  }
  return links;
}

}  // namespace

std::vector<Link> GroupLinks::Of(uint32_t generation, int ranks, const Measure& measure) {
  std::vector<Link> known;
  {
    absl::MutexLock lock(&mu_);
    const bool waits = measuring_;
    mu_.Await(absl::Condition(
        +[](bool* measuring) { return !*measuring; }, &measuring_));
    if (generation_ == generation) known = links_;
    const auto is_measured = [](const Link& link) { return link.measured; };
    // Who has waited takes what was found.
    const bool enough = waits || std::all_of(known.begin(), known.end(), is_measured);
    if (generation_ == generation && enough) return known;
    measuring_ = true;
  }
  const absl::Cleanup done = [this] {
    absl::MutexLock lock(&mu_);
    measuring_ = false;
  };
  std::vector<Link> links = MeasureOthers(known, ranks, measure);
  absl::MutexLock lock(&mu_);
  if (generation < generation_) return links;  // of one that is over
  generation_ = generation;
  links_ = links;
  return links;
}

std::vector<Link> GroupLinks::known() const {
  absl::MutexLock lock(&mu_);
  return links_;
}

}  // namespace penstock
