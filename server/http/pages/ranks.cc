// What /statusz says of ranks: on the leader of all, on another one of itself.

#include "absl/strings/str_join.h"
#include "server/http/pages/lines.h"

namespace penstock {
namespace {

Section RankList(const StatusSources& sources, const GroupRows& group) {
  Section section{.id = "ranks", .title = "Ranks"};
  section.columns = {{"rank", "rank"},       {"state", "state"},     {"state_seconds", "since"},
                     {"host", "host"},       {"address", "address"}, {"carrier", "carrier"},
                     {"devices", "devices"}, {"problem", "problem"}};
  for (const RankRow& row : group.ranks) {
    Cell state(row.state);
    state.mark = row.state == "missing" ? "bad" : "good";
    section.rows.push_back({Count(row.rank), std::move(state),
                            Seconds(AgeOf(*sources.registry, row.since_unix_seconds)), row.host, row.address,
                            row.carrier, row.devices, row.problem});
  }
  return section;
}

Section LinkList(const std::vector<LinkRow>& links) {
  Section section{.id = "links", .title = "Links between ranks"};
  section.empty = "the ranks have not been connected yet";
  section.columns = {
      {"from", "from"}, {"to", "to"}, {"carrier", "carrier"}, {"messages", "messages"}, {"bytes", "bytes"}};
  for (const LinkRow& link : links) {
    section.rows.push_back({Count(link.from), Count(link.to), link.carrier, Count(static_cast<double>(link.messages)),
                            Bytes(static_cast<double>(link.bytes))});
  }
  return section;
}

Section Follower(const FollowerFacts& facts) {
  Section section{.id = "rank", .title = "Rank"};
  Cell joined(facts.problem.empty() ? "yes" : "no");
  joined.mark = facts.problem.empty() ? "good" : "bad";
  section.Fact("rank", "rank", Count(facts.rank));
  section.Fact("world_size", "of", Count(facts.world_size));
  section.Fact("leader", "leader", facts.leader);
  section.Fact("joined", "joined", std::move(joined));
  section.Fact("problem", "why not", facts.problem);
  section.Fact("leader_drains", "leader drains", facts.leader_drains ? "yes" : "no");
  section.Fact("epoch", "epoch", Count(static_cast<double>(facts.epoch)));
  section.Fact("generation", "generation", Count(static_cast<double>(facts.generation)));
  section.Fact("devices", "devices", absl::StrJoin(facts.devices, ", "));
  return section;
}

}  // namespace

void AddRanks(const StatusSources& sources, Document* page) {
  if (sources.group != nullptr) {
    const GroupRows group = sources.group();
    page->sections.push_back(RankList(sources, group));
    page->sections.push_back(LinkList(group.links));
  }
  if (sources.follower != nullptr) {
    const FollowerFacts facts = sources.follower();
    page->sections.push_back(Follower(facts));
    page->sections.push_back(LinkList(facts.links));
  }
}

}  // namespace penstock
