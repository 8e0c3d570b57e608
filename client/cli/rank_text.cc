#include "client/cli/rank_text.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/output.h"

namespace penstock {
namespace {

// "member" of RANK_STATE_MEMBER.
std::string StateWord(v1::RankState state) {
  switch (state) {
    case v1::RANK_STATE_MEMBER:
      return "member";
    case v1::RANK_STATE_MISSING:
      return "missing";
    case v1::RANK_STATE_DRAINING:
      return "draining";
    default:
      return "-";
  }
}

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

std::string DevicesText(const v1::RankInfo& rank) {
  std::vector<std::string> devices;
  for (const v1::DeviceInfo& device : rank.devices()) {
    const auto limit = static_cast<double>(device.memory_limit_bytes());
    devices.push_back(absl::StrCat(device.name(), limit > 0 ? absl::StrCat(" (", BytesText(limit), ")") : ""));
  }
  return OrDash(absl::StrJoin(devices, ", "));
}

std::string ClockOffsetText(const v1::RankInfo& rank) {
  if (!rank.has_clock()) return "-";
  return absl::StrCat(NumberText(rank.clock().seconds() * 1e3, 3), " ms, within ",
                      NumberText(rank.clock().uncertainty_seconds() * 1e3, 3), " ms");
}

}  // namespace

std::string GroupLine(const v1::GroupInfo& group) {
  const auto missing = std::count_if(group.ranks().begin(), group.ranks().end(),
                                     [](const auto& rank) { return rank.state() == v1::RANK_STATE_MISSING; });
  return absl::StrCat(group.world_size() - missing, " of ", group.world_size(), " ranks, ",
                      group.complete() ? "complete" : "not complete", ", generation ", group.generation(),
                      ", re-formed ", group.reformings(), group.reformings() == 1 ? " time" : " times");
}

std::string RanksText(const v1::GroupInfo& group, double now_seconds, bool wide) {
  Table table({{"RANK", true},
               {"STATE"},
               {"FOR", true},
               {"HOST"},
               {"ADDRESS", false, true},
               {"CARRIER"},
               {"DEVICES"},
               {"CLOCK AHEAD", false, true},
               {"PROBLEM"}});
  for (const v1::RankInfo& rank : group.ranks()) {
    const double since = static_cast<double>(rank.since().seconds()) + rank.since().nanos() * 1e-9;
    table.Add({absl::StrCat(rank.rank()), StateWord(rank.state()), ClockText(std::max(0.0, now_seconds - since)),
               OrDash(rank.host()), OrDash(rank.address()), OrDash(rank.carrier()), DevicesText(rank),
               ClockOffsetText(rank), OrDash(rank.problem())});
  }
  return table.Text(wide);
}

std::string LinksText(const v1::GroupInfo& before, const v1::GroupInfo& after, double seconds) {
  if (after.links().empty()) return "";
  std::map<std::pair<int, int>, int64_t> bytes;
  for (const v1::RankLink& link : before.links()) bytes[{link.from_rank(), link.to_rank()}] = link.bytes();
  std::vector<Table::Column> columns = {{"FROM", true}, {"TO", true}, {"CARRIER"}, {"MESSAGES", true}, {"BYTES", true}};
  if (seconds > 0) columns.push_back({"PER SECOND", true});
  Table table(std::move(columns));
  for (const v1::RankLink& link : after.links()) {
    std::vector<std::string> row = {absl::StrCat(link.from_rank()), absl::StrCat(link.to_rank()), link.carrier(),
                                    absl::StrCat(link.messages()), BytesText(static_cast<double>(link.bytes()))};
    if (seconds > 0) {
      // Those of a rank that has come back begin again.
      const auto was = bytes.find({link.from_rank(), link.to_rank()});
      const int64_t moved = was == bytes.end() ? 0 : std::max<int64_t>(0, link.bytes() - was->second);
      row.push_back(was == bytes.end() ? "-" : BytesText(static_cast<double>(moved) / seconds));
    }
    table.Add(std::move(row));
  }
  return table.Text(false);
}

}  // namespace penstock
