#include "engine/transport/peer_probes.h"

#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/guard.h"
#include "engine/base/rank_message.h"

namespace penstock {

int64_t PeerProbes::Open(Rank peer, OnEcho on_echo) {
  absl::MutexLock lock(&mu_);
  open_[++opened_] = {.peer = peer, .on_echo = std::move(on_echo)};
  return opened_;
}

void PeerProbes::End(Rank peer, int64_t number, const absl::Status& how) {
  OpenProbe probe;
  {
    absl::MutexLock lock(&mu_);
    const auto found = open_.find(number);
    if (found == open_.end() || found->second.peer != peer) return;
    probe = std::move(found->second);
    open_.erase(found);
  }
  probe.on_echo(how);
}

void PeerProbes::EndThose(const std::function<bool(Rank)>& of, const absl::Status& why) {
  std::vector<OpenProbe> ended;
  {
    absl::MutexLock lock(&mu_);
    for (auto probe = open_.begin(); probe != open_.end();) {
      const bool ends = of(probe->second.peer);
      if (ends) ended.push_back(std::move(probe->second));
      probe = ends ? open_.erase(probe) : std::next(probe);
    }
  }
  for (const OpenProbe& one : ended) one.on_echo(why);
}

void PeerProbes::EndAllOf(Rank peer, const absl::Status& why) {
  EndThose([peer](Rank one) { return one == peer; }, why);
}

void PeerProbes::EndAll(const absl::Status& why) {
  EndThose([](Rank) { return true; }, why);
}

absl::StatusOr<Landing> PeerProbes::Read(Rank from, int64_t payload_bytes, std::function<void()> echo) {
  {
    absl::MutexLock lock(&mu_);
    if (payload_bytes > kMaximumProbeBytes || !read_.insert(from).second) {
      return BadRankMessage("payload_bytes",
                            absl::StrCat("of one probe at a time must be at most ", kMaximumProbeBytes),
                            absl::StrCat(payload_bytes));
    }
  }
  const auto is_read = [this, from] {
    absl::MutexLock lock(&mu_);
    read_.erase(from);
  };
  absl::Cleanup give_up = is_read;
  std::shared_ptr<char[]> bytes(new char[payload_bytes]);
  Landing landing;
  landing.places = {{.data = bytes.get(), .bytes = payload_bytes, .owner = bytes}};
  landing.on_ended = [is_read, echo = std::move(echo)](const absl::Status& landed) {
    is_read();
    if (landed.ok()) Guarded("an echo", echo).IgnoreError();
  };
  std::move(give_up).Cancel();
  return landing;
}

}  // namespace penstock
