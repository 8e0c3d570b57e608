#include "server/peer/rank_settings.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr int kMaxWorldSize = 65'536;
constexpr char kDefaultPeerListen[] = "0.0.0.0:8475";

// A text, and what gave it.
struct Given {
  std::string text;
  std::string from;
};
using MaybeGiven = std::optional<Given>;

struct Source {
  MaybeGiven rank = {};
  MaybeGiven world_size = {};
  MaybeGiven leader = {};
  MaybeGiven leader_port = {};
};

MaybeGiven FromFlag(const std::optional<std::string>& flag, const char* name) {
  return flag.has_value() ? MaybeGiven({*flag, name}) : std::nullopt;
}

MaybeGiven FromVariable(const VariableLookup& variable, const char* name) {
  const std::optional<std::string> text = variable(name);
  return text.has_value() && !text->empty() ? MaybeGiven({*text, name}) : std::nullopt;
}

// The 2 of penstock-2.
MaybeGiven PodOfName(const MaybeGiven& host) {
  if (!host.has_value()) return std::nullopt;
  const size_t dash = host->text.rfind('-');
  if (dash == std::string::npos || dash + 1 == host->text.size()) return std::nullopt;
  const std::string number = host->text.substr(dash + 1);
  if (number.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  return Given{number, host->from};
}

std::vector<Source> Sources(const RankFlags& flags, const VariableLookup& variable) {
  const auto of = [&variable](const char* name) { return FromVariable(variable, name); };
  std::vector<Source> sources = {
      {FromFlag(flags.rank, "--rank"), FromFlag(flags.world_size, "--world-size"), FromFlag(flags.leader, "--leader")},
      {of("PENSTOCK_RANK"), of("PENSTOCK_WORLD_SIZE"), of("PENSTOCK_LEADER")},
      {of("LWS_WORKER_INDEX"), of("LWS_GROUP_SIZE"), of("LWS_LEADER_ADDRESS")},
      {of("JOB_COMPLETION_INDEX")},
      {of("RANK"), of("WORLD_SIZE"), of("MASTER_ADDR"), of("MASTER_PORT")},
      {of("OMPI_COMM_WORLD_RANK"), of("OMPI_COMM_WORLD_SIZE")},
      {of("SLURM_PROCID"), of("SLURM_NTASKS")},
  };
  // Many hosts have a number at the end of their name: it is a rank only where somebody says that there are several.
  if (sources[0].world_size.has_value() || sources[1].world_size.has_value()) {
    const MaybeGiven index = of("PENSTOCK_POD_INDEX");
    sources.push_back({index.has_value() ? index : PodOfName(of("HOSTNAME"))});
  }
  return sources;
}

absl::StatusOr<int> ParseNumber(const Given& given, int min, int max) {
  int number;
  if (!absl::SimpleAtoi(given.text, &number) || number < min || number > max) {
    return InvalidField(given.from, absl::StrCat("must be a whole number in [", min, ", ", max, "]"), given.text);
  }
  return number;
}

// An address in two.
struct HostPort {
  std::string host;
  std::optional<std::string> port;
};

HostPort SplitAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  const bool bracketed = address.starts_with('[');
  const bool bare_ipv6 = !bracketed && address.find(':') != colon;
  if (colon == std::string::npos || bare_ipv6 || address.ends_with(']')) {
    return {bare_ipv6 ? absl::StrCat("[", address, "]") : address, std::nullopt};
  }
  return {address.substr(0, colon), address.substr(colon + 1)};
}

// Whether it may be a name, or is the numbers of an address; not what no name service will ever know.
bool CanBeHost(const std::string& host) {
  in6_addr parsed;  // large enough for both families
  if (host.starts_with('[')) {
    return host.ends_with(']') && inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &parsed) == 1;
  }
  constexpr char kDigits[] = "0123456789";
  constexpr char kOfNames[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-_";
  if (host.empty() || host.find_first_not_of(kOfNames) != std::string::npos) return false;
  // No top-level name is a number.
  const bool numeric = host.find_first_not_of(kDigits, host.rfind('.') + 1) == std::string::npos;
  return !numeric || host.ends_with('.') || inet_pton(AF_INET, host.c_str(), &parsed) == 1;
}

absl::StatusOr<std::string> ReadLeader(const Given& leader, const MaybeGiven& leader_port, const std::string& port) {
  HostPort address = SplitAddress(leader.text);
  Given given = leader;
  if (!address.port.has_value()) {
    given = leader_port.value_or(Given{port, "--peer-listen"});
    address.port = given.text;
  }
  if (!CanBeHost(address.host)) {
    return InvalidField(leader.from, "must be HOST or HOST:PORT, with a name or numbers", leader.text);
  }
  int number;
  if (!absl::SimpleAtoi(*address.port, &number) || number < 1 || number > 65'535) {
    return InvalidField(given.from, "must have the leader's port, in [1, 65535]", given.text);
  }
  return absl::StrCat(address.host, ":", *address.port);
}

// All sources that give a size must give the same.
absl::StatusOr<std::optional<int>> ReadSize(const std::vector<Source>& sources, size_t end, MaybeGiven* size) {
  std::optional<int> number;
  for (size_t i = 0; i < end; ++i) {
    if (!sources[i].world_size.has_value()) continue;
    PENSTOCK_ASSIGN_OR_RETURN(const int other, ParseNumber(*sources[i].world_size, 1, kMaxWorldSize));
    if (number.has_value() && other != *number) {
      return InvalidField(sources[i].world_size->from,
                          absl::StrCat("must be the same as ", size->value().from, ", which is ", *number),
                          sources[i].world_size->text);
    }
    if (number.has_value()) continue;
    number = other;
    *size = sources[i].world_size;
  }
  return number;
}

// Nothing gives a rank: the process is alone, unless something says that it is not.
absl::Status CheckAlone(const std::vector<Source>& sources) {
  MaybeGiven size;
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<int> number, ReadSize(sources, 2, &size));
  if (number.value_or(1) > 1) {
    return InvalidField(size->from, "needs a rank, which nothing gives: --rank or PENSTOCK_RANK is missing",
                        size->text);
  }
  for (size_t i = 0; i < 2 && !number.has_value(); ++i) {
    if (!sources[i].leader.has_value()) continue;
    return InvalidField(sources[i].leader->from, "needs a rank and a size, which nothing gives: --rank is missing",
                        sources[i].leader->text);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RankSettings> ReadRankSettings(const RankFlags& flags, const VariableLookup& variable) {
  RankSettings settings;
  const Given listen =
      FromFlag(flags.peer_listen, "--peer-listen")
          .value_or(
              FromVariable(variable, "PENSTOCK_PEER_LISTEN").value_or(Given{kDefaultPeerListen, "--peer-listen"}));
  settings.peer_listen = listen.text;
  const std::vector<Source> sources = Sources(flags, variable);
  size_t winner = 0;
  while (winner < sources.size() && !sources[winner].rank.has_value()) ++winner;
  if (winner == sources.size()) {
    PENSTOCK_RETURN_IF_ERROR(CheckAlone(sources));
    return settings;
  }

  const Given& rank = *sources[winner].rank;
  settings.source = rank.from;
  MaybeGiven size;
  PENSTOCK_ASSIGN_OR_RETURN(const std::optional<int> world_size, ReadSize(sources, winner + 1, &size));
  if (!world_size.has_value()) {
    return InvalidField(rank.from, "needs a size, which nothing gives: --world-size or PENSTOCK_WORLD_SIZE is missing",
                        rank.text);
  }
  settings.world_size = *world_size;
  PENSTOCK_ASSIGN_OR_RETURN(const int number, ParseNumber(rank, 0, kMaxWorldSize));
  if (number >= *world_size) {
    return InvalidField(rank.from, absl::StrCat("must be below ", size->from, ", which is ", *world_size), rank.text);
  }
  settings.rank = Rank(number);
  if (*world_size == 1) return settings;

  size_t leading = 0;
  while (leading <= winner && !sources[leading].leader.has_value()) ++leading;
  if (leading > winner) {
    return InvalidField(rank.from, "needs a leader, which nothing gives: --leader or PENSTOCK_LEADER is missing",
                        rank.text);
  }
  PENSTOCK_ASSIGN_OR_RETURN(settings.leader, ReadLeader(*sources[leading].leader, sources[leading].leader_port,
                                                        SplitAddress(listen.text).port.value_or("")));
  return settings;
}

}  // namespace penstock
