#include "server/daemon_options.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/error.h"
#include "server/option_units.h"

namespace penstock {
namespace {

using Environment = std::map<std::string, std::string>;

// A file with settings that is removed with the test.
class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text) {
    char name[] = "/tmp/penstock-options-XXXXXX";
    const int descriptor = mkstemp(name);
    path_ = name;
    close(descriptor);
    std::ofstream(path_) << text;
  }
  ~ConfigFile() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

DaemonOptions Parse(const std::vector<std::string>& arguments, const Environment& environment = {}) {
  const auto line = ParseCommandLine(arguments, environment, "");
  EXPECT_TRUE(line.ok()) << line.status();
  return line.ok() ? line->options : DaemonOptions();
}

absl::Status Refused(const std::vector<std::string>& arguments, const Environment& environment = {}) {
  return ParseCommandLine(arguments, environment, "").status();
}

TEST(DaemonOptions, HaveDefaults) {
  const DaemonOptions options = Parse({}, {{"HOME", "/h"}});
  EXPECT_EQ(options.listen, "127.0.0.1:8470");
  EXPECT_EQ(options.metrics_listen, "127.0.0.1:8473");
  EXPECT_EQ(options.state_dir, "/h/.local/state/penstock");
  EXPECT_EQ(options.max_pipelines, 16);
  EXPECT_EQ(options.max_message_bytes, 64 << 20);
  EXPECT_EQ(options.forward_timeout, absl::Minutes(10));
  EXPECT_EQ(options.trace_ring_events, 65'536);
  EXPECT_FALSE(options.insecure);
  EXPECT_TRUE(options.devices.empty());
}

TEST(DaemonOptions, FlagWinsOverEnvironmentOverFileOverDefault) {
  const ConfigFile file("max-pipelines = 2\nlease = \"30s\"\nlog-level = \"debug\"\n");
  const Environment environment = {{"PENSTOCK_MAX_PIPELINES", "3"}, {"PENSTOCK_LEASE", "40s"}};
  const auto line = ParseCommandLine({"--config", file.path(), "--max-pipelines", "4"}, environment, "");
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->options.max_pipelines, 4);
  EXPECT_EQ(line->options.default_lease, absl::Seconds(40));
  EXPECT_EQ(line->options.log_level, LogLevel::kDebug);
  EXPECT_EQ(line->origins.at("max-pipelines"), "flag");
  EXPECT_EQ(line->origins.at("lease"), "environment");
  EXPECT_EQ(line->origins.at("log-level"), "file");
  EXPECT_EQ(line->origins.at("listen"), "default");
}

TEST(DaemonOptions, ListsComeFromAllThreeForms) {
  const std::vector<std::string> devices = {"cpu:0=0", "cpu:1=1,2"};
  EXPECT_EQ(Parse({"--device", devices[0], "--device", devices[1]}).devices, devices);
  EXPECT_EQ(Parse({}, {{"PENSTOCK_DEVICE", "cpu:0=0 cpu:1=1,2"}}).devices, devices);
  const ConfigFile file("device = [\"cpu:0=0\", \"cpu:1=1,2\"]\ninsecure = true\n");
  const DaemonOptions options = Parse({}, {{"PENSTOCK_CONFIG", file.path()}});
  EXPECT_EQ(options.devices, devices);
  EXPECT_TRUE(options.insecure);
}

TEST(DaemonOptions, EveryFlagHasItsThreeForms) {
  const auto table = nlohmann::json::parse(FlagTableJson());
  EXPECT_GT(table.size(), 20u);
  for (const auto& flag : table) {
    const std::string name = flag["name"];
    EXPECT_NE(flag["help"], "") << name;
    std::string value = flag["default"];
    if (value.empty()) value = name == "state-dir" ? "somewhere" : "cpu:0";
    // Those of ranks go together.
    std::map<std::string, std::string> ranks = {{"rank", "0"}, {"world-size", "2"}, {"leader", "host:1"}};
    std::vector<std::string> others;
    if (ranks.contains(name)) {
      value = ranks.extract(name).mapped();
      for (const auto& [other, its] : ranks) others.push_back("--" + other + "=" + its);
    }
    std::vector<std::string> with_it = others;
    with_it.push_back("--" + name + "=" + value);
    EXPECT_TRUE(ParseCommandLine(with_it, {}, "").ok()) << name;
    EXPECT_TRUE(ParseCommandLine(others, {{flag["environment"], value}}, "").ok()) << name;
    const ConfigFile file(name + " = \"" + value + "\"\n");
    std::vector<std::string> with_file = others;
    with_file.insert(with_file.end(), {"--config", file.path()});
    EXPECT_TRUE(ParseCommandLine(with_file, {}, "").ok()) << name;
  }
}

TEST(DaemonOptions, WhatCantBeReadIsNamed) {
  const auto expect = [](const absl::Status& status, const std::string& field, const std::string& value) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ValuesOf(status)["field"], field) << status;
    EXPECT_EQ(ValuesOf(status)["value"], value) << status;
  };
  expect(Refused({"--max-pipelines", "0"}), "--max-pipelines", "0");
  expect(Refused({"--max-pipelines", "1025"}), "--max-pipelines", "1025");
  expect(Refused({"--max-pipelines", "many"}), "--max-pipelines", "many");
  expect(Refused({"--handle-bytes", "1GB"}), "--handle-bytes", "1GB");
  expect(Refused({"--lease", "soon"}), "--lease", "soon");
  expect(Refused({"--lease", "-1s"}), "--lease", "-1s");
  expect(Refused({"--allow-model-upload"}), "--allow-model-upload", "true");
  expect(Refused({"--log-format", "xml"}), "--log-format", "xml");
  expect(Refused({"--dump", "all"}), "--dump", "all");
  expect(Refused({"--lease", "2h"}), "--lease", "2h");  // beyond the longest
  expect(Refused({}, {{"PENSTOCK_MAX_PIPELINES", "x"}}), "PENSTOCK_MAX_PIPELINES", "x");
  expect(Refused({"--config", "/nowhere"}), "--config", "/nowhere");
  expect(Refused({"--config", "/"}), "--config", "/");  // a folder
  expect(Refused({"--config", "/dev/zero"}), "--config", "/dev/zero");
}

TEST(DaemonOptions, UnknownNamesAreErrors) {
  EXPECT_FALSE(Refused({"--no-such-flag"}).ok());
  EXPECT_FALSE(Refused({"stray"}).ok());
  const ConfigFile unknown("no-such-key = 1\n");
  const absl::Status status = Refused({"--config", unknown.path()});
  EXPECT_EQ(ValuesOf(status)["value"], "no-such-key");
  const ConfigFile section("[server]\nlisten = \"127.0.0.1:1\"\n");
  EXPECT_FALSE(Refused({"--config", section.path()}).ok());
  // Kubernetes sets variables like this one for a service called penstock.
  EXPECT_TRUE(Refused({}, {{"PENSTOCK_SERVICE_HOST", "10.0.0.1"}}).ok());
}

TEST(DaemonOptions, PrintAndCheckDoNotRun) {
  EXPECT_EQ(ParseCommandLine({"--version"}, {}, "")->action, CommandLine::Action::kPrint);
  EXPECT_NE(ParseCommandLine({"--help"}, {}, "")->text.find("--metrics-listen"), std::string::npos);
  EXPECT_EQ(ParseCommandLine({"--dump=metrics"}, {}, "table")->text, "table");
  EXPECT_EQ(ParseCommandLine({"--dump=flags"}, {}, "")->text, FlagTableJson());
  EXPECT_EQ(ParseCommandLine({"--check-config"}, {}, "")->action, CommandLine::Action::kCheckConfig);
}

TEST(DaemonOptions, MetricsCanBeOff) {
  EXPECT_EQ(Parse({"--metrics-listen", "off"}).metrics_listen, "");
  EXPECT_EQ(Parse({"--metrics-listen", ""}).metrics_listen, "");
}

TEST(DaemonOptions, StatusPagesCanBeOff) {
  EXPECT_EQ(Parse({}).admin_listen, "127.0.0.1:8474");
  EXPECT_EQ(Parse({"--admin-listen", "off"}).admin_listen, "");
}

TEST(DaemonOptions, EverySettingIsKeptWithItsOrigin) {
  const DaemonOptions options = Parse({"--device=cpu:0", "--device=cpu:1"}, {{"PENSTOCK_MAX_PIPELINES", "3"}});
  std::map<std::string, DaemonOptions::Setting> settings;
  for (const DaemonOptions::Setting& setting : options.settings) settings[setting.name] = setting;
  EXPECT_EQ(settings["device"].value, "cpu:0 cpu:1");
  EXPECT_EQ(settings["device"].origin, "flag");
  EXPECT_EQ(settings["max-pipelines"].value, "3");
  EXPECT_EQ(settings["max-pipelines"].origin, "environment");
  EXPECT_EQ(settings["lease"].value, "60s");
  EXPECT_EQ(settings["lease"].origin, "default");
  EXPECT_FALSE(settings["lease"].help.empty());
}

TEST(ParseBytes, KnowsBinarySuffixes) {
  EXPECT_EQ(*ParseBytes("64", "f"), 64);
  EXPECT_EQ(*ParseBytes("8GiB", "f"), int64_t{8} << 30);
  EXPECT_FALSE(ParseBytes("-1", "f").ok());
  EXPECT_FALSE(ParseBytes("9999999999TiB", "f").ok());
  EXPECT_FALSE(ParseBytes("", "f").ok());
}

TEST(ParseTime, KnowsUnits) {
  EXPECT_EQ(*ParseTime("5", "f"), absl::Seconds(5));
  EXPECT_EQ(*ParseTime("500ms", "f"), absl::Milliseconds(500));
  EXPECT_EQ(*ParseTime("10min", "f"), absl::Minutes(10));
  EXPECT_EQ(*ParseTime("0", "f"), absl::ZeroDuration());
  EXPECT_FALSE(ParseTime("nan", "f").ok());
  EXPECT_FALSE(ParseTime("inf", "f").ok());
  EXPECT_FALSE(ParseTime("1e300", "f").ok());
}

}  // namespace
}  // namespace penstock
