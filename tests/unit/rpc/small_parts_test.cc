// Names, ids, durations, page tokens, admission, digests: the small rules of every call.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/wire/tensor_header.h"
#include "penstock/v1/work.pb.h"
#include "server/rpc/admission.h"
#include "server/rpc/call_context.h"
#include "server/rpc/call_order.h"
#include "server/rpc/convert/page_token.h"
#include "server/rpc/convert/payload_digest.h"
#include "tests/support/failing_new.h"
#include "tests/support/fake_clock.h"

namespace penstock {
namespace {

constexpr char kUuid[] = "0f8c7757-870b-43f4-a987-fbf90a3ee4f6";

TEST(RequestId, IsACanonicalLowerCaseUuid) {
  EXPECT_TRUE(CheckRequestId(kUuid, true).ok());
  EXPECT_TRUE(CheckRequestId("", false).ok());
  EXPECT_EQ(ReasonOf(CheckRequestId("", true)), "REQUEST_ID_MISSING");
  for (const char* bad : {"0F8C7757-870b-43f4-a987-fbf90a3ee4f6", "0f8c7757870b43f4a987fbf90a3ee4f6", "x",
                          "0f8c7757-870b-43f4-a987-fbf90a3ee4f6 ", "0f8c7757-870b-43f4-a987-fbf90a3ee4g6"}) {
    EXPECT_EQ(ReasonOf(CheckRequestId(bad, false)), "FIELD_INVALID") << bad;
  }
}

TEST(Names, AreTakenOrRefusedWithFieldAndValue) {
  EXPECT_EQ(*ParsePipelineName("pipelines/gpt-2", "name"), "gpt-2");
  EXPECT_EQ(*ParsePipelineName("pipelines/simple_identity", "name"), "simple_identity");
  const std::string longest = "a" + std::string(62, 'b');
  EXPECT_TRUE(CheckIdentifier(longest, "name").ok());
  for (const std::string& bad :
       {std::string(), std::string("gpt"), std::string("pipelines/"), std::string("pipelines/Gpt"),
        std::string("pipelines/a-"), std::string("pipelines/a_"), std::string("pipelines/_a"),
        std::string("pipelines/-a"), std::string("pipelines/../etc"), "pipelines/" + longest + "c",
        std::string("pipelines/a\0b", 13), std::string("/pipelines/a"), std::string(1 << 16, 'p')}) {
    const auto parsed = ParsePipelineName(bad, "name");
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_EQ(ReasonOf(parsed.status()), "NAME_INVALID");
    EXPECT_EQ(ValuesOf(parsed.status())["field"], "name");
    EXPECT_LE(ValuesOf(parsed.status())["value"].size(), 64u);
  }
  const auto checkpoint = ParseCheckpointName("pipelines/a/checkpoints/step-7", "name");
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ(checkpoint->pipeline, "a");
  EXPECT_EQ(checkpoint->checkpoint, "step-7");
  EXPECT_FALSE(ParseCheckpointName("pipelines/a/checkpoints/../b", "name").ok());
}

TEST(Durations, StayWithinTheirLimits) {
  google::protobuf::Duration duration;
  const auto check = [&](int64_t seconds, int32_t nanos) {
    duration.set_seconds(seconds);
    duration.set_nanos(nanos);
    return CheckedDuration(duration, absl::Seconds(60), "wait_for");
  };
  EXPECT_EQ(*check(1, 500'000'000), absl::Milliseconds(1500));
  EXPECT_TRUE(check(60, 0).ok());
  EXPECT_FALSE(check(60, 1).ok());
  EXPECT_FALSE(check(-1, 0).ok());
  EXPECT_FALSE(check(0, -1).ok());
  EXPECT_FALSE(check(0, 1'000'000'000).ok());
  EXPECT_FALSE(check(std::numeric_limits<int64_t>::max(), 0).ok());
  EXPECT_FALSE(check(std::numeric_limits<int64_t>::min(), 0).ok());
}

TEST(PageTokens, LeadBackToTheirPlace) {
  testing::FakeClock clock;
  const PageTokens tokens(&clock);
  EXPECT_EQ(*tokens.Read("List ann", ""), "");
  const std::string token = tokens.Make("List ann", "place");
  EXPECT_EQ(*tokens.Read("List ann", token), "place");
}

TEST(PageTokens, AreBoundToListServerAndHour) {
  testing::FakeClock clock;
  const PageTokens tokens(&clock);
  const PageTokens others(&clock);
  const std::string token = tokens.Make("List ann", "place");
  const absl::Status foreign = tokens.Read("List bob", token).status();
  EXPECT_EQ(ReasonOf(foreign), "PAGE_TOKEN_INVALID");
  EXPECT_EQ(ValuesOf(foreign)["field"], "page_token");
  EXPECT_EQ(ValuesOf(foreign)["value"], Shortened(token));
  EXPECT_EQ(ReasonOf(others.Read("List ann", token).status()), "PAGE_TOKEN_INVALID");
  for (size_t i = 0; i < token.size(); ++i) {
    std::string changed = token;
    changed[i] = changed[i] == 'A' ? 'B' : 'A';
    if (changed == token) continue;
    const auto read = tokens.Read("List ann", changed);
    // The last character may hold bits that no byte needs.
    if (i + 1 < token.size()) {
      EXPECT_FALSE(read.ok()) << i;
    }
  }
  for (const std::string& bad : {std::string("x"), std::string("!!!!"), std::string(5000, 'A')}) {
    EXPECT_EQ(ReasonOf(tokens.Read("List ann", bad).status()), "PAGE_TOKEN_INVALID");
  }
  clock.Advance(PageTokens::kLife);
  EXPECT_TRUE(tokens.Read("List ann", token).ok());
  clock.Advance(absl::Nanoseconds(1));
  EXPECT_EQ(ReasonOf(tokens.Read("List ann", token).status()), "PAGE_TOKEN_INVALID");
}

TEST(PageSize, HasADefaultAndLimits) {
  EXPECT_EQ(*CheckedPageSize(0), 50);
  EXPECT_EQ(*CheckedPageSize(1000), 1000);
  EXPECT_FALSE(CheckedPageSize(-1).ok());
  EXPECT_FALSE(CheckedPageSize(1001).ok());
}

TEST(Admission, OpensAndClosesItsGate) {
  Admission admission(2, nullptr);
  EXPECT_EQ(ReasonOf(admission.Admit("ann", "gpt").status()), "STARTING");
  admission.SetGate(Admission::Gate::kOpen);
  EXPECT_TRUE(admission.Admit("ann", "gpt").ok());
  admission.SetGate(Admission::Gate::kDraining);
  EXPECT_EQ(ReasonOf(admission.Admit("ann", "gpt").status()), "DRAINING");
}

TEST(Admission, CountsEachCallerByItself) {
  Admission admission(2, nullptr);
  admission.SetGate(Admission::Gate::kOpen);
  auto first = admission.Admit("ann", "gpt");
  auto second = admission.Admit("ann", "gpt");
  ASSERT_TRUE(first.ok() && second.ok());
  const auto third = admission.Admit("ann", "gpt");
  EXPECT_EQ(ReasonOf(third.status()), "CALLER_QUOTA");
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(admission.Admit("bob", "gpt").ok());
  first->reset();
  EXPECT_TRUE(admission.Admit("ann", "gpt").ok());
  EXPECT_EQ(admission.in_flight(), 1);
}

// Each allocation fails once, one after another.
TEST(Admission, CountsNoCallThatFoundNoMemory) {
  if (!testing::kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  Admission admission(1, nullptr);
  admission.SetGate(Admission::Gate::kOpen);
  const std::string caller(40, 'a');  // longer than a string keeps by itself
  int thrown = 0;
  for (bool failed = true; failed;) {
    testing::FailNewOnce(thrown);
    try {
      EXPECT_TRUE(admission.Admit(caller, "gpt").ok());
    } catch (const std::bad_alloc&) {
      ++thrown;
    }
    failed = testing::StopFailingNew();
    ASSERT_EQ(admission.in_flight(), 0) << thrown;
  }
  EXPECT_GT(thrown, 2);
}

TEST(CallOrder, ACallThatFoundNoMemoryIsNotExpected) {
  if (!testing::kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  const CallOrder::Key key{"ann", "gpt", std::string(40, 'a')};
  int thrown = 0;
  for (bool failed = true; failed;) {
    CallOrder order;
    int runs = 0;
    CallOrder::Key copy = key;
    std::function<void()> go = [&runs] { ++runs; };
    bool added = false;
    testing::FailNewOnce(thrown);
    try {
      order.Add(std::move(copy), std::move(go));
      added = true;
    } catch (const std::bad_alloc&) {
      ++thrown;
    }
    failed = testing::StopFailingNew();
    order.Accepted(key);
    EXPECT_EQ(runs, added ? 1 : 0);
  }
  EXPECT_GT(thrown, 1);
}

TEST(CallOrder, AChainOfWaitingCallsRunsOneAfterTheOther) {
  CallOrder order;
  const auto key = [](int i) { return CallOrder::Key{"ann", "gpt", std::to_string(i)}; };
  constexpr int kCalls = 100'000;  // more than a stack holds
  std::vector<int> ran;
  for (int i = 1; i <= kCalls; ++i) {
    order.Add(key(i - 1), [&, i] {
      ran.push_back(i);
      order.Accepted(key(i));
    });
  }
  order.Accepted(key(0));
  ASSERT_EQ(ran.size(), kCalls);
  EXPECT_TRUE(std::is_sorted(ran.begin(), ran.end()));
}

TEST(CallOrder, WhatIsRemovedDoesNotRunAndIsGone) {
  CallOrder order;
  const CallOrder::Key first{"ann", "gpt", "first"};
  bool ran = false;
  const CallOrder::WaitId id = order.Add(first, [&] { ran = true; });
  EXPECT_TRUE(order.Remove(id));
  EXPECT_FALSE(order.Remove(id)) << "whoever comes second does nothing";
  order.Accepted(first);
  EXPECT_FALSE(ran);
}

TEST(CallOrder, WhatAFollowerThrowsIsNotItsPredecessorsFailure) {
  CallOrder order;
  const CallOrder::Key first{"ann", "gpt", "first"};
  bool second = false;
  order.Add(first, [] { throw std::runtime_error("no"); });
  order.Add(first, [&] { second = true; });
  EXPECT_NO_THROW(order.Accepted(first));
  EXPECT_TRUE(second);
}

TEST(PayloadDigest, ForgetsIdAndReplyOnly) {
  v1::TrainStepRequest request;
  request.set_pipeline("pipelines/gpt");
  const std::string digest = PayloadDigest(request);
  request.set_request_id(kUuid);
  request.mutable_reply()->set_inline_bytes(7);
  EXPECT_EQ(PayloadDigest(request), digest);
  request.set_micro_batches(2);
  EXPECT_NE(PayloadDigest(request), digest);
  v1::ForwardBackwardRequest other;  // the same bytes, another method
  other.set_pipeline("pipelines/gpt");
  EXPECT_NE(PayloadDigest(other), digest);
}

}  // namespace
}  // namespace penstock
