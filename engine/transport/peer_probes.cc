#include "engine/transport/peer_probes.h"

#include <memory>
#include <utility>

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

void PeerProbes::EndThose(absl::FunctionRef<bool(Rank)> of, const absl::Status& why) {
  std::map<int64_t, OpenProbe> ended;
  {
    absl::MutexLock lock(&mu_);
    for (auto probe = open_.begin(); probe != open_.end();) {
      const auto one = probe++;
      if (of(one->second.peer)) ended.insert(open_.extract(one));
    }
  }
  for (const auto& [number, one] : ended) {
    Guarded("an echo", [&, &on_echo = one.on_echo] { on_echo(why); }).IgnoreError();
  }
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
