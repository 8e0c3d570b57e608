#include "engine/serve/open_training.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

// The text: words between blanks, texts of callers in base64.
//
//   open NEXT_MICRO_BATCH LOSS_FINITE; held CALLER SESSION AGE LEASE; lost CALLER SESSION CAUSE AGE; ...
//
// "open" is "closed" where no gradients wait; "held" is there where they have a holder, "lost" once for each loss.

std::string Text(const std::string& text) { return absl::Base64Escape(text); }

// Reads words; the first fault makes it bad.
class Words {
 public:
  explicit Words(std::vector<std::string> words) : words_(std::move(words)) {}

  const std::string& kind() const { return words_[0]; }
  bool Has(size_t count) {
    good_ = good_ && words_.size() == count + 1;
    return good_;
  }
  std::string TextAt(size_t index) {
    std::string text;
    good_ = good_ && absl::Base64Unescape(words_[index], &text);
    return text;
  }
  int64_t NumberAt(size_t index) {
    int64_t number = 0;
    good_ = good_ && absl::SimpleAtoi(words_[index], &number) && number >= 0;
    return number;
  }
  bool good() const { return good_; }

 private:
  const std::vector<std::string> words_;
  bool good_ = true;
};

}  // namespace

std::string FormatOpenTraining(const OpenTraining& training) {
  if (training.none()) return "";
  const Accumulation& accumulation = training.accumulation;
  std::string text = absl::StrCat(accumulation.open ? "open " : "closed ", accumulation.next_micro_batch, " ",
                                  accumulation.loss_finite ? 1 : 0);
  const TrainingState::Saved& state = training.state;
  if (state.holder.has_value()) {
    absl::StrAppend(&text, "; held ", Text(state.holder->caller), " ", Text(state.holder->session), " ",
                    state.age_nanos, " ", state.lease_nanos);
  }
  for (const TrainingState::Saved::Loss& loss : state.losses) {
    absl::StrAppend(&text, "; lost ", Text(loss.party.caller), " ", Text(loss.party.session), " ", Text(loss.cause),
                    " ", loss.age_nanos);
  }
  return text;
}

absl::StatusOr<OpenTraining> ParseOpenTraining(std::string_view text) {
  OpenTraining training;
  bool good = true;
  for (const absl::string_view part : absl::StrSplit(absl::string_view(text.data(), text.size()), "; ")) {
    Words words(absl::StrSplit(part, ' '));
    if (words.kind() == "held" && words.Has(4)) {
      training.state.holder = TrainingParty{words.TextAt(1), words.TextAt(2)};
      training.state.age_nanos = words.NumberAt(3);
      training.state.lease_nanos = words.NumberAt(4);
    } else if (words.kind() == "lost" && words.Has(4)) {
      training.state.losses.push_back({{words.TextAt(1), words.TextAt(2)}, words.TextAt(3), words.NumberAt(4)});
    } else if (words.Has(2)) {
      training.accumulation.open = words.kind() == "open";
      training.accumulation.next_micro_batch = static_cast<int>(words.NumberAt(1));
      training.accumulation.loss_finite = words.NumberAt(2) == 1;
    }
    good = good && words.good();
  }
  // What was read above with a loose hand must be the only way to write it.
  if (good && FormatOpenTraining(training) == text) return training;
  return InvalidField("training", "is not what was written", std::to_string(text.size()) + " bytes");
}

}  // namespace penstock
