#include "server/rpc/convert/status_to_grpc.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "google/rpc/error_details.pb.h"
#include "tests/support/failing_new.h"

namespace penstock {
namespace {

template <typename Detail>
int CountDetails(const google::rpc::Status& status, Detail* last) {
  int count = 0;
  for (const auto& any : status.details()) {
    if (any.Is<Detail>()) {
      ++count;
      any.UnpackTo(last);
    }
  }
  return count;
}

google::rpc::ErrorInfo InfoOf(const google::rpc::Status& status) {
  google::rpc::ErrorInfo info;
  EXPECT_EQ(CountDetails(status, &info), 1);
  return info;
}

TEST(StatusToGrpc, OkStaysOk) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
  EXPECT_EQ(ToRpcStatus(absl::OkStatus()).code(), 0);
}

TEST(StatusToGrpc, WithoutMemoryTheCodeIsLeft) {
  if (!testing::kCanFailNew) GTEST_SKIP() << "a sanitizer has operators new of its own";
  const absl::Status error = Error(absl::StatusCode::kNotFound, "HANDLE_EXPIRED", "has expired").With("handle", "h1");
  testing::FailNew();
  const grpc::Status told = ToGrpcStatus(error);
  EXPECT_TRUE(testing::StopFailingNew());
  EXPECT_EQ(told.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(told.error_message(), "");
  EXPECT_EQ(ToGrpcStatus(error).error_message(), "has expired");
}

TEST(StatusToGrpc, CarriesReasonDomainAndValues) {
  const auto answer =
      ToRpcStatus(Error(absl::StatusCode::kNotFound, "HANDLE_EXPIRED", "has expired").With("handle", "h1"));
  EXPECT_EQ(answer.code(), 5);
  EXPECT_EQ(answer.message(), "has expired");
  const auto info = InfoOf(answer);
  EXPECT_EQ(info.reason(), "HANDLE_EXPIRED");
  EXPECT_EQ(info.domain(), "penstock.v1");
  EXPECT_EQ(info.metadata().at("handle"), "h1");
  google::rpc::ResourceInfo resource;
  EXPECT_EQ(CountDetails(answer, &resource), 1);
  EXPECT_EQ(resource.resource_name(), "h1");
}

TEST(StatusToGrpc, DetailsTravelInTheStatusOfGrpc) {
  const grpc::Status status = ToGrpcStatus(InvalidField("inputs[0].shape", "must be there", "none"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  google::rpc::BadRequest bad;
  ASSERT_EQ(CountDetails(details, &bad), 1);
  EXPECT_EQ(bad.field_violations(0).field(), "inputs[0].shape");
}

TEST(StatusToGrpc, ThePathStaysHere) {
  const auto answer = ToRpcStatus(Error(absl::StatusCode::kResourceExhausted, "STORAGE_FULL",
                                        "can't write /var/lib/state/file at 0x7f1234567890 now")
                                      .With("path", "/var/lib/state/file"));
  EXPECT_EQ(answer.message(), "can't write (path) at (pointer) now");
  EXPECT_EQ(InfoOf(answer).metadata().count("path"), 0u);
  EXPECT_EQ(answer.SerializeAsString().find("/var"), std::string::npos);
}

TEST(StatusToGrpc, OverloadSaysWhenToComeBack) {
  const absl::Status full = Error(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "full");
  google::rpc::RetryInfo retry;
  EXPECT_EQ(CountDetails(ToRpcStatus(full), &retry), 1);
  EXPECT_EQ(RetryPushbackMillis(full), 100);
  // The error's own value and the hint for generic clients are one time.
  const absl::Status graphs =
      Error(absl::StatusCode::kResourceExhausted, "GRAPH_LIMIT", "graphs").With("retry_after_ms", "1000");
  ASSERT_EQ(CountDetails(ToRpcStatus(graphs), &retry), 1);
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  EXPECT_EQ(RetryPushbackMillis(graphs), 1000);
  for (const char* reason : {"MESSAGE_TOO_LARGE", "TENSOR_TOO_LARGE", "MODEL_TOO_LARGE"}) {
    const absl::Status large = Error(absl::StatusCode::kResourceExhausted, reason, "large");
    EXPECT_EQ(CountDetails(ToRpcStatus(large), &retry), 0) << reason;
    EXPECT_EQ(RetryPushbackMillis(large), -1) << reason;
  }
  EXPECT_EQ(RetryPushbackMillis(InvalidField("a", "b", "c")), std::nullopt);
}

TEST(StatusToGrpc, WhatIsGoneForAWhileSaysWhenToComeBackWhereTheErrorKnows) {
  const Error gone(absl::StatusCode::kUnavailable, "PIPELINE_REFORMING", "gone");
  google::rpc::RetryInfo retry;
  EXPECT_EQ(CountDetails(ToRpcStatus(gone), &retry), 0);
  EXPECT_EQ(RetryPushbackMillis(gone), std::nullopt);
  const absl::Status known = Error(gone).With("retry_after_ms", "1000");
  ASSERT_EQ(CountDetails(ToRpcStatus(known), &retry), 1);
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  EXPECT_EQ(RetryPushbackMillis(known), 1000);
}

TEST(StatusToGrpc, UnknownAndInternalAreBugsWithAnIncident) {
  for (const absl::Status& status :
       {absl::UnknownError("odd"), absl::InternalError("odd"), absl::NotFoundError("no reason")}) {
    const auto answer = ToRpcStatus(status);
    EXPECT_EQ(answer.code(), 13);
    EXPECT_EQ(InfoOf(answer).reason(), "BUG");
    EXPECT_EQ(InfoOf(answer).metadata().at("incident").size(), 16u);
    // A stored error keeps its incident however often it is answered.
    EXPECT_EQ(InfoOf(answer).metadata().at("incident"), InfoOf(ToRpcStatus(status)).metadata().at("incident"));
  }
  EXPECT_EQ(InfoOf(ToRpcStatus(absl::CancelledError("gone"))).reason(), "WORK_CANCELLED");
}

TEST(StatusToGrpc, ABugIsLoggedOnceHoweverOftenItIsAnswered) {
  const absl::Status bug = absl::InternalError("answered twice");
  const int64_t before = LoggedLines(LogLevel::kError);
  ToRpcStatus(bug);
  ToRpcStatus(bug);
  EXPECT_EQ(LoggedLines(LogLevel::kError), before + 1);
}

TEST(StatusToGrpc, IsBoundedWhateverComesIn) {
  Error error(absl::StatusCode::kInvalidArgument, "FIELD_INVALID", std::string(100'000, 'x'));
  for (int i = 0; i < 200; ++i) error.With("value" + std::to_string(i), std::string(1000, 'y'));
  error.With("field", std::string(5000, 'z'));
  const auto answer = ToRpcStatus(error);
  EXPECT_EQ(answer.message().size(), kMaxMessageBytes);
  EXPECT_LE(answer.ByteSizeLong(), kMaxDetailBytes);
  InfoOf(answer);
}

TEST(CleanText, APageOfTheDaemonItselfIsNoPathOfAFile) {
  for (const char* text : {"the page /logz of --admin-listen sets the level", "/statusz", "see /tracez.",
                           "ask (/readyz), then /metrics"}) {
    EXPECT_EQ(CleanText(text, 100), text);
  }
  EXPECT_EQ(CleanText("/logz:/etc/passwd", 100), "/logz:(path)");
  for (const char* path : {"/logz/token", "/logz.txt", "/logz-1", "/logz~", "/logzz", "/log", "/LOGZ", "/logz/",
                           "/run/logz", "//logz", "/etc/logz", "/metrics/secret", "/memory", "/proc/self/environ"}) {
    EXPECT_EQ(CleanText("at " + std::string(path) + " now", 100), "at (path) now") << path;
  }
}

TEST(CleanText, IsPrintableAndValid) {
  EXPECT_EQ(CleanText("a\nb\x1b[31mc\xff", 100), "a b?[31mc?");
  EXPECT_EQ(CleanText("grün ✓", 100), "grün ✓");
  EXPECT_EQ(CleanText("grün", 3), "gr");  // never half a character
  EXPECT_EQ(CleanText("pipelines/gpt/handles/1 and 3/4", 100), "pipelines/gpt/handles/1 and 3/4");
  EXPECT_EQ(CleanText("pipelines/{pipeline}/handles/{handle}, got foo", 100),
            "pipelines/{pipeline}/handles/{handle}, got foo");
  EXPECT_EQ(CleanText("(/etc/passwd)", 100), "((path))");
}

TEST(WithErrorValuesTest, AddsWhatTheErrorDoesNotName) {
  const grpc::Status error = ToGrpcStatus(Error(absl::StatusCode::kNotFound, "PIPELINE_NOT_FOUND", "no such pipeline")
                                              .With("trace_id", "of an earlier call"));
  const grpc::Status named = WithErrorValues(error, {{"trace_id", "0af7"}, {"span_id", "b7ad"}});
  EXPECT_EQ(named.error_code(), error.error_code());
  EXPECT_EQ(named.error_message(), error.error_message());
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.ParseFromString(named.error_details()) && details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "PIPELINE_NOT_FOUND");
  EXPECT_EQ(info.metadata().at("trace_id"), "of an earlier call");
  EXPECT_EQ(info.metadata().at("span_id"), "b7ad");
  EXPECT_EQ(details.details_size(), 2) << "ResourceInfo stays";
}

TEST(WithErrorValuesTest, LeavesWhatIsNotOursAsItIs) {
  const grpc::Status plain(grpc::StatusCode::UNKNOWN, "of the library");
  EXPECT_EQ(WithErrorValues(plain, {{"trace_id", "0af7"}}).error_details(), "");
}

}  // namespace
}  // namespace penstock
