#include "engine/schedule/action.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

constexpr bool RowsFollowTheEnum() {
  for (size_t i = 0; i < kActionKindTable.size(); ++i) {
    if (kActionKindTable[i].kind != static_cast<ActionKind>(i)) return false;
  }
  return true;
}
static_assert(RowsFollowTheEnum());

absl::Status RefuseAction(std::string_view problem, std::string_view text) {
  constexpr size_t kShown = 40;
  const std::string_view shown = text.substr(0, kShown);
  return InvalidField("action", problem,
                      absl::StrCat("\"", absl::CHexEscape(absl::string_view(shown.data(), shown.size())),
                                   text.size() > kShown ? "...\"" : "\""));
}

absl::Status NotAnAction(std::string_view text) {
  return RefuseAction("must be <stage><KIND><micro-batch>, as in 2F0, 3SEND_F1, 2SEND_F0@5 or 2OPT", text);
}

// Takes the digits at the front of `text`. Only numbers as ToString writes them: no sign, no leading zero, at most nine
// digits.
std::optional<int> TakeNumber(std::string_view* text) {
  size_t digits = 0;
  while (digits < text->size() && std::isdigit(static_cast<unsigned char>((*text)[digits]))) ++digits;
  if (digits == 0 || digits > 9 || (digits > 1 && text->front() == '0')) return std::nullopt;
  int number = 0;
  if (!absl::SimpleAtoi(absl::string_view(text->data(), digits), &number)) return std::nullopt;
  text->remove_prefix(digits);
  return number;
}

}  // namespace

std::string ToString(const Action& action) {
  const std::string_view kind = KindText(action.kind);
  std::string text = absl::StrCat(action.stage, absl::string_view(kind.data(), kind.size()));
  if (action.kind != ActionKind::kOptimizer) absl::StrAppend(&text, action.micro_batch);
  if (action.peer >= 0) absl::StrAppend(&text, "@", action.peer);
  return text;
}

absl::StatusOr<Action> ParseAction(std::string_view text) {
  std::string_view rest = text;
  const std::optional<int> stage = TakeNumber(&rest);
  if (!stage) return NotAnAction(text);

  size_t letters = 0;
  while (letters < rest.size() && rest[letters] != '@' && !std::isdigit(static_cast<unsigned char>(rest[letters]))) {
    ++letters;
  }
  const std::string_view kind_text = rest.substr(0, letters);
  rest.remove_prefix(letters);
  const auto* const row = std::find_if(kActionKindTable.begin(), kActionKindTable.end(),
                                       [&](const ActionKindInfo& info) { return info.text == kind_text; });
  if (row == kActionKindTable.end()) return NotAnAction(text);

  Action action{.kind = row->kind, .stage = *stage};
  if (action.kind != ActionKind::kOptimizer) {
    const std::optional<int> micro_batch = TakeNumber(&rest);
    if (!micro_batch) return NotAnAction(text);
    action.micro_batch = *micro_batch;
  }
  if (!rest.empty() && rest.front() == '@') {
    rest.remove_prefix(1);
    const std::optional<int> peer = TakeNumber(&rest);
    if (!peer || !rest.empty()) return NotAnAction(text);
    if (!IsCommunication(action.kind)) return RefuseAction("must be a send or a receive to name a peer", text);
    action.peer = *peer;
  }
  if (!rest.empty()) return NotAnAction(text);
  return action;
}

}  // namespace penstock
