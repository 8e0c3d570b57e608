#include "engine/ledger/memory_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr auto kModels = MemoryClass::kModels;
constexpr auto kPipelines = MemoryClass::kPipelines;
constexpr auto kMessages = MemoryClass::kMessages;
constexpr auto kHandles = MemoryClass::kHandles;
constexpr auto kUploads = MemoryClass::kUploads;

MemoryPool Handles() {
  return {.classes = {kHandles, kUploads},
          .flag = "handle-bytes",
          .identity_flag = "handle-bytes-per-caller",
          .reason = "HANDLE_BUDGET",
          .limit_bytes = 40,
          .identity_bytes = 20,
          .kept_bytes = 30};
}

TEST(MemoryLedger, ARefusalNamesTheClassWhatWasAskedWhatIsFreeAndWhoHoldsIt) {
  MemoryLedger ledger(100);
  const auto results = *ledger.Take({kHandles, "ann", "gpt"}, 10);
  const auto gpt = *ledger.Take({kPipelines, "ann", "gpt"}, 60);
  const absl::Status refused = ledger.Take({kModels, "bob"}, 31).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), "HOST_MEMORY");
  EXPECT_EQ(std::string(refused.message()),
            "no memory for models (caller bob): asked for 31 bytes, 30 of 100 (--memory-limit) are free; held: "
            "pipelines (pipeline gpt, caller ann) 60, handles (pipeline gpt, caller ann) 10");
  auto values = ValuesOf(refused);
  EXPECT_EQ(values["memory_class"], "models");
  EXPECT_EQ(values["limit"], "memory-limit");
  EXPECT_EQ(values["limit_value"], "100");
  EXPECT_EQ(values["used"], "70");
  EXPECT_EQ(values["free"], "30");
  EXPECT_EQ(values["value"], "31");
  EXPECT_EQ(values["retry_after_ms"], "1000");
  EXPECT_EQ(ledger.bytes(), 70) << "a refusal takes nothing";
  EXPECT_TRUE(ledger.Take({kModels, "bob"}, 30).ok());
}

TEST(MemoryLedger, NamesOnlyHoldersThatTheCallerMaySee) {
  MemoryLedger ledger({.limit_bytes = 100, .may_see = [](const std::string& asking, const MemoryHolder& holder) {
                         return asking == holder.identity || asking == "root";
                       }});
  const auto ann = *ledger.Take({kPipelines, "ann", "secret"}, 60);
  const auto bob = *ledger.Take({kPipelines, "bob", "own"}, 30);
  const auto told = [&](const std::string& asking) {
    const std::string message(ledger.Take({kModels, asking}, 20).status().message());
    return message.substr(message.find("held: "));
  };
  EXPECT_EQ(told("bob"), "held: pipelines (pipeline own, caller bob) 30, others 60");
  EXPECT_EQ(told("cid"), "held: others 90");
  EXPECT_EQ(told("root"), "held: pipelines (pipeline secret, caller ann) 60, pipelines (pipeline own, caller bob) 30");
}

TEST(MemoryLedger, NamesThreeOfManyHolders) {
  MemoryLedger ledger(100);
  std::vector<MemoryReservation> held;
  for (int i = 1; i <= 5; ++i) held.push_back(*ledger.Take({kPipelines, "ann", "p" + std::to_string(i)}, 10 * i / 2));
  const std::string message(ledger.Take({kModels}, 100).status().message());
  EXPECT_EQ(message.substr(message.find("held: ")),
            "held: pipelines (pipeline p5, caller ann) 25, pipelines (pipeline p4, caller ann) 20, pipelines (pipeline "
            "p3, caller ann) 15, others 15");
}

TEST(MemoryLedger, WhatGoesIsFree) {
  MemoryLedger ledger(100);
  {
    const auto gpt = *ledger.Take({kPipelines}, 100);
    EXPECT_FALSE(ledger.Take({kModels}, 1).ok());
  }
  EXPECT_EQ(ledger.bytes(), 0);
  EXPECT_TRUE(ledger.State().holders.empty());
  EXPECT_TRUE(ledger.Take({kModels}, 100).ok());
}

TEST(MemoryLedger, AReservationMovesGrowsAndShrinks) {
  MemoryLedger ledger(100);
  MemoryReservation gpt = *ledger.Take({kPipelines}, 60);
  const auto mlp = *ledger.Take({kPipelines}, 30);
  EXPECT_EQ(ReasonOf(gpt.Resize(71)), "HOST_MEMORY");
  EXPECT_EQ(gpt.bytes(), 60) << "what can't grow stays as it was";
  EXPECT_TRUE(gpt.Resize(70).ok());
  MemoryReservation moved = std::move(gpt);
  EXPECT_EQ(gpt.bytes(), 0);  // NOLINT: what was moved from holds nothing
  EXPECT_EQ(moved.bytes(), 70);
  EXPECT_EQ(ledger.bytes(), 100);
  moved.ShrinkTo(80);
  EXPECT_EQ(moved.bytes(), 70) << "it never grows so";
  moved.ShrinkTo(5);
  EXPECT_EQ(ledger.bytes(), 35);
  moved = *ledger.Take({kModels}, 1);
  EXPECT_EQ(ledger.bytes(), 31);
  moved.Release();
  moved.Release();
  EXPECT_EQ(ledger.bytes(), 30);
}

TEST(MemoryLedger, WithoutALedgerEverythingFits) {
  MemoryReservation held = *TakeMemory(nullptr, {kModels}, int64_t{1} << 60);
  EXPECT_TRUE(held.Resize(int64_t{1} << 61).ok());
  EXPECT_TRUE(held.Become(kPipelines).ok());
}

TEST(MemoryLedger, APoolBoundsItsClassesTogetherAndEachIdentity) {
  MemoryLedger ledger({.limit_bytes = 1000, .pools = {Handles()}});
  const auto ann = *ledger.Take({kHandles, "ann"}, 12);
  const auto sent = *ledger.Take({kUploads, "ann"}, 8);
  const absl::Status share = ledger.Take({kHandles, "ann"}, 1).status();
  EXPECT_EQ(ReasonOf(share), "HANDLE_BUDGET");
  EXPECT_EQ(ValuesOf(share)["limit"], "handle-bytes-per-caller");
  EXPECT_EQ(ValuesOf(share)["limit_value"], "20");
  const auto bob = *ledger.Take({kUploads, "bob"}, 19);
  const absl::Status pool = ledger.Take({kHandles, "cid"}, 2).status();
  EXPECT_EQ(ReasonOf(pool), "HANDLE_BUDGET");
  EXPECT_EQ(ValuesOf(pool)["limit"], "handle-bytes");
  EXPECT_EQ(ValuesOf(pool)["free"], "1");
  EXPECT_THAT(ledger.State().holders,
              UnorderedElementsAre(Pair(MemoryHolder{kHandles, "ann"}, 12), Pair(MemoryHolder{kUploads, "ann"}, 8),
                                   Pair(MemoryHolder{kUploads, "bob"}, 19)));
}

TEST(MemoryLedger, WhatIsKeptForAPoolIsTakenByNoOther) {
  MemoryLedger ledger({.limit_bytes = 100, .pools = {Handles()}});
  EXPECT_EQ(ValuesOf(ledger.Take({kPipelines}, 71).status())["free"], "70");
  const auto gpt = *ledger.Take({kPipelines}, 70);
  EXPECT_EQ(ReasonOf(ledger.Take({kModels}, 1).status()), "HOST_MEMORY");
  const auto ann = *ledger.Take({kHandles, "ann"}, 20);
  const auto bob = *ledger.Take({kHandles, "bob"}, 10);
  EXPECT_EQ(ReasonOf(ledger.Take({kHandles, "bob"}, 1).status()), "HOST_MEMORY") << "beyond what is kept it shares";
  EXPECT_EQ(ledger.bytes(), 100);
}

TEST(MemoryLedger, AShareBindsWhileAnotherHoldsSome) {
  MemoryLedger ledger(
      {.limit_bytes = 1000, .pools = {{.classes = {kMessages}, .flag = "messages", .limit_bytes = 40}}});
  MemoryReservation ann = *ledger.Take({kMessages, "ann"}, 30);
  EXPECT_EQ(ReasonOf(ann.Resize(31)), "CALLER_QUOTA") << "a quarter stays for the next";
  const auto bob = *ledger.Take({kMessages, "bob"}, 10);
  EXPECT_EQ(ReasonOf(ledger.Take({kMessages, "cid"}, 1).status()), "HOST_MEMORY");
  ann.ShrinkTo(10);
  const absl::Status quarter = ann.Resize(11);
  EXPECT_EQ(ReasonOf(quarter), "CALLER_QUOTA");
  EXPECT_EQ(ValuesOf(quarter)["limit_value"], "10");
}

TEST(MemoryLedger, TheFirstOfAnIdentityNeedsRoomOnly) {
  MemoryLedger ledger(
      {.limit_bytes = 1000, .pools = {{.classes = {kMessages}, .flag = "messages", .limit_bytes = 40}}});
  EXPECT_TRUE(ledger.Take({kMessages, "ann"}, 40).ok());
}

TEST(MemoryLedger, WhatIsGivenIsCountedOnceWhateverTheLimitOfItsNewOwner) {
  int64_t least = 20;
  const auto changed = [&least](MemoryClass, int64_t bytes) { least = std::min(least, bytes); };
  MemoryLedger ledger({.limit_bytes = 1000, .pools = {Handles()}, .changed = changed});
  MemoryReservation bob = *ledger.Take({kHandles, "bob"}, 0);
  const auto full = *ledger.Take({kHandles, "bob"}, 20);
  MemoryReservation ann = *ledger.Take({kHandles, "ann"}, 5);
  ann.GiveTo(bob);
  EXPECT_EQ(ann.bytes(), 0);
  EXPECT_EQ(bob.bytes(), 5);
  EXPECT_THAT(ledger.State().holders, ElementsAre(Pair(MemoryHolder{kHandles, "bob"}, 25)));
  EXPECT_EQ(ledger.BytesOf(kHandles), 25);
  EXPECT_EQ(least, 20) << "it was never less";
  EXPECT_EQ(ReasonOf(bob.Resize(6)), "HANDLE_BUDGET");
  EXPECT_TRUE(ledger.Take({kHandles, "ann"}, 5).ok());
  ann.Release();
  bob.Release();
  EXPECT_EQ(ledger.BytesOf(kHandles), 20);
  MemoryReservation nowhere, elsewhere;
  ASSERT_TRUE(nowhere.Resize(7).ok());
  nowhere.GiveTo(elsewhere);
  EXPECT_EQ(elsewhere.bytes(), 7);
}

TEST(MemoryLedger, AnUploadBecomesAResultWithoutAskingAgain) {
  MemoryLedger ledger({.limit_bytes = 40, .pools = {Handles()}});
  MemoryReservation upload = *ledger.Take({kUploads, "ann", "gpt"}, 20);
  const auto bob = *ledger.Take({kUploads, "bob"}, 20);
  EXPECT_TRUE(upload.Become(kHandles).ok());
  EXPECT_EQ(upload.bytes(), 20);
  EXPECT_EQ(ledger.BytesOf(kUploads), 20);
  EXPECT_EQ(ledger.BytesOf(kHandles), 20);
  EXPECT_THAT(ledger.State().holders,
              ElementsAre(Pair(MemoryHolder{kHandles, "ann", "gpt"}, 20), Pair(MemoryHolder{kUploads, "bob"}, 20)));
  EXPECT_EQ(ReasonOf(upload.Become(kModels)), "HOST_MEMORY") << "of another pool, it must fit twice";
  EXPECT_EQ(ledger.bytes(), 40);
}

TEST(MemoryLedger, WhatMustNotFailIsCountedBeyondTheLimit) {
  MemoryLedger ledger(100);
  const auto gpt = *ledger.Take({kPipelines}, 90);
  auto last = ledger.TakeAnyway({MemoryClass::kSnapshots}, 30);
  last.ResizeAnyway(50);
  EXPECT_EQ(ledger.bytes(), 140);
  EXPECT_EQ(ValuesOf(ledger.Take({kModels}, 1).status())["free"], "0");
  last.ResizeAnyway(5);
  EXPECT_EQ(ledger.bytes(), 95);
}

TEST(MemoryLedger, StatesSumsPeaksAndRefusals) {
  MemoryLedger ledger({.limit_bytes = 100, .pools = {Handles()}});
  {
    const auto gpt = *ledger.Take({kPipelines, "ann"}, 50);
    EXPECT_FALSE(ledger.Take({kPipelines, "ann"}, 50).ok());
  }
  const auto gpt = *ledger.Take({kPipelines, "ann"}, 20);
  const auto mlp = *ledger.Take({kPipelines, "ann"}, 10);
  const MemoryLedger::Statement state = ledger.State();
  const MemoryLedger::ClassUse& pipelines = state.classes[static_cast<size_t>(kPipelines)];
  EXPECT_EQ(state.bytes, 30);
  EXPECT_EQ(pipelines.bytes, 30);
  EXPECT_EQ(pipelines.peak_bytes, 50);
  EXPECT_EQ(pipelines.reservations, 2);
  EXPECT_EQ(pipelines.refusals, 1);
  EXPECT_EQ(pipelines.limit_bytes, 0);
  EXPECT_EQ(state.classes[static_cast<size_t>(kUploads)].limit_bytes, 40);
  EXPECT_THAT(state.holders, ElementsAre(Pair(MemoryHolder{kPipelines, "ann"}, 30)));
}

TEST(MemoryLedger, TellsTheSumOfAClassWhenItChanges) {
  std::vector<std::pair<MemoryClass, int64_t>> told;
  int refused = 0;
  MemoryLedger ledger({.limit_bytes = 100,
                       .changed = [&](MemoryClass kind, int64_t bytes) { told.emplace_back(kind, bytes); },
                       .refused = [&](MemoryClass) { ++refused; }});
  {
    MemoryReservation gpt = *ledger.Take({kPipelines}, 60);
    EXPECT_FALSE(gpt.Resize(101).ok());
    EXPECT_TRUE(gpt.Resize(40).ok());
  }
  EXPECT_THAT(told, ElementsAre(Pair(kPipelines, 60), Pair(kPipelines, 40), Pair(kPipelines, 0)));
  EXPECT_EQ(refused, 1);
}

TEST(MemoryLedger, TheDefaultLeavesATenthAndTheProcess) {
  EXPECT_EQ(DefaultMemoryLimit(1000, 100), 800);
  EXPECT_EQ(DefaultMemoryLimit(100, 1000), 0);
}

}  // namespace
}  // namespace penstock
