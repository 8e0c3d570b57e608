// What a caller is told who finds no room in the ledger.

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/ledger/memory_refused.h"

namespace penstock {
namespace {

constexpr size_t kNamedHolders = 3;

// "handles (pipeline gpt, caller ann)"
std::string HolderText(const MemoryHolder& holder) {
  std::string text(NameOf(holder.kind));
  if (holder.pipeline.empty() && holder.identity.empty()) return text;
  absl::StrAppend(&text, " (");
  if (!holder.pipeline.empty()) absl::StrAppend(&text, "pipeline ", holder.pipeline);
  if (!holder.identity.empty()) {
    absl::StrAppend(&text, holder.pipeline.empty() ? "" : ", ", "caller ", holder.identity);
  }
  return text + ")";
}

}  // namespace

absl::Status MemoryLedger::Refusal(const Refused& refused) const {
  std::vector<std::pair<int64_t, std::string>> named;
  int64_t others = 0;
  for (const auto& [holder, bytes] : refused.holders) {
    const bool told = !options_.may_see || options_.may_see(refused.asking.identity, holder);
    if (told) {
      named.emplace_back(-bytes, HolderText(holder));
    } else {
      others += bytes;
    }
  }
  std::sort(named.begin(), named.end());
  for (; named.size() > kNamedHolders; named.pop_back()) others -= named.back().first;
  std::string holders;
  for (const auto& [bytes, text] : named) absl::StrAppend(&holders, holders.empty() ? "" : ", ", text, " ", -bytes);
  if (others > 0) absl::StrAppend(&holders, holders.empty() ? "" : ", ", "others ", others);

  const std::string flag = refused.pool == nullptr                                 ? "memory-limit"
                           : refused.share && !refused.pool->identity_flag.empty() ? refused.pool->identity_flag
                                                                                   : refused.pool->flag;
  const std::string reason = refused.pool == nullptr                                  ? "HOST_MEMORY"
                             : refused.share && refused.pool->reason == "HOST_MEMORY" ? "CALLER_QUOTA"
                                                                                      : refused.pool->reason;
  return Error(absl::StatusCode::kResourceExhausted, reason,
               absl::StrCat("no memory for ", HolderText(refused.asking), ": asked for ", refused.asked, " bytes, ",
                            refused.free, " of ", refused.limit, refused.share ? " for one caller" : "", " (--", flag,
                            ") are free", holders.empty() ? "" : "; held: ", holders))
      .With("memory_class", NameOf(refused.asking.kind))
      .With("limit", flag)
      .With("limit_value", absl::StrCat(refused.limit))
      .With("used", absl::StrCat(refused.used))
      .With("free", absl::StrCat(refused.free))
      .With("value", absl::StrCat(refused.asked))
      .With("retry_after_ms", "1000");
}

}  // namespace penstock
