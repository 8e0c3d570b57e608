#pragma once

// What tests of commands share: running one, its streams, files.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "client/cli/command_line.h"
#include "tests/unit/client/fake_daemon.h"
#include "tests/unit/client/jumping_clock.h"

namespace penstock::testing {

// Runs commands in `world_`, which has no daemon, no terminal and a clock on which nobody waits.
class CommandFixture : public ::testing::Test {
 protected:
  CommandFixture() {
    world_.clock = &clock_;
    world_.stop = &stop_;
  }

  // Runs the words of a command; returns its exit code, and leaves what it wrote in out_ and err_.
  int Run(const std::string& words, const std::string& input = "") {
    std::ostringstream out;
    const int code = RunInto(out, absl::StrSplit(words, ' ', absl::SkipEmpty()), input);
    out_ = out.str();
    return code;
  }
  int RunInto(std::ostream& out, const std::vector<std::string>& words, const std::string& input = "") {
    std::istringstream in(input);
    std::ostringstream err;
    CommandWorld world = world_;
    world.in = &in;
    world.out = &out;
    world.err = &err;
    const int code = RunCommandLine(words, world);
    err_ = err.str();
    return code;
  }

  static std::string Contents(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // Returns the path of a file with this text.
  static std::string TemporaryFile(const std::string& name, const std::string& text) {
    const std::string path = ::testing::TempDir() + "/penstock_cli_" + name;
    std::ofstream(path) << text;
    return path;
  }
  // Compares stdout with tests/golden/cli/NAME; PENSTOCK_UPDATE_GOLDEN=1 rewrites the file instead.
  void ExpectGolden(const std::string& name) {
    const std::string path = std::string(PENSTOCK_GOLDEN_FOLDER) + "/" + name;
    if (std::getenv("PENSTOCK_UPDATE_GOLDEN") != nullptr) {
      std::ofstream(path) << out_;
      return;
    }
    EXPECT_EQ(out_, Contents(path)) << "PENSTOCK_UPDATE_GOLDEN=1 rewrites " << name;
  }

  JumpingClock clock_;
  StopSignal stop_;
  CommandWorld world_;
  std::string out_;
  std::string err_;
};

// The same against a daemon in memory.
class DaemonCommandFixture : public CommandFixture {
 protected:
  DaemonCommandFixture() { world_.channel = daemon_.Channel(); }

  FakeDaemon daemon_;
};

}  // namespace penstock::testing
