#include "server/http/status_pages.h"

#include <set>
#include <string>

#include "engine/base/log_level.h"
#include "engine/observe/stage_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/http/step_picture.h"
#include "tests/support/fake_clock.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMilli = 1'000'000;
constexpr const char* kMarkup = "<script>alert('x')</script>\"&";
constexpr const char* kImage = "<img src=x onerror=alert(1)>";

class StatusPagesTest : public ::testing::Test {
 protected:
  StatusPagesTest() {
    sources_.registry = &registry_;
    sources_.facts = [] {
      return DaemonFacts{.state = "ready",
                         .epoch = 3,
                         .api_address = "127.0.0.1:1",
                         .metrics_address = "",
                         .admin_address = "127.0.0.1:2"};
    };
    sources_.pipelines = [this] {
      std::vector<PipelineRow> rows = unborn_;
      for (const auto& pipeline : registry_.Snapshot()) rows.push_back({.name = pipeline->name(), .state = "ready"});
      return rows;
    };
    sources_.handles = [this] { return handles_; };
    sources_.owners = [this] { return owners_; };
    sources_.memory = [this] { return memory_; };
    sources_.commands = {.server = [] { return std::string(R"({"version":"1"})"); },
                         .pipelines = [] { return std::string("[]"); },
                         .pipeline = [](const std::string&) { return std::string(R"({"name":"pipelines/gpt"})"); },
                         .statistics = [](const std::string&) { return std::string(R"({"step":3})"); },
                         .checkpoints = [] { return std::string(R"([{"step":4}])"); }};
    sources_.checkpoints = [this] { return checkpoints_; };
    sources_.settings = {{"listen", "127.0.0.1:1", "flag", "Address"}};
    sources_.probes = {.metrics_content_type = "text/plain",
                       .metrics = [] { return std::string("a 1\n"); },
                       .healthy = [] { return std::vector<HealthCondition>{}; },
                       .ready =
                           [] {
                             return std::vector<HealthCondition>{{"model", true, ""}};
                           }};
  }

  std::shared_ptr<PipelineMetrics> AddPipeline(const std::string& name) {
    return registry_.AddPipeline(name,
                                 {{.lane = 0, .device = "cpu:0", .layers = "0-1", .ideal_bubble = 0.25},
                                  {.lane = 1, .device = "cpu:1", .layers = "2-3", .ideal_bubble = 0.25}},
                                 {.kind = "1f1b", .stages = 2, .micro_batches = 2, .checkpoint_mode = "never"});
  }

  // A step of two micro-batches: forward 10 ms, backward 20 ms each; stage 1 begins 10 ms later and waits.
  void RunStep(PipelineMetrics& pipeline) {
    const int64_t begin = clock_.NowNanos();
    for (int lane = 0; lane < 2; ++lane) {
      int64_t at = begin + lane * 10 * kMilli;
      LaneMetrics& metrics = pipeline.lane(lane);
      metrics.state.Enter(StageState::kFill, begin);
      for (int m = 0; m < 2; ++m) {
        for (const auto& [kind, state, time] : {std::tuple{TraceKind::kForward, StageState::kForward, 10 * kMilli},
                                                std::tuple{TraceKind::kBackward, StageState::kBackward, 20 * kMilli}}) {
          metrics.state.Enter(state, at);
          metrics.trace.actions.Record({.begin_nanos = at,
                                        .end_nanos = at + time,
                                        .kind = kind,
                                        .lane = static_cast<int16_t>(lane),
                                        .stage = lane,
                                        .micro_batch = m,
                                        .step = 7,
                                        .run = 5});
          at += time;
        }
      }
      metrics.state.Enter(StageState::kDrain, at);
      metrics.state.Enter(StageState::kNoWork, begin + 80 * kMilli);
      metrics.trace.actions.Record({.begin_nanos = begin,
                                    .end_nanos = begin + 80 * kMilli,
                                    .kind = TraceKind::kRun,
                                    .detail = static_cast<uint8_t>(TraceRun::kTrainStep),
                                    .lane = static_cast<int16_t>(lane),
                                    .micro_batch = 2,
                                    .step = 7,
                                    .run = 5});
    }
    clock_.AdvanceNanos(100 * kMilli);
  }

  HttpResponse Get(std::string_view path, std::string_view query = "", std::string_view accept = "*/*") {
    return RespondStatus(sources_,
                         {.method = "GET", .path = path, .query = query, .host = "localhost:8474", .accept = accept});
  }
  std::string Html(std::string_view path, std::string_view query = "") {
    return Get(path, query, "text/html,application/xhtml+xml").body;
  }

  testing::FakeClock clock_;
  MetricsRegistry registry_{&clock_};
  std::vector<PipelineRow> unborn_;  // without metrics
  std::vector<HandleRow> handles_;
  std::vector<OwnerRow> owners_;
  MemoryRows memory_;
  std::vector<CheckpointRow> checkpoints_;
  StatusSources sources_;
};

const std::vector<std::string> kPaths = {"/",       "/statusz",     "/pipeline", "/queuez", "/handlez",
                                         "/memory", "/checkpointz", "/tracez",   "/logz",   "/flagz"};

TEST_F(StatusPagesTest, MemoryTellsClassesAndHolders) {
  registry_.memory().process.Set(7);
  memory_ = {.limit_bytes = 100,
             .bytes = 60,
             .classes = {{.name = "pipelines", .bytes = 50, .peak_bytes = 55, .reservations = 1, .refusals = 2},
                         {.name = "handles", .bytes = 10, .peak_bytes = 10, .limit_bytes = 20, .kept_bytes = 20}},
             .holders = {{"pipelines", "ann", "gpt", 50}, {"handles", "bob", "gpt", 10}}};
  const std::string page = Get("/memory", "format=json").body;
  for (const char* told :
       {R"("reserved_bytes": 60)", R"("limit_bytes": 100)", R"("process_bytes": 7)", R"("peak_bytes": 55)",
        R"("refusals": 2)", R"("class": "handles")", R"("caller": "ann")", R"("kept_bytes": 20)"}) {
    EXPECT_THAT(page, HasSubstr(told));
  }
  EXPECT_THAT(Get("/memz", "format=json").body, HasSubstr(R"("reserved_bytes": 60)")) << "its earlier name";
}

TEST_F(StatusPagesTest, MemoryTellsWhatADevicesAllocatorCounts) {
  const auto counts = [] { return AllocatorBytes{.allocated = 40, .cached = 24}; };
  registry_.server().SetDevices(
      {{.name = "cpu:0", .memory_limit_bytes = 90}, {.name = "cuda:0", .memory_limit_bytes = 80, .allocator = counts}});
  const std::string page = Get("/memory", "format=json").body;
  EXPECT_THAT(page, HasSubstr(R"("limit_bytes": 90, "ratio": 0, "allocated_bytes": null, "cached_bytes": null)"));
  EXPECT_THAT(page, HasSubstr(R"("limit_bytes": 80, "ratio": 0, "allocated_bytes": 40, "cached_bytes": 24)"));
}

TEST_F(StatusPagesTest, EveryPageComesAsHtmlTextAndJson) {
  RunStep(*AddPipeline("gpt"));
  for (const std::string& path : kPaths) {
    SCOPED_TRACE(path);
    const HttpResponse html = Get(path, "", "text/html");
    EXPECT_EQ(html.status, 200);
    EXPECT_EQ(html.content_type, "text/html; charset=utf-8");
    EXPECT_THAT(html.body, HasSubstr("<!DOCTYPE html>"));
    const HttpResponse text = Get(path);
    EXPECT_EQ(text.content_type, "text/plain; charset=utf-8");
    EXPECT_THAT(text.body, Not(HasSubstr("<")));
    const HttpResponse json = Get(path, "format=json", "text/html");
    EXPECT_EQ(json.content_type, "application/json");
    EXPECT_TRUE(nlohmann::json::accept(json.body)) << json.body;
    EXPECT_EQ(Get(path, "format=xml").status, 400);
  }
}

TEST_F(StatusPagesTest, NothingIsInlineAndThePolicyForbidsIt) {
  RunStep(*AddPipeline("gpt"));
  for (const std::string& path : kPaths) {
    const HttpResponse response = Get(path, "", "text/html");
    std::map<std::string, std::string> headers(response.headers.begin(), response.headers.end());
    EXPECT_EQ(
        headers["Content-Security-Policy"],
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action "
        "'self'; base-uri 'none'; frame-ancestors 'none'");
    EXPECT_EQ(headers["X-Content-Type-Options"], "nosniff");
    EXPECT_EQ(headers["X-Frame-Options"], "DENY");
    EXPECT_EQ(headers["Referrer-Policy"], "no-referrer");
    EXPECT_EQ(headers["Cross-Origin-Resource-Policy"], "same-origin");
    EXPECT_EQ(headers["Vary"], "Accept");
    EXPECT_THAT(response.body, Not(HasSubstr("<style")));
    EXPECT_THAT(response.body, Not(HasSubstr(" style=")));
    EXPECT_THAT(response.body, Not(HasSubstr("<script>")));
    EXPECT_THAT(response.body, Not(::testing::ContainsRegex(" on[a-z]+=")));
    EXPECT_THAT(response.body, Not(HasSubstr("http://")));
  }
}

TEST_F(StatusPagesTest, WhatLooksLikeMarkupIsShownAsText) {
  const auto pipeline =
      registry_.AddPipeline(kMarkup, {{.lane = 0, .device = kMarkup, .layers = kMarkup}}, {.kind = kMarkup});
  registry_.server().SetDevices({{.name = kMarkup, .memory_limit_bytes = 1}});
  handles_ = {{.pipeline = kMarkup}};
  checkpoints_ = {{.pipeline = kMarkup, .id = kMarkup}};
  unborn_ = {{.name = kMarkup, .state = kMarkup}, {.name = kImage, .state = kImage}};
  owners_ = {{.owner = kImage}};
  sources_.settings = {{kMarkup, kMarkup, kMarkup, kMarkup}};
  sources_.probes.ready = [] { return std::vector<HealthCondition>{{kMarkup, false, kMarkup}}; };
  for (const std::string& path : kPaths) {
    SCOPED_TRACE(path);
    const std::string body = Html(path);
    EXPECT_THAT(body, Not(HasSubstr("<script>alert")));
    EXPECT_THAT(body, Not(HasSubstr("alert('x')")));
    EXPECT_THAT(body, Not(HasSubstr("<img")));
    EXPECT_TRUE(nlohmann::json::accept(Get(path, "format=json").body));
  }
  EXPECT_THAT(Html("/"), HasSubstr("&lt;script&gt;alert(&#39;x&#39;)"));
  // Its link leads to it, and nowhere else.
  EXPECT_THAT(Html("/"), HasSubstr("\"/pipeline?name=%3Cscript%3E"));
  EXPECT_THAT(Html("/pipeline", "name=%3Cscript%3Ealert%28%27x%27%29%3C%2Fscript%3E%22%26"), HasSubstr("Lanes now"));
}

TEST_F(StatusPagesTest, ControlCharactersReachNoTerminal) {
  handles_ = {{.pipeline = "a\x1b[31mb\nc"}};
  EXPECT_THAT(Get("/handlez").body, HasSubstr("a [31mb c"));
  EXPECT_THAT(Html("/handlez"), Not(HasSubstr("\x1b")));
}

TEST_F(StatusPagesTest, OnlyAddressesAndLocalhostMayBeTheHost) {
  for (const char* host :
       {"localhost", "LOCALHOST:8474", "127.0.0.1", "127.0.0.1:8474", "[::1]:8474", "[::1]", "10.0.0.7:80"}) {
    EXPECT_TRUE(IsHostAllowed(host)) << host;
  }
  for (const char* host : {"", "evil.example", "evil.example:8474", "127.0.0.1.evil.example", "localhost.evil.example",
                           "127.0.0.1:x", "[::1", "[evil]:1", "127.1", "localhost:", "localhost:80:80"}) {
    EXPECT_FALSE(IsHostAllowed(host)) << host;
    EXPECT_EQ(RespondStatus(sources_, {.method = "GET", .path = "/", .query = "", .host = host}).status, 403) << host;
  }
}

TEST_F(StatusPagesTest, NothingButGetAndHead) {
  const auto allowed = [&](const char* method, const char* path) {
    const HttpResponse answer =
        RespondStatus(sources_, {.method = method, .path = path, .query = "", .host = "localhost"});
    EXPECT_EQ(answer.status, 405) << method << " " << path;
    std::map<std::string, std::string> headers(answer.headers.begin(), answer.headers.end());
    return headers["Allow"];
  };
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get", ""}) {
    for (const char* path : {"/", "/flagz", "/metrics", "/pipeline"}) EXPECT_EQ(allowed(method, path), "GET, HEAD");
  }
  EXPECT_EQ(allowed("PUT", "/logz"), "GET, HEAD, POST");
  EXPECT_EQ(RespondStatus(sources_, {.method = "HEAD", .path = "/", .query = "", .host = "localhost"}).status, 200);
}

// --- The one change. ---

class ChangeTest : public StatusPagesTest {
 protected:
  ChangeTest() { ConfigureLog(LogLevel::kInfo, LogFormat::kText); }
  ~ChangeTest() override { ConfigureLog(LogLevel::kInfo, LogFormat::kText); }

  const HttpRequest good_ = {.method = "POST",
                             .path = "/logz",
                             .query = "level=debug",
                             .host = "localhost:8474",
                             .origin = "http://localhost:8474",
                             .fetch_site = "same-origin",
                             .change = "1"};
};

TEST_F(ChangeTest, APostOfThisVeryPageChangesTheLogLevel) {
  const HttpResponse answer = RespondStatus(sources_, good_);
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(CurrentLogLevel(), LogLevel::kDebug);
  EXPECT_THAT(Get("/logz").body, HasSubstr("debug  "));
  EXPECT_EQ(nlohmann::json::parse(Get("/logz", "format=json").body)["log"]["level"], "debug");
}

TEST_F(ChangeTest, WithoutABrowserTheHeaderIsEnough) {
  HttpRequest request = good_;
  request.origin = request.fetch_site = "";
  EXPECT_EQ(RespondStatus(sources_, request).status, 200);
  EXPECT_EQ(CurrentLogLevel(), LogLevel::kDebug);
}

TEST_F(ChangeTest, AnotherSiteChangesNothing) {
  const auto refused = [&](auto change, int status) {
    HttpRequest request = good_;
    change(&request);
    const HttpResponse answer = RespondStatus(sources_, request);
    EXPECT_EQ(answer.status, status) << answer.body;
    EXPECT_EQ(CurrentLogLevel(), LogLevel::kInfo);
    return answer.body;
  };
  EXPECT_THAT(refused([](HttpRequest* r) { r->change = ""; }, 403), HasSubstr("X-Penstock-Change"));
  for (const char* origin : {"http://evil.example", "null", "https://localhost:8474", "http://localhost:1"}) {
    EXPECT_THAT(refused([&](HttpRequest* r) { r->origin = origin; }, 403), HasSubstr("Origin"));
  }
  for (const char* site : {"cross-site", "same-site"}) {
    EXPECT_THAT(refused([&](HttpRequest* r) { r->fetch_site = site; }, 403), HasSubstr("Sec-Fetch-Site"));
  }
  EXPECT_THAT(refused([](HttpRequest* r) { r->host = "evil.example"; }, 403), HasSubstr("Host"));
  for (const char* method : {"GET", "HEAD"}) refused([&](HttpRequest* r) { r->method = method; }, 200);
  EXPECT_THAT(refused([](HttpRequest* r) { r->query = "level=lo%0Aud"; }, 400), HasSubstr("got \"lo\\u000aud\""));
  refused([](HttpRequest* r) { r->query = ""; }, 400);
  refused([](HttpRequest* r) { r->path = "/flagz"; }, 405);
}

// --- What the pages tell. ---

TEST_F(StatusPagesTest, ProgramsGetWhatCommandsPrint) {
  AddPipeline("gpt");
  const auto json = [&](const char* path) { return nlohmann::json::parse(Get(path, "format=json").body); };
  EXPECT_EQ(json("/statusz")["server"]["version"], "1");
  EXPECT_EQ(json("/statusz")["pipelines"], nlohmann::json::array());
  EXPECT_EQ(json("/pipeline")["pipeline"]["name"], "pipelines/gpt");
  EXPECT_EQ(json("/pipeline")["statistics"]["step"], 3);
  EXPECT_EQ(json("/checkpointz")["checkpoints"][0]["step"], 4);
  EXPECT_EQ(json("/readyz")["status"], "serving");
  sources_.probes.ready = [] { return std::vector<HealthCondition>{{"model", false, "the daemon is \"starting\""}}; };
  const HttpResponse unready = Get("/readyz", "format=json");
  EXPECT_EQ(unready.status, 503);
  EXPECT_EQ(nlohmann::json::parse(unready.body)["status"], "not_serving");
  EXPECT_EQ(nlohmann::json::parse(unready.body)["conditions"][0]["detail"], "the daemon is \"starting\"");
  EXPECT_THAT(Get("/readyz", "verbose").body, HasSubstr("model not ok: the daemon is \"starting\""));
}

TEST_F(StatusPagesTest, APipelineThatIsBeingMadeIsListedToo) {
  unborn_ = {{.name = "young", .state = "creating"}};
  EXPECT_THAT(Get("/").body, ::testing::ContainsRegex("young +creating +-"));
}

TEST_F(StatusPagesTest, HandlesAreShownByOwner) {
  owners_ = {{.owner = "ann", .handles = 3, .handles_limit = 10, .bytes = 512, .bytes_limit = 1024}};
  const nlohmann::json row = nlohmann::json::parse(Get("/handlez", "format=json").body)["owners"][0];
  EXPECT_EQ(row["owner"], "ann");
  EXPECT_EQ(row["bytes"], 512);
  EXPECT_DOUBLE_EQ(row["ratio"].get<double>(), 0.5);
}

TEST_F(StatusPagesTest, TheSlowestRunsComeFirst) {
  const auto pipeline = AddPipeline("gpt");
  for (const auto& [run, millis] : {std::pair{1, 10}, std::pair{2, 90}, std::pair{3, 30}}) {
    for (int lane = 0; lane < 2; ++lane) {
      pipeline->lane(lane).trace.actions.Record({.begin_nanos = run * 1000 * kMilli,
                                                 .end_nanos = (run * 1000 + millis) * kMilli,
                                                 .kind = TraceKind::kRun,
                                                 .detail = static_cast<uint8_t>(TraceRun::kTrainStep),
                                                 .lane = static_cast<int16_t>(lane),
                                                 .micro_batch = 2,
                                                 .step = run,
                                                 .run = run});
    }
  }
  const nlohmann::json page = nlohmann::json::parse(Get("/tracez", "format=json").body);
  const auto names = [](const nlohmann::json& rows) {
    std::vector<std::string> found;
    for (const auto& row : rows) found.push_back(row["run"]);
    return found;
  };
  EXPECT_THAT(names(page["slow"]), ::testing::ElementsAre("step 2", "step 3", "step 1"));
  EXPECT_THAT(names(page["runs"]), ::testing::ElementsAre("step 3", "step 2", "step 1"));
}

TEST_F(StatusPagesTest, UnknownPathsAndPipelinesAreNotFound) {
  for (const char* path : {"/x", "/statusz/", "//", "/Statusz", "/style.css/", "/../statusz"}) {
    EXPECT_EQ(Get(path).status, 404) << path;
  }
  AddPipeline("gpt");
  EXPECT_EQ(Get("/pipeline", "name=other").status, 404);
  EXPECT_EQ(Get("/pipeline", "name=gpt").status, 200);
  EXPECT_EQ(Get("/metrics").body, "a 1\n");
  EXPECT_EQ(Get("/readyz").body, "model ok\n");
}

TEST_F(StatusPagesTest, ThePipelinePageShowsStatesAndTheLastStep) {
  const auto pipeline = AddPipeline("gpt");
  RunStep(*pipeline);
  pipeline->lane(1).state.Enter(StageState::kWaitActivation);
  const nlohmann::json page = nlohmann::json::parse(Get("/pipeline", "name=gpt&format=json").body);
  EXPECT_EQ(page["lanes"][0]["state"], "no_work");
  EXPECT_EQ(page["lanes"][1]["state"], "wait_activation");
  const nlohmann::json& step = page["last_step"];
  EXPECT_EQ(step["step"], 7);
  EXPECT_EQ(step["makespan_nanos"], 80 * kMilli);
  EXPECT_EQ(step["ideal_finish_nanos"], 80 * kMilli);  // 60 ms of work at a bubble of a quarter
  EXPECT_DOUBLE_EQ(step["bubble"], 0.25);
  EXPECT_EQ(step["lanes"][1]["actions"].size(), 4u);
  EXPECT_EQ(step["lanes"][1]["actions"][0]["action"], "1F0");
  EXPECT_EQ(step["lanes"][1]["waits"][0]["state"], "fill");
  EXPECT_EQ(step["lanes"][1]["waits"][1]["state"], "drain");
  const std::string html = Html("/pipeline");
  EXPECT_THAT(html, HasSubstr("class=\"s-backward\""));
  EXPECT_THAT(html, HasSubstr("ideal finish 80.0 ms"));
  // Colour is not the only sign.
  EXPECT_THAT(html, HasSubstr(">F0</text>"));
  EXPECT_THAT(html, HasSubstr(">B1</text>"));
  EXPECT_THAT(html, HasSubstr(">drain</text>"));
  EXPECT_THAT(html, HasSubstr("<span class=\"swatch s-backward\">B</span>"));
  EXPECT_THAT(Get("/pipeline").body, HasSubstr("lane 1  |............FFFFFFFFFFFFFBBBBB"));
}

TEST_F(StatusPagesTest, AStepThatFailedOrIsNotWholeIsNotShown) {
  const auto pipeline = AddPipeline("gpt");
  EXPECT_EQ(nlohmann::json::parse(Get("/pipeline", "format=json").body)["last_step"], nullptr);
  const auto leave = [&](int lane, bool failed, int64_t run) {
    pipeline->lane(lane).trace.actions.Record({.begin_nanos = 1,
                                               .end_nanos = 2,
                                               .kind = TraceKind::kRun,
                                               .failed = failed,
                                               .lane = static_cast<int16_t>(lane),
                                               .micro_batch = 2,
                                               .step = 1,
                                               .run = run});
  };
  leave(0, false, 1);
  EXPECT_FALSE(LastStep(*pipeline).has_value()) << "one of two lanes is still at it";
  leave(0, true, 2);
  leave(1, false, 2);
  EXPECT_FALSE(LastStep(*pipeline).has_value()) << "it failed";
  leave(1, false, 1);
  EXPECT_TRUE(LastStep(*pipeline).has_value());
}

TEST_F(StatusPagesTest, EveryStateHasItsColour) {
  const std::string style = Get("/style.css").body;
  for (const StageStateInfo& info : StageStates()) {
    EXPECT_THAT(style, HasSubstr(".s-" + std::string(info.name) + " { background: " + std::string(info.colour)));
  }
  EXPECT_THAT(style, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(style, Not(HasSubstr("url(")));
  EXPECT_THAT(Get("/refresh.js").content_type, HasSubstr("text/javascript"));
}

TEST(QueryValueTest, DecodesAndFindsWholeNames) {
  EXPECT_EQ(QueryValue("name=a%20b+c&x=1", "name"), "a b c");
  EXPECT_EQ(QueryValue("myname=a&name=b", "name"), "b");
  EXPECT_EQ(QueryValue("name", "name"), "");
  EXPECT_EQ(QueryValue("name=%zz%4", "name"), "%zz%4");
  EXPECT_EQ(QueryValue("&&=&name=%41", "name"), "A");
}

TEST(CellTest, UnitsAreForPeople) {
  EXPECT_EQ(Bytes(0).text, "0 B");
  EXPECT_EQ(Bytes(1536).text, "1.5 KiB");
  EXPECT_EQ(Bytes(200.0 * (1 << 20)).text, "200 MiB");
  EXPECT_EQ(Seconds(0).text, "0 s");
  EXPECT_EQ(Seconds(0.0123).text, "12.3 ms");
  EXPECT_EQ(Seconds(3725).text, "1 h 2 min");
  EXPECT_EQ(Share(0.125).text, "12.5 %");
  EXPECT_EQ(Count(12).text, "12");
}

TEST_F(StatusPagesTest, TheRingsAreAFileForViewers) {
  RunStep(*AddPipeline("gpt"));
  const auto ask = [&](std::string_view method, std::string_view query) {
    return RespondStatus(sources_, {.method = method, .path = "/tracez/download", .query = query, .host = "localhost"});
  };
  const HttpResponse response = ask("GET", "name=gpt");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.content_type, "application/json");
  EXPECT_THAT(response.headers, ::testing::Contains(std::pair<std::string, std::string>(
                                    "Content-Disposition", "attachment; filename=\"gpt.json\"")));
  ASSERT_NE(response.next, nullptr);
  std::string file;
  while (const auto piece = response.next()) file += *piece;
  EXPECT_EQ(nlohmann::json::parse(file)["otherData"]["pipeline"], "gpt");

  EXPECT_EQ(ask("GET", "").status, 200) << "the only one needs no name";
  EXPECT_EQ(ask("HEAD", "name=gpt").headers, response.headers);
  EXPECT_EQ(ask("GET", "name=gpt&format=perfetto").content_type, "application/octet-stream");
  EXPECT_EQ(ask("GET", "name=gpt&format=svg").status, 400);
  EXPECT_EQ(ask("GET", "name=absent").status, 404);
  EXPECT_EQ(ask("POST", "name=gpt").status, 405);
}

TEST_F(StatusPagesTest, APipelineWithoutRingsHasNoFile) {
  MetricsRegistry without(&clock_, /*trace_events=*/0);
  without.AddPipeline("gpt", {{.lane = 0, .device = "cpu:0"}}, {.kind = "1f1b"});
  sources_.registry = &without;
  EXPECT_EQ(
      RespondStatus(sources_, {.method = "GET", .path = "/tracez/download", .query = "name=gpt", .host = "localhost"})
          .status,
      404);
}

TEST_F(StatusPagesTest, TheLeaderShowsRanksAndLinksAndOneThatIsAloneDoesNot) {
  EXPECT_THAT(Get("/statusz").body, Not(HasSubstr("Ranks")));
  sources_.group = [this] {
    const double now = static_cast<double>(absl::ToUnixNanos(clock_.WallNow())) * 1e-9;
    return GroupRows{
        .ranks = {{.rank = 0, .state = "member", .since_unix_seconds = now - 5, .host = kMarkup, .devices = "cpu:0"},
                  {.rank = 1, .state = "missing", .since_unix_seconds = now - 3, .problem = kImage}},
        .links = {{.from = 1, .to = 0, .carrier = "grpc", .messages = 2, .bytes = 2048}}};
  };
  const auto json = nlohmann::json::parse(Get("/statusz", "format=json").body);
  EXPECT_EQ(json["ranks"][0]["state_seconds"], 5);
  EXPECT_EQ(json["ranks"][1]["state"], "missing");
  EXPECT_EQ(json["ranks"][1]["problem"], kImage);
  EXPECT_EQ(json["links"][0]["bytes"], 2048);
  const std::string html = Html("/statusz");
  EXPECT_THAT(html, Not(HasSubstr(kMarkup)));
  EXPECT_THAT(html, Not(HasSubstr(kImage)));
  EXPECT_THAT(html, HasSubstr("2.0 KiB"));
}

// A rank that does not lead has no callers, no handles and no checkpoints.
TEST_F(StatusPagesTest, AnotherRankSaysWhoLeadsAndHasOnlyItsOwnLanes) {
  registry_.AddPipeline("gpt",
                        {{.lane = 0, .device = "cpu:0", .layers = "0-1", .rank = Rank(0)},
                         {.lane = 1, .device = "1/cpu:0", .layers = "2-3", .rank = Rank(1)}},
                        {.kind = "1f1b", .stages = 2, .micro_batches = 2, .checkpoint_mode = "never"});
  FollowerFacts facts{.rank = 1,
                      .world_size = 2,
                      .leader = "192.0.2.7:8475",
                      .problem = "the leader can't be reached",
                      .epoch = 4,
                      .generation = 9,
                      .devices = {"cpu:0", "cpu:1"},
                      .links = {{.from = 0, .to = 1, .carrier = "ucx", .messages = 3, .bytes = 64}}};
  sources_.follower = [&] { return facts; };
  sources_.handles = nullptr;
  sources_.owners = nullptr;
  sources_.memory = nullptr;
  sources_.checkpoints = nullptr;
  sources_.commands = {};
  auto json = nlohmann::json::parse(Get("/statusz", "format=json").body);
  EXPECT_EQ(json["rank"]["leader"], "192.0.2.7:8475");
  EXPECT_EQ(json["rank"]["joined"], "no");
  EXPECT_EQ(json["rank"]["problem"], "the leader can't be reached");
  EXPECT_EQ(json["rank"]["generation"], 9);
  EXPECT_EQ(json["rank"]["devices"], "cpu:0, cpu:1");
  EXPECT_EQ(json["links"][0]["messages"], 3);
  ASSERT_EQ(json["lanes"].size(), 1u);
  EXPECT_EQ(json["lanes"][0]["device"], "1/cpu:0");
  EXPECT_EQ(json["lanes"][0]["layers"], "2-3");
  facts.problem.clear();
  json = nlohmann::json::parse(Get("/statusz", "format=json").body);
  EXPECT_EQ(json["rank"]["joined"], "yes");
  for (const char* path : {"/handlez", "/queuez", "/memory", "/memz", "/checkpointz"}) {
    EXPECT_EQ(Get(path).status, 404) << path;
    EXPECT_THAT(Html("/statusz"), Not(HasSubstr(std::string("href=\"") + path))) << path;
  }
  for (const char* path : {"/", "/pipeline", "/tracez", "/logz", "/flagz"}) EXPECT_EQ(Get(path).status, 200) << path;
}

}  // namespace
}  // namespace penstock
