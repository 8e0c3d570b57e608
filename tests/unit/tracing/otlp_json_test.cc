#include "server/tracing/otlp_json.h"

#include <nlohmann/json.hpp>

#include "gtest/gtest.h"

namespace penstock {
namespace {

Span Example() {
  Span span;
  span.context = *ParseTraceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
  span.context.state = "congo=t61rcWkgMzE";
  span.parent = ParseTraceparent("00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01")->span_id;
  span.name = "Recv.penstock.v1.WorkService.TrainStep";
  span.kind = Span::Kind::kServer;
  span.begin_unix_nanos = 1'700'000'000'123'456'789;
  span.end_unix_nanos = 1'700'000'001'000'000'000;
  span.attributes = {
      {"rpc.system", std::string("grpc")}, {"rpc.grpc.status_code", int64_t{13}}, {"penstock.retry", false}};
  span.failed = true;
  span.message = "the \"worst\"";
  return span;
}

TEST(OtlpJsonTest, HasTheFormOfTheProtocol) {
  Span child = Example();
  child.context.state.clear();
  child.kind = Span::Kind::kInternal;
  child.name = "run";
  child.attributes.clear();
  child.failed = false;
  const Span spans[] = {Example(), child};
  EXPECT_EQ(
      ToOtlpJson({{"service.name", std::string("penstock")}}, "0.1.0", spans),
      R"({"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"penstock"}}]},)"
      R"("scopeSpans":[{"scope":{"name":"penstock","version":"0.1.0"},"spans":[)"
      R"({"traceId":"0af7651916cd43dd8448eb211c80319c","spanId":"b7ad6b7169203331","traceState":"congo=t61rcWkgMzE",)"
      R"("parentSpanId":"00f067aa0ba902b7","flags":1,"name":"Recv.penstock.v1.WorkService.TrainStep","kind":2,)"
      R"("startTimeUnixNano":"1700000000123456789","endTimeUnixNano":"1700000001000000000","attributes":[)"
      R"({"key":"rpc.system","value":{"stringValue":"grpc"}},{"key":"rpc.grpc.status_code","value":{"intValue":"13"}},)"
      R"({"key":"penstock.retry","value":{"boolValue":false}}],)"
      R"("status":{"message":"the \"worst\"","code":2}},)"
      R"({"traceId":"0af7651916cd43dd8448eb211c80319c","spanId":"b7ad6b7169203331","parentSpanId":"00f067aa0ba902b7",)"
      R"("flags":1,"name":"run","kind":1,"startTimeUnixNano":"1700000000123456789",)"
      R"("endTimeUnixNano":"1700000001000000000","attributes":[],"status":{}}]}]}]})");
}

TEST(OtlpJsonTest, TextOfCallersStaysInsideItsQuotes) {
  Span span = Example();
  span.attributes = {{"penstock.caller", std::string("a\"},\n{\"b\xff")}};
  const nlohmann::json read = nlohmann::json::parse(ToOtlpJson({}, "", {&span, 1}));
  const auto& attributes = read["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"];
  EXPECT_EQ(attributes[0]["value"]["stringValue"], "a\"},\n{\"b\xc3\xbf");
}

}  // namespace
}  // namespace penstock
