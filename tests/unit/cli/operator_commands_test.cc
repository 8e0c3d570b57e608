// config show, completion, top, bench, doctor

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <limits>

#include "client/cli/bench_load.h"
#include "client/cli/doctor_checks.h"
#include "client/cli/lane_bars.h"
#include "client/cli/message_json.h"
#include "client/cli/setting_file.h"
#include "engine/base/clock.h"
#include "engine/base/guard.h"
#include "tests/unit/cli/command_fixture.h"

namespace penstock {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using OperatorCommandsTest = testing::DaemonCommandFixture;

// --- settings --------------------------------------------------------------------------------------------------------

TEST(SettingFileTest, ReadsNamesAndValues) {
  const auto settings = ParseSettings(
      "# all of it\n\nserver = \"127.0.0.1:9\" # here\n timeout=5\noutput = 'json'\nno-color = true\ncaller = \"a "
      "\\\"b\\\"\"",
      "f");
  ASSERT_TRUE(settings.ok()) << settings.status();
  ASSERT_EQ(settings->size(), 5);
  EXPECT_EQ((*settings)[0].value, "127.0.0.1:9");
  EXPECT_EQ((*settings)[0].origin, "f:3");
  EXPECT_EQ((*settings)[1].value, "5");
  EXPECT_EQ((*settings)[2].value, "json");
  EXPECT_EQ((*settings)[4].value, "a \"b\"");
}

TEST(SettingFileTest, RefusesWhatItDoesNotUnderstandByFileAndLine) {
  for (const auto& [text, problem] : std::vector<std::pair<std::string, std::string>>{
           {"x", "f:1: must be name = value, got x"},
           {"[table]\n", "f:1: must be name = value"},
           {"\nserver = a b", "f:2: must be \"text\", a number, true or false, got a b"},
           {"server = [\"a\"]", "f:1: must be"},
           {"server = ", "f:1: must be"},
           {"server = \"a", "f:1: the text has no end"},
           {"server = \"a\" b", "f:1: nothing may follow the value"},
           {"server = \"\\x\"", "f:1: only"},
           {"timeout = 1\ntimeout = 2", "f:2: timeout stands at f:1 already"}}) {
    EXPECT_THAT(std::string(ParseSettings(text, "f").status().message()), HasSubstr(problem)) << text;
  }
}

TEST(SettingFileTest, FilesAreFoundNearestFirst) {
  const std::filesystem::path root = ::testing::TempDir() + "/penstock_setting_files";
  std::filesystem::create_directories(root / "project/inner");
  std::filesystem::create_directories(root / "home/.config/penstock");
  std::ofstream(root / "project/.penstock.toml") << "\n";
  std::ofstream(root / "home/.config/penstock/config.toml") << "\n";
  const auto variable = [&](const std::string& name) { return name == "HOME" ? (root / "home").string() : ""; };
  const std::vector<std::string> files = SettingFiles((root / "project/inner").string(), variable);
  ASSERT_GE(files.size(), 2);
  EXPECT_EQ(files[0], (root / "project/.penstock.toml").string());
  EXPECT_EQ(files[1], (root / "home/.config/penstock/config.toml").string());
}

TEST_F(OperatorCommandsTest, FlagsWinOverFilesAndNearFilesOverFarOnes) {
  world_.setting_files = {TemporaryFile("project", "timeout = 7\n"),
                          TemporaryFile("user", "timeout = 8\ncaller = \"me\"\n")};
  EXPECT_EQ(Run("config show --origin"), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("timeout          7               " + world_.setting_files[0] + ":1"));
  EXPECT_THAT(out_, HasSubstr("caller           me              " + world_.setting_files[1] + ":2"));
  EXPECT_THAT(out_, HasSubstr("server           127.0.0.1:8470  default"));
  EXPECT_EQ(Run("--timeout 9 config show --origin -o json"), 0) << err_;
  const Json json = Json::parse(out_, nullptr, false);
  for (const Json& setting : json["settings"]) {
    if (setting["name"] == "timeout") {
      EXPECT_EQ(setting["value"], "9");
      EXPECT_EQ(setting["origin"], "--timeout");
    }
    if (setting["name"] == "output") {
      EXPECT_EQ(setting["value"], "json");
    }
  }
  setenv("PENSTOCK_TIMEOUT", "10", 1);
  EXPECT_EQ(Run("config show --origin"), 0) << err_;
  unsetenv("PENSTOCK_TIMEOUT");
  EXPECT_THAT(out_, HasSubstr("PENSTOCK_TIMEOUT"));
}

TEST_F(OperatorCommandsTest, FilesRuleCommands) {
  world_.setting_files = {TemporaryFile("names", "output = \"name\"\n")};
  EXPECT_EQ(Run("status"), 0) << err_;
  EXPECT_EQ(out_, "pipelines/gpt\npipelines/other\n");
  EXPECT_EQ(Run("status -o jsonl"), 0);
  EXPECT_THAT(out_, HasSubstr("{"));
}

TEST_F(OperatorCommandsTest, UnknownSettingsAndBadValuesAreErrors) {
  world_.setting_files = {TemporaryFile("unknown", "\ntimout = 7\n")};
  EXPECT_EQ(Run("status"), 2);
  EXPECT_THAT(err_, HasSubstr(world_.setting_files[0] + ":2: no such setting, got timout; did you mean timeout?"));
  world_.setting_files = {TemporaryFile("bad", "output = \"yaml\"\n")};
  EXPECT_EQ(Run("status"), 2);
  EXPECT_THAT(err_, HasSubstr(world_.setting_files[0] + ":1"));
  EXPECT_THAT(err_, HasSubstr("yaml"));
  EXPECT_EQ(Run("--help"), 0) << "help is there in any case";
}

// --- completion ------------------------------------------------------------------------------------------------------

TEST_F(OperatorCommandsTest, CompletionKnowsCommandsOptionsAndChoices) {
  EXPECT_EQ(Run("completion bash"), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("\"checkpoint\") echo \"save restore publish list copy export delete\""));
  EXPECT_THAT(out_, HasSubstr("\"pipeline create --checkpoint\") echo \"always except_last never skip_adjacent\""));
  EXPECT_THAT(out_, HasSubstr("complete -o default -F _penstock penstock"));
  EXPECT_EQ(Run("completion zsh"), 0);
  EXPECT_THAT(out_, HasSubstr("#compdef penstock"));
  EXPECT_EQ(Run("completion fish"), 0);
  EXPECT_THAT(out_, HasSubstr("complete -c penstock -n '__penstock_at \"checkpoint\"' -f -a save"));
  EXPECT_EQ(Run("completion tcsh"), 2);
}

// --- top -------------------------------------------------------------------------------------------------------------

v1::PipelineStatistics Lanes(double forward, double backward, double wait, double none) {
  v1::PipelineStatistics statistics;
  v1::LaneStatistics* lane = statistics.add_lanes();
  lane->set_device("cpu:0");
  lane->set_state("backward");
  auto& seconds = *lane->mutable_state_seconds();
  seconds["forward"] = forward;
  seconds["backward"] = backward;
  seconds["wait_gradient"] = wait;
  seconds["no_work"] = none;
  seconds["a_state_of_the_future"] = 5;
  return statistics;
}

TEST(LaneBarsTest, SharesAreOfTheTimeBetweenTwoLooks) {
  const auto lanes = SharesBetween(Lanes(10, 20, 5, 100), Lanes(11, 22, 6, 100));
  ASSERT_EQ(lanes.size(), 1);
  EXPECT_DOUBLE_EQ(lanes[0].total(), 4);
  EXPECT_DOUBLE_EQ(lanes[0].busy(), 0.75);
  EXPECT_DOUBLE_EQ(lanes[0].bubble(), 0.25);
  EXPECT_EQ(LaneBar(lanes[0], 8, false), "FFBBBBgg");
  EXPECT_EQ(LaneLegend(lanes, false), "F forward  B backward  g wait_gradient");
}

TEST(LaneBarsTest, NothingHasHappened) {
  const auto lanes = SharesBetween(Lanes(1, 1, 1, 1), Lanes(1, 1, 1, 1));
  EXPECT_DOUBLE_EQ(lanes[0].busy(), 0);
  EXPECT_DOUBLE_EQ(lanes[0].bubble(), 0);
  EXPECT_EQ(LaneBar(lanes[0], 4, false), "    ");
  EXPECT_THAT(LaneBar(SharesBetween({}, Lanes(0, 0, 0, 3))[0], 3, true), HasSubstr("\x1b[48;2;236;239;241m"));
}

TEST(LaneBarsTest, InferenceIsBusyAndNoPartOfAStep) {
  LaneShares lane;
  lane.seconds = {{StageState::kForward, 1},
                  {StageState::kFilled, 1},
                  {StageState::kInfer, 2},
                  {StageState::kWaitGradient, 1},
                  {StageState::kNoWork, 3}};
  EXPECT_DOUBLE_EQ(lane.busy(), 0.5);
}

TEST_F(OperatorCommandsTest, TopShowsLanesAgainAndAgain) {
  EXPECT_EQ(Run("top --looks 2"), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("gpt  step"));
  EXPECT_THAT(out_, Not(HasSubstr("\x1b"))) << "no colours where nobody looks";
  const size_t first = out_.find("PIPELINE");
  EXPECT_NE(out_.find("PIPELINE", first + 1), std::string::npos);
  const std::string text = ::testing::TempDir() + "/penstock_top.txt";
  std::ofstream(text) << std::string(200, 'x');
  EXPECT_EQ(Run("train gpt --steps 2 --batch 2 --text " + text), 0) << err_;
  EXPECT_EQ(Run("top gpt --looks 1 -o json"), 0);
  const Json json = Json::parse(out_, nullptr, false);
  EXPECT_EQ(json["pipelines"][0]["step"], 2);
  EXPECT_EQ(json["pipelines"][0]["samples"], 0) << "between the two looks";
  EXPECT_EQ(json["pipelines"][0]["pipeline"], "pipelines/gpt");
  EXPECT_TRUE(json["pipelines"][0]["lanes"][0].contains("busy"));
}

TEST_F(OperatorCommandsTest, TopNamesAPipelineThatHasNoStatisticsNow) {
  for (int look = 0; look < 4; ++look) {
    daemon_.Fail("WatchStatistics",
                 RichStatus(grpc::StatusCode::FAILED_PRECONDITION, "PIPELINE_NOT_READY", "it waits for its group"));
  }
  EXPECT_EQ(Run("top --looks 1"), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("gpt  PIPELINE_NOT_READY: it waits for its group\n"));
  EXPECT_THAT(out_, Not(HasSubstr("no pipelines")));
}

// --- stats, log level ------------------------------------------------------------------------------------------------

TEST_F(OperatorCommandsTest, StatsTellsOfEachUpdate) {
  EXPECT_EQ(Run("stats gpt"), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("gpt  step 0"));
  EXPECT_THAT(out_, HasSubstr("LANE  DEVICE"));
  EXPECT_EQ(Run("stats gpt --updates 3 --interval 0.1 -o jsonl"), 0) << err_;
  EXPECT_EQ(std::count(out_.begin(), out_.end(), '\n'), 3);
  EXPECT_TRUE(Json::parse(out_.substr(0, out_.find('\n')), nullptr, false).contains("lanes"));
  EXPECT_EQ(Run("stats"), 2) << "of no pipeline";
}

TEST_F(OperatorCommandsTest, TheLogLevelIsShownAndChanged) {
  EXPECT_EQ(Run("log level"), 0) << err_;
  EXPECT_EQ(out_, "info\n");
  EXPECT_EQ(Run("log level debug"), 0) << err_;
  EXPECT_EQ(out_, "debug\n");
  EXPECT_THAT(err_, HasSubstr("was info"));
  EXPECT_EQ(Run("log level error -o json"), 0);
  const Json json = Json::parse(out_, nullptr, false);
  EXPECT_EQ(json["before"], "debug");
  EXPECT_EQ(json["now"], "error");
  EXPECT_EQ(Run("log level ../etc"), 2);
}

// --- bench -----------------------------------------------------------------------------------------------------------

TEST(BenchLoadTest, PercentilesAreNearestRank) {
  const std::vector<double> values = {1, 2, 3, 4};
  EXPECT_EQ(Percentile(values, 50), 2);
  EXPECT_EQ(Percentile(values, 51), 3);
  EXPECT_EQ(Percentile(values, 99), 4);
  EXPECT_EQ(Percentile(values, 1), 1);
  EXPECT_EQ(Percentile({}, 50), 0);
}

TEST(BenchLoadTest, ThreeWindowsMustAgree) {
  LoadOptions options;
  const auto window = [](int calls, double latency) {
    return LoadWindow{1, 0, std::vector<double>(static_cast<size_t>(calls), latency)};
  };
  EXPECT_FALSE(IsStable({window(100, 1), window(100, 1)}, options));
  EXPECT_TRUE(IsStable({window(50, 9), window(100, 1), window(105, 1.05), window(98, 0.97)}, options));
  EXPECT_FALSE(IsStable({window(100, 1), window(100, 1), window(140, 1)}, options)) << "throughput";
  EXPECT_FALSE(IsStable({window(100, 1), window(100, 1), window(100, 2)}, options)) << "latency";
  EXPECT_FALSE(IsStable({window(0, 0), window(0, 0), window(0, 0)}, options));
}

TEST(BenchLoadTest, EveryAnswerIsCountedAndGivenBack) {
  LoadOptions options;
  options.callers = 3;
  options.warm_up_seconds = 0;
  options.window_seconds = 0.5;
  options.max_windows = 3;
  std::atomic<int> calls = 0, after = 0;
  const LoadWork work = {[&]() -> absl::StatusOr<std::string> {
                           if (++calls % 5 == 0) return absl::UnavailableError("no");
                           return std::string("handle");
                         },
                         [&](const std::string& handle) { after += handle == "handle" ? 1 : 0; }};
  const LoadResult result = RunLoad(options, work, RealClock(), [] { return false; });
  EXPECT_EQ(result.windows, 3);
  EXPECT_GT(result.measured.latencies.size(), 0);
  EXPECT_GT(result.measured.failures, 0);
  EXPECT_EQ(result.first_failure.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(after, calls - calls / 5);
  EXPECT_TRUE(std::is_sorted(result.measured.latencies.begin(), result.measured.latencies.end()));
}

TEST(BenchLoadTest, AnOpenLoopChargesTheServerForWhatItDelays) {
  // One caller at a time, calls due every 5 ms that take 20 ms each: the tenth is late by far more than it takes.
  LoadOptions options;
  options.callers = 1;
  options.rate = 200;
  options.warm_up_seconds = 0;
  options.window_seconds = 1;
  options.max_windows = 1;
  const LoadWork work = {[&]() -> absl::StatusOr<std::string> {
                           SleepUntilNanos(RealClock()->NowNanos() + 20'000'000);
                           return std::string();
                         },
                         [](const std::string&) {}};
  const LoadResult result = RunLoad(options, work, RealClock(), [] { return false; });
  ASSERT_GT(result.measured.latencies.size(), 2);
  EXPECT_GT(result.measured.latencies.back(), 0.04);
}

TEST(BenchLoadTest, ALoadThatCanNotBeginEnds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto begin_without_memory = [] {
    alarm(60);  // where the threads that have begun are never told to stop
    std::ifstream file("/proc/self/statm");
    rlim_t pages = 0;
    file >> pages;
    const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (rlim_t{256} << 20);
    const rlimit limit = {bytes, bytes};  // of the address space: it has no room for so many stacks
    setrlimit(RLIMIT_AS, &limit);
    LoadOptions options;
    options.callers = 1000;
    options.rate = 1e-3;
    const LoadWork work = {[]() -> absl::StatusOr<std::string> { return absl::UnavailableError("no"); }, {}};
    const auto load = [&] { RunLoad(options, work, RealClock(), [] { return true; }); };
    _exit(Guarded("the load", load).ok() ? 1 : 0);
  };
  EXPECT_EXIT(begin_without_memory(), ::testing::ExitedWithCode(0), "");
}

TEST_F(OperatorCommandsTest, BenchMeasuresEachLoad) {
  world_.clock = RealClock();
  const std::string brief = " --warm-up 0.05 --window 0.3 --max-windows 3 --stability-percentage ";
  const std::string quick = brief + "200";  // three windows are always within twice their mean
  EXPECT_EQ(Run("bench gpt --concurrency 1:2" + quick + " -o json"), 0) << err_;
  const Json json = Json::parse(out_, nullptr, false);
  ASSERT_EQ(json["points"].size(), 2) << out_;
  EXPECT_EQ(json["points"][1]["concurrency"], 2);
  EXPECT_GT(json["points"][0]["calls"].get<int64_t>(), 0);
  EXPECT_GT(json["points"][0]["latency_seconds"]["p50"].get<double>(), 0);
  EXPECT_EQ(Run("bench gpt --rate 50 --poisson --csv" + quick), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("rate,calls_per_second,p50_ms"));
  EXPECT_EQ(Run("bench gpt --train --rows 2 --concurrency 1" + quick + " -o json"), 0) << err_;
  const Json trained = Json::parse(out_, nullptr, false);
  EXPECT_EQ(trained["calls"], "train") << out_;
  EXPECT_GT(trained["points"][0]["server"]["compute_seconds"].get<double>(), 0);
  EXPECT_EQ(daemon_.LastTrainStep().learning_rate(), 0) << "the weights stay";
  EXPECT_EQ(daemon_.LastTrainStep().reply().wait_for().seconds(), 60);
  EXPECT_EQ(Run("--timeout 5 bench gpt --train --rows 2 --concurrency 1" + quick), 0) << err_;
  EXPECT_EQ(daemon_.LastTrainStep().reply().wait_for().seconds(), 5) << "a call takes no longer";
  EXPECT_TRUE(daemon_.LastTrainStep().has_learning_rate());
  EXPECT_EQ(daemon_.LastTrainStep().target().name(), "targets");
  EXPECT_EQ(Run("bench gpt --concurrency 1" + brief + "0"), 7) << "no three windows are equal";
  for (const char* wrong : {"--concurrency 0", "--concurrency 4:1", "--concurrency a", "--concurrency 1.5",
                            "--rate 1:2:3:4", "--rate nan", "--rate 1:nan", "--rate inf"}) {
    EXPECT_EQ(Run("bench gpt " + std::string(wrong) + quick), 2) << wrong;
  }
}

TEST_F(OperatorCommandsTest, BenchSpeaksOpenInferenceToTwoServersInTurns) {
  world_.clock = RealClock();
  testing::FakeDaemon other;
  const std::string quick = " --open-inference --warm-up 0.05 --window 0.1 --max-windows 3 --stability-percentage 200";
  const std::string compare = "bench mlp --rows 2 --sequence 5 --concurrency 1:2 --compare " + other.Address() + quick;
  EXPECT_EQ(Run(compare + " -o json"), 0) << err_;
  const Json json = Json::parse(out_, nullptr, false);
  ASSERT_EQ(json["points"].size(), 4) << out_;
  const std::string first = json["points"][0]["address"];
  std::vector<std::string> servers;
  for (const Json& point : json["points"]) {
    servers.push_back(point["address"]);
    EXPECT_GT(point["calls"].get<int64_t>(), 0);
    EXPECT_EQ(point["server"]["rows_per_run"], 4);
    EXPECT_NEAR(point["server"]["server_seconds"].get<double>(), 0.007, 1e-9);
    EXPECT_NEAR(point["server"]["queue_seconds"].get<double>(), 0.002, 1e-9);
  }
  EXPECT_THAT(servers, ElementsAre(first, other.Address(), other.Address(), first));
  for (const testing::FakeDaemon* each : {&std::as_const(daemon_), &std::as_const(other)}) {
    const inference::ModelInferRequest sent = each->LastModelInfer();
    EXPECT_EQ(sent.model_name(), "mlp");
    ASSERT_EQ(sent.inputs_size(), 1);
    EXPECT_EQ(sent.inputs(0).name(), "INPUT");
    EXPECT_EQ(sent.inputs(0).datatype(), "INT32");
    EXPECT_THAT(sent.inputs(0).shape(), ElementsAre(2, 5, 3));
    EXPECT_EQ(sent.raw_input_contents(0).size(), 2 * 5 * 3 * 4);
  }
  ASSERT_EQ(json["ratios"].size(), 2);
  for (int i = 0; i < 2; ++i) {  // the first server's over the other's, in whatever order they were measured
    const auto rate = [&](int k) { return json["points"][k]["calls_per_second"].get<double>(); };
    EXPECT_NEAR(json["ratios"][i]["calls_per_second"].get<double>(), i == 0 ? rate(0) / rate(1) : rate(3) / rate(2),
                1e-9);
  }
  EXPECT_EQ(Run(compare), 0) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("ROWS A RUN"), HasSubstr("concurrency 1: " + first + " has ")));
  EXPECT_EQ(Run(compare + " --csv"), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("server,concurrency,calls_per_second"));
  EXPECT_THAT(out_, HasSubstr(",rows_per_run,server_ms,queue_ms,stable\n" + first + ",1,"));
}

TEST_F(OperatorCommandsTest, BenchSaysWhatItCanNotMeasureByOpenInference) {
  for (const auto& [words, of] : std::vector<std::pair<std::string, std::string>>{
           {"mlp --open-inference --train", "--train"},
           {"mlp --compare 127.0.0.1:1", "--compare"},
           {"mlp --open-inference --sequence 1 --compare 127.0.0.1:8470", "--compare"},
           {"mlp --open-inference --sequence 1 --compare nowhere", "--compare"},
           {"mlp --open-inference", "INPUT"},
           {"text --open-inference --sequence 1", "BYTES"}}) {
    EXPECT_EQ(Run("bench " + words), 2) << words;
    EXPECT_THAT(err_, HasSubstr(of)) << words;
  }
  EXPECT_NE(Run("bench unknown --open-inference --sequence 1"), 0);
  EXPECT_THAT(err_, HasSubstr("no statistics of unknown"));
}

TEST_F(OperatorCommandsTest, BenchNamesTheServerThatDoesNotAnswer) {
  const std::string bench = "bench mlp --open-inference --rows 2 --sequence 5 --compare ";
  EXPECT_EQ(Run(bench + "127.0.0.1:1"), 3);
  EXPECT_THAT(err_, HasSubstr("no daemon answers at 127.0.0.1:1\n"));
  EXPECT_THAT(err_, HasSubstr("do:  start a server there, or name another with --compare\n"));
  testing::FakeDaemon other;
  for (int i = 0; i < 20; ++i) other.Fail("ModelStatistics", grpc::Status(grpc::StatusCode::UNAVAILABLE, "refused"));
  EXPECT_EQ(Run(bench + other.Address()), 3);
  EXPECT_THAT(err_, HasSubstr("no daemon answers at " + other.Address() + "\n"));
  for (int i = 0; i < 20; ++i) daemon_.Fail("ModelStatistics", grpc::Status(grpc::StatusCode::UNAVAILABLE, "refused"));
  EXPECT_EQ(Run(bench + "127.0.0.1:1"), 3);
  EXPECT_EQ(Run("bench mlp --open-inference --rows 2 --sequence 5"), 3);
  EXPECT_THAT(err_, HasSubstr("no daemon answers at 127.0.0.1:8470\n"));
}

// --- doctor ----------------------------------------------------------------------------------------------------------

MachineFacts GoodMachine() {
  MachineFacts facts;
  facts.shared_memory_bytes = int64_t{1} << 30;
  facts.locked_memory_bytes = std::numeric_limits<int64_t>::max();
  facts.open_files = 65536;
  facts.memory_bytes = int64_t{16} << 30;
  facts.clock_known = facts.clock_synchronised = true;
  facts.state_dir = "/var/lib/penstock";
  facts.state_dir_writable = true;
  facts.state_free_bytes = int64_t{100} << 30;
  facts.state_sync_seconds = 0.004;
  facts.daemon_path = "/usr/bin/penstockd";
  facts.daemon_version = "penstockd 0.1.0";
  return facts;
}

// "name level" of everything that is not well.
std::vector<std::string> Ills(const MachineFacts& facts) {
  std::vector<std::string> ills;
  for (const Finding& finding : Judge(facts)) {
    EXPECT_EQ(finding.fix.empty(), finding.level == Finding::Level::kOk) << finding.name;
    if (finding.level != Finding::Level::kOk) ills.push_back(finding.name + " " + std::string(NameOf(finding.level)));
  }
  return ills;
}

TEST(DoctorTest, EachIllHasItsFinding) {
  EXPECT_THAT(Ills(GoodMachine()), ::testing::IsEmpty());
  const auto with = [](auto change) {
    MachineFacts facts = GoodMachine();
    change(facts);
    return Ills(facts);
  };
  EXPECT_THAT(with([](MachineFacts& f) { f.shared_memory_bytes = 1 << 20; }), ElementsAre("shared memory warn"));
  EXPECT_THAT(with([](MachineFacts& f) { f.open_files = 1024; }), ElementsAre("open files warn"));
  EXPECT_THAT(with([](MachineFacts& f) { f.memory_bytes = 1 << 20; }), ElementsAre("memory warn"));
  EXPECT_THAT(with([](MachineFacts& f) { f.clock_synchronised = false; }), ElementsAre("clock warn"));
  EXPECT_THAT(with([](MachineFacts& f) { f.state_free_bytes = 1 << 20; }), ElementsAre("disk space fail"));
  EXPECT_THAT(with([](MachineFacts& f) { f.state_dir_writable = false; }), ElementsAre("state folder fail"));
  EXPECT_THAT(with([](MachineFacts& f) { f.state_sync_seconds = 0.5; }), ElementsAre("state folder warn"));
  EXPECT_THAT(with([](MachineFacts& f) { f.daemon_path = ""; }), ElementsAre("penstockd warn"));
  EXPECT_THAT(with([](MachineFacts& f) { f.daemon_version = ""; }), ElementsAre("penstockd fail"));
  EXPECT_THAT(with([](MachineFacts& f) { f.driver_version = "580.65.06", f.gpus = 0; }), ElementsAre("gpus warn"));
  EXPECT_THAT(with([](MachineFacts& f) { f.driver_version = "550.1", f.gpus = 2; }), ElementsAre("gpus fail"));
  EXPECT_THAT(with([](MachineFacts& f) {
                f.driver_version = "580.65", f.gpus = f.open_gpus = 2, f.locked_memory_bytes = 65536;
              }),
              ElementsAre("locked memory warn"));
  EXPECT_THAT(with([](MachineFacts& f) { f.driver_version = "580.65", f.gpus = 2; }), ElementsAre("gpus warn"));
}

TEST(DoctorTest, TheTorchOfADaemonIsThatOfItsLinker) {
  const std::filesystem::path torch = std::filesystem::path(::testing::TempDir()) / "doctor/torch";
  std::filesystem::create_directories(torch);
  std::ofstream(torch / "version.py") << "from typing import Optional\n__version__ = '2.11.0+cu130'\ndebug = False\n";
  const std::string libraries = "\tlibc10.so => /c10.so (0x1)\n\tlibtorch_cpu.so => ";
  EXPECT_EQ(TorchOf(libraries + torch.string() + "/lib/libtorch_cpu.so (0x2)\n"),
            "torch 2.11.0+cu130 of " + torch.string());
  EXPECT_EQ(TorchOf(libraries + "/usr/lib/penstock/libtorch_cpu.so (0x2)\n"), "LibTorch of /usr/lib/penstock");
  EXPECT_EQ(TorchOf(libraries + "not found\n"), "");
  EXPECT_EQ(TorchOf("\tlibc.so.6 => /libc.so.6 (0x1)\n"), "");

  MachineFacts facts = GoodMachine();
  facts.daemon_torch = "torch 2.11.0 of /venv/torch";
  EXPECT_THAT(Judge(facts)[0].detail, HasSubstr("penstockd 0.1.0 runs; torch 2.11.0 of /venv/torch and all"));
}

TEST(DoctorTest, ATorchMayStandInAFolderWithASpace) {
  const std::filesystem::path torch = std::filesystem::path(::testing::TempDir()) / "doctor of two words/torch";
  std::filesystem::create_directories(torch);
  std::ofstream(torch / "version.py") << "__version__ = '2.10.0'\n";
  std::string version;
  EXPECT_EQ(TorchOf("\tlibtorch_cpu.so => " + torch.string() + "/lib/libtorch_cpu.so (0x00007f2b)\n", &version),
            "torch 2.10.0 of " + torch.string());
  EXPECT_EQ(version, "2.10.0");
  TorchOf("\tlibtorch_cpu.so => not found\n", &version);
  EXPECT_EQ(version, "");
}

TEST(DoctorTest, ATorchOfAnotherVersionIsNone) {
  MachineFacts facts = GoodMachine();
  facts.torch_version = "2.11.9+cu130";
  EXPECT_THAT(Ills(facts), ::testing::IsEmpty());
  facts.daemon_torch = "torch 2.1.0 of /venv/torch";
  facts.torch_version = "2.1.0";
  EXPECT_THAT(Ills(facts), ElementsAre("penstockd fail"));
  EXPECT_EQ(Judge(facts)[0].detail,
            "/usr/bin/penstockd is built for torch 2.11.0, and loads torch 2.1.0 of /venv/torch");
  EXPECT_THAT(Judge(facts)[0].fix, HasSubstr("deploy/setup.sh"));
  facts.daemon_packed = true;
  EXPECT_THAT(Judge(facts)[0].fix, HasSubstr("pip install 'torch==2.11.*'"));

  facts.no_torch_reason = "it needs torch";
  facts.no_torch_command = "pip install it";
  EXPECT_EQ(Judge(facts)[0].detail, "/usr/bin/penstockd: it needs torch");
  EXPECT_EQ(Judge(facts)[0].fix, "pip install it");
}

TEST(DoctorTest, AsksADaemonWithoutAShell) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "it's $HOME; a daemon";
  std::filesystem::create_directories(folder);
  const std::string daemon = (folder / "penstockd").string();
  std::ofstream(daemon) << "#!/bin/cat\n";
  std::filesystem::permissions(daemon, std::filesystem::perms::owner_all);
  MachineFacts facts = ReadMachineFacts(folder.string(), daemon);
  EXPECT_EQ(facts.daemon_path, daemon);
  EXPECT_THAT(facts.daemon_version, HasSubstr("coreutils")) << facts.daemon_problem;
  std::ofstream(daemon) << "#!/nowhere/at/all\n";
  facts = ReadMachineFacts(folder.string(), daemon);
  EXPECT_EQ(facts.daemon_version, "");
  EXPECT_EQ(facts.daemon_problem, "No such file or directory");
}

TEST(DoctorTest, APortIsAnIllOnlyIfNoDaemonHasTakenIt) {
  MachineFacts facts = GoodMachine();
  EXPECT_EQ(JudgePorts(facts, /*daemon_answers=*/false).level, Finding::Level::kOk);
  facts.taken_ports = {8470};
  EXPECT_EQ(JudgePorts(facts, /*daemon_answers=*/true).level, Finding::Level::kOk);
  const Finding taken = JudgePorts(facts, /*daemon_answers=*/false);
  EXPECT_EQ(taken.level, Finding::Level::kWarn);
  EXPECT_THAT(taken.detail, HasSubstr("8470"));
  EXPECT_THAT(taken.fix, HasSubstr("--listen"));
}

TEST_F(OperatorCommandsTest, DoctorNeedsNoDaemonAndSaysWhatToDo) {
  const std::string folder = ::testing::TempDir();
  const int code = Run("doctor --state-dir " + folder + "/not/yet --penstockd /nowhere/penstockd -o json");
  const Json json = Json::parse(out_, nullptr, false);
  ASSERT_TRUE(json.is_object()) << out_ << err_;
  EXPECT_EQ(code, json["worst"] == "fail" ? 1 : 0);
  std::vector<std::string> names;
  for (const Json& check : json["checks"]) {
    names.push_back(check["name"]);
    if (check["name"] == "penstockd") {
      EXPECT_EQ(check["level"], "warn");
    }
    if (check["name"] == "daemon") {
      EXPECT_EQ(check["level"], "ok") << "the one in memory answers";
    }
    if (check["level"] != "ok") {
      EXPECT_TRUE(check.contains("fix"));
    }
  }
  EXPECT_THAT(names, ::testing::ElementsAre("penstockd", "gpus", "memory", "shared memory", "locked memory",
                                            "open files", "clock", "disk space", "state folder", "ports", "daemon"));
  EXPECT_EQ(Run("doctor --penstockd /bin/false"), 1);
  EXPECT_THAT(out_, HasSubstr("do: "));
  EXPECT_THAT(err_, HasSubstr("NOT_FIT"));
}

}  // namespace
}  // namespace penstock
