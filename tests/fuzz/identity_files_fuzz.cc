// Feeds foreign text to the readers of the file of tokens (after a t) and of the identity map (after anything else).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/time/clock.h"
#include "server/identity/identity_map.h"
#include "server/identity/token_file.h"
#include "tests/fuzz/fuzz_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using penstock::testing::Demand;
  using penstock::testing::DemandReason;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
  if (data[0] == 't') {
    const auto tokens = penstock::TokenFile::Parse(text, "tokens");
    DemandReason(tokens.status());
    if (!tokens.ok()) return 0;
    Demand(tokens->size() <= lines, "there are more tokens than lines");
    Demand(!tokens->NameOf(text, absl::Now()).ok(), "the file is a token of its own");
  } else {
    const auto map = penstock::IdentityMap::Parse(text, "map");
    DemandReason(map.status());
    if (!map.ok()) return 0;
    Demand(map->size() <= lines, "there are more identities than lines");
    Demand(map->Find("") == nullptr, "somebody has no name");
  }
  return 0;
}
