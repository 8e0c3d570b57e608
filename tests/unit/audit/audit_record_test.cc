#include "server/audit/audit_record.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace penstock {
namespace {

TEST(AuditRecordTest, ALineHasEveryFieldByItsName) {
  const AuditRecord record{.time = absl::FromUnixMillis(1'800'000'000'123),
                           .identity = "ann",
                           .role = "train",
                           .peer = "ipv4:192.0.2.1:50000",
                           .method = "penstock.v1.WorkService/TrainStep",
                           .pipeline = "gpt",
                           .target = "pipelines/gpt",
                           .request_id = "00000000-0000-4000-8000-000000000001",
                           .code = "OK",
                           .reason = "",
                           .duration = absl::Milliseconds(250)};
  EXPECT_EQ(AuditLine(record),
            "{\"time\": \"2027-01-15T08:00:00.123Z\", \"identity\": \"ann\", \"role\": \"train\", "
            "\"peer\": \"ipv4:192.0.2.1:50000\", \"method\": \"penstock.v1.WorkService/TrainStep\", "
            "\"pipeline\": \"gpt\", \"target\": \"pipelines/gpt\", "
            "\"request_id\": \"00000000-0000-4000-8000-000000000001\", \"code\": \"OK\", \"reason\": \"\", "
            "\"seconds\": 0.25}\n");
}

TEST(AuditRecordTest, NothingThatACallerChoosesEndsTheLineOrMakesAField) {
  const std::string forged = "x\", \"role\": \"admin\"}\n{\"identity\": \"root\\\r\x01\xff\xe2\x80\xa8";
  AuditRecord record;
  record.identity = record.pipeline = record.target = record.request_id = record.method = forged;
  const std::string line = AuditLine(record);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_EQ(line.find('\r'), std::string::npos);
  EXPECT_EQ(line.find('\x01'), std::string::npos);
  EXPECT_EQ(line.find("\xe2\x80\xa8"), std::string::npos);
  const nlohmann::json read = nlohmann::json::parse(line);
  EXPECT_EQ(read["role"], "");
  EXPECT_EQ(read.size(), 11);
}

TEST(AuditRecordTest, WhatIsLongIsCut) {
  AuditRecord record;
  record.target = std::string(100'000, 'x');
  EXPECT_EQ(nlohmann::json::parse(AuditLine(record))["target"], std::string(256, 'x'));
}

}  // namespace
}  // namespace penstock
