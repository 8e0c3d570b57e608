// The parts of the command line that need no daemon.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <sstream>

#include "client/cli/error_text.h"
#include "client/cli/exit_code.h"
#include "client/cli/input_bytes.h"
#include "client/cli/near_miss.h"
#include "client/cli/output.h"
#include "client/cli/output_file.h"
#include "client/cli/progress.h"
#include "client/cli/safetensors_file.h"
#include "client/cli/sampling.h"
#include "client/cli/stoppable_input.h"
#include "client/cli/tensor_file.h"
#include "client/cli/text_windows.h"
#include "client/cli/training_report.h"
#include "client/cli/value_json.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"

namespace penstock {
namespace {

TEST(NearMissTest, CountsOneSwapAsOneMistake) {
  EXPECT_EQ(EditDistance("lsit", "list"), 1);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("same", "same"), 0);
}

TEST(NearMissTest, SuggestsNothingForSomethingElse) {
  EXPECT_EQ(NearMiss("statsu", {"status", "schedule"}), "status");
  EXPECT_EQ(NearMiss("elephant", {"status", "train", "infer"}), "");
  EXPECT_EQ(NearMiss("x", {"get"}), "");
}

TEST(OutputTest, NumbersForPeople) {
  EXPECT_EQ(BytesText(512), "512 B");
  EXPECT_EQ(BytesText(1023), "1023 B");
  EXPECT_EQ(BytesText(1024), "1.0 KiB");
  EXPECT_EQ(BytesText(1536), "1.5 KiB");
  EXPECT_EQ(ClockText(3723), "1:02:03");
  EXPECT_EQ(ClockText(59.6), "1:00");
  EXPECT_EQ(CountText(6412544), "6,412,544");
  EXPECT_EQ(CountText(999), "999");
  EXPECT_EQ(CountText(-1000), "-1,000");
  EXPECT_EQ(CountText(-100'000), "-100,000");
  EXPECT_EQ(NumberText(2.34567, 4), "2.3457");
  EXPECT_EQ(NumberText(-std::numeric_limits<double>::quiet_NaN(), 4), "nan");
}

TEST(OutputFileTest, ReplacesAFileAsAWhole) {
  const std::string folder = ::testing::TempDir() + "/penstock_output_file";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  const std::string path = folder + "/file";
  const auto contents = [&] {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const auto names = [&] {
    return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
  };
  std::ostringstream out;
  const StopSignal stop;
  {
    OutputFile file(path, out, stop);
    ASSERT_TRUE(file.Append("old").ok());
    EXPECT_FALSE(std::filesystem::exists(path));
    ASSERT_TRUE(file.Commit().ok());
  }
  EXPECT_EQ(contents(), "old");
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  std::filesystem::create_symlink("file", folder + "/link");
  {
    OutputFile file(folder + "/link", out, stop);
    ASSERT_TRUE(file.Append("ne").ok());
    ASSERT_TRUE(file.Append("w").ok());
    EXPECT_EQ(contents(), "old");
    ASSERT_TRUE(file.Commit().ok());
  }
  EXPECT_EQ(contents(), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder + "/link"));
  EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms::owner_all);
  {
    OutputFile file(path, out, stop);
    ASSERT_TRUE(file.Append("half of it").ok());
  }
  EXPECT_EQ(contents(), "new");
  EXPECT_EQ(names(), 2) << "the file and its link";
  EXPECT_EQ(ReasonOf(OutputFile(folder + "/none/file", out, stop).Append("x")), "OUTPUT_NOT_WRITTEN");
  EXPECT_EQ(ReasonOf(OutputFile("/dev/full", out, stop).Append("x")), "OUTPUT_NOT_WRITTEN");
  EXPECT_TRUE(std::filesystem::exists("/dev/full")) << "a device is not removed";
  EXPECT_TRUE(OutputFile("-", out, stop).Append("to stdout").ok());
  EXPECT_EQ(out.str(), "to stdout");
}

// A named pipe, which nobody has opened.
std::string MakePipe() {
  const std::string path = ::testing::TempDir() + "/penstock_pipe";
  unlink(path.c_str());
  EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
  return path;
}

TEST(OutputFileTest, OfTwoAtOnePathEachIsWholeAndNoFileOfOthersIsTouched) {
  const std::string folder = ::testing::TempDir() + "/penstock_two_output_files";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  const std::string path = folder + "/file";
  const std::string others = path + ".1.part";
  std::ofstream(others) << "mine";
  const auto contents = [](const std::string& of) {
    std::ifstream file(of);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  std::ostringstream out;
  const StopSignal stop;
  OutputFile first(path, out, stop);
  ASSERT_TRUE(first.Open().ok());
  {
    OutputFile second(path, out, stop);
    ASSERT_TRUE(second.Append("second").ok());
    ASSERT_TRUE(first.Append("first").ok());
    ASSERT_TRUE(second.Commit().ok());
  }
  EXPECT_EQ(contents(path), "second");
  {
    OutputFile given_up(path, out, stop);
    ASSERT_TRUE(given_up.Append("third").ok());
  }
  ASSERT_TRUE(first.Commit().ok());
  EXPECT_EQ(contents(path), "first");
  EXPECT_EQ(contents(others), "mine");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()), 2);
}

TEST(OutputFileTest, AStopEndsTheWaitForThePipesReaderAndForItsRoom) {
  const std::string path = MakePipe();
  std::ostringstream out;
  for (const bool read : {false, true}) {
    const int reader = read ? open(path.c_str(), O_RDONLY | O_NONBLOCK) : -1;
    StopSignal stop;
    Thread stopper("stopper", [&] { stop.Stop(); });  // nobody takes anything: without this the writer waits for ever
    const absl::Status status = OutputFile(path, out, stop).Append(std::string(1 << 20, 'x'));
    EXPECT_EQ(ReasonOf(status), "WORK_CANCELLED") << read;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(path));
    stopper.Join();
    if (read) close(reader);
  }
}

TEST(OutputFileTest, WaitsForAPipesReader) {
  const std::string path = MakePipe();
  std::ostringstream out;
  const StopSignal stop;
  std::string got;
  Thread reader("reader", [&] {
    std::ifstream file(path);
    got = std::string(std::istreambuf_iterator<char>(file), {});
  });
  {
    OutputFile file(path, out, stop);
    EXPECT_TRUE(file.Append(std::string(1 << 20, 'x')).ok());
    EXPECT_TRUE(file.Commit().ok());
  }
  reader.Join();
  EXPECT_EQ(got, std::string(1 << 20, 'x'));
}

TEST(InputBytesTest, AStopEndsTheWaitForThePipesWriterAndForItsBytes) {
  const std::string path = MakePipe();
  std::istringstream in;
  for (const bool written : {false, true}) {
    const int writer = written ? open(path.c_str(), O_RDWR) : -1;
    StopSignal stop;
    Thread stopper("stopper", [&] { stop.Stop(); });  // without this the reader waits for ever
    const auto input = InputBytes::Open(path, in, stop);
    ASSERT_TRUE(input.ok()) << input.status();
    std::string bytes;
    const absl::Status status = (*input)->Read(10, &bytes);
    EXPECT_EQ(ReasonOf(status), "WORK_CANCELLED") << written;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(path));
    stopper.Join();
    if (written) close(writer);
  }
}

TEST(InputBytesTest, WaitsForAPipesWriterAndReadsAsMuchAsIsWanted) {
  const std::string path = MakePipe();
  std::istringstream in("of stdin");
  const StopSignal stop;
  std::string bytes;
  Thread writer("writer", [&] { std::ofstream(path) << std::string(1 << 20, 'x') << "end"; });
  {
    const auto input = InputBytes::Open(path, in, stop);
    ASSERT_TRUE((*input)->Read(1 << 20, &bytes).ok());
    EXPECT_EQ(bytes, std::string(1 << 20, 'x'));
    ASSERT_TRUE((*input)->Read(2 << 20, &bytes).ok());
  }
  writer.Join();
  EXPECT_EQ(bytes, std::string(1 << 20, 'x') + "end");
  const auto from_stdin = InputBytes::Open("-", in, stop);
  bytes.clear();
  ASSERT_TRUE((*from_stdin)->Read(3, &bytes).ok());
  EXPECT_EQ(bytes, "of ");
}

TEST(StoppableInputTest, EndsWithItsPipeOrWhenItIsStopped) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  StopSignal stop;
  StoppableInput input(ends[0], stop);
  std::istream in(&input);
  ASSERT_EQ(write(ends[1], "one\ntwo", 7), 7);
  std::string line;
  std::getline(in, line);
  EXPECT_EQ(line, "one");
  EXPECT_EQ(in.get(), 't');
  Thread stopper("stopper", [&] { stop.Stop(); });  // the pipe stays open: without this the reader waits for ever
  const std::string rest(std::istreambuf_iterator<char>(in), {});
  EXPECT_EQ(rest, "wo");
  stopper.Join();
  ASSERT_EQ(write(ends[1], "more", 4), 4);
  EXPECT_EQ(input.sgetc(), std::char_traits<char>::eof()) << "nothing is read after the end";
  close(ends[1]);
  const StopSignal nobody;
  StoppableInput other(ends[0], nobody);
  std::istream ended(&other);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(ended), {}), "more");
  close(ends[0]);
}

TEST(ExitCodeTest, AWrongUsageKeepsItsOwnWhereErrorsHaveThoseOfGrpc) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus(), /*grpc_codes=*/true), 0);
  EXPECT_EQ(ExitCodeOf(UsageError("--steps", "must be a number"), /*grpc_codes=*/true), 2);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("no"), /*grpc_codes=*/true), 69);
}

TEST(ErrorTextTest, ASingleFaultIsToldOnceAndSeveralAreAllTold) {
  const Error one = Error(absl::StatusCode::kInvalidArgument, "SPEC_INVALID", "a is wrong").With("violations[0]", "a");
  EXPECT_EQ(ErrorText("pipeline create", one, ""),
            "penstock: pipeline create failed: a is wrong\n"
            "  why: INVALID_ARGUMENT / SPEC_INVALID\n"
            "  do:  mend the named field; penstock pipeline plan tries a specification without creating anything\n");
  const Error two = Error(one).With("violations[1]", "b");
  EXPECT_THAT(ErrorText("pipeline create", two, ""),
              ::testing::HasSubstr("/ SPEC_INVALID (violations[0]=a, violations[1]=b)\n"));
}

TEST(ErrorTextTest, AConnectionThatFailsSaysWhatIsAmiss) {
  const auto told = [](const char* words, bool tls) {
    return ErrorText("status", absl::UnavailableError(std::string("failed to connect: ") + words), "h:1", tls);
  };
  EXPECT_THAT(told("Connection refused", true), ::testing::HasSubstr("no daemon answers at h:1\n"));
  EXPECT_THAT(told("SSL routines::wrong version number", true), ::testing::HasSubstr("no TLS is spoken at h:1\n"));
  EXPECT_THAT(told("SSL routines::certificate verify failed", true),
              ::testing::HasSubstr("the certificate was refused of h:1\n"));
  EXPECT_THAT(told("Peer name h is not in peer certificate", true),
              ::testing::HasSubstr("the certificate has another name than h:1\n"));
  EXPECT_THAT(told("Socket closed", true), ::testing::HasSubstr("look whether --tls-cert has ended"));
  EXPECT_THAT(told("Socket closed", false), ::testing::HasSubstr("if it speaks TLS: --tls-ca"));
}

TEST(OutputTest, TableAlignsAndHidesWideColumns) {
  Table table({{"NAME"}, {"SIZE", true}, {"DIGEST", false, true}});
  table.Add({"a", "10", "x"});
  table.Add({"long", "7"});
  EXPECT_EQ(table.Text(false), "NAME  SIZE\na       10\nlong     7\n");
  EXPECT_EQ(table.Text(true), "NAME  SIZE  DIGEST\na       10  x\nlong     7\n");
}

TEST(ProgressTest, WritesAboutTwentyPlainLinesWithFirstAndLast) {
  std::ostringstream out;
  Progress progress(out, false, 1000);
  for (int i = 1; i <= 1000; ++i) progress.Show(i, "line " + std::to_string(i));
  progress.Close();
  const std::string text = out.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 21);
  EXPECT_EQ(text.find("line 1\n"), 0);
  EXPECT_NE(text.find("line 1000\n"), std::string::npos);
}

TEST(ProgressTest, RewritesOneLineOnATerminal) {
  std::ostringstream out;
  Progress progress(out, true, 2);
  progress.Show(1, "one");
  progress.Show(2, "two");
  progress.Close();
  EXPECT_EQ(out.str(), "\rone\x1b[K\rtwo\x1b[K\n");
}

TEST(TrainingReportTest, TimeOutsideOfStepsIsNoBubble) {
  v1::PipelineStatistics before;
  v1::PipelineStatistics after;
  auto& then = *before.add_lanes()->mutable_state_seconds();
  then["forward"] = 10;
  auto& now = *after.add_lanes()->mutable_state_seconds();
  now["forward"] = 13;
  now["wait_gradient"] = 1;
  now["no_work"] = 4;
  TrainingReport report;
  CompareStatistics(before, after, &report);
  EXPECT_EQ(report.lanes.at(0).total, 8);
  EXPECT_EQ(report.bubble_measured, 0.25);
}

TEST(TextWindowsTest, TargetsAreTheNextBytes) {
  std::string text;
  for (int i = 0; i < 250; ++i) text += static_cast<char>(i);
  const auto windows = TextWindows::Create(text, 8, 1);
  ASSERT_TRUE(windows.ok());
  const TextWindows::Batch batch = windows->BatchOf(0, 16);
  const auto inputs = *batch.inputs.Values<int64_t>();
  const auto targets = *batch.targets.Values<int64_t>();
  ASSERT_EQ(inputs.size(), 128);
  for (size_t i = 0; i < inputs.size(); ++i) EXPECT_EQ(targets[i], inputs[i] + 1);
  std::set<int64_t> starts;
  for (size_t row = 0; row < 16; ++row) starts.insert(inputs[row * 8]);
  EXPECT_GT(starts.size(), 8);
}

TEST(TextWindowsTest, ABatchDependsOnSeedAndStepAlone) {
  std::string varied;
  for (int i = 0; i < 10'000; ++i) varied += static_cast<char>(i * 31 % 256);
  const auto bytes = [&](uint64_t seed, int64_t step) {
    return std::string(TextWindows::Create(varied, 8, seed)->BatchOf(step, 4).inputs.bytes());
  };
  EXPECT_EQ(bytes(1, 5), bytes(1, 5));
  EXPECT_NE(bytes(1, 5), bytes(1, 6));
  EXPECT_NE(bytes(1, 5), bytes(2, 5));
}

TEST(TextWindowsTest, ShortTextIsRefusedAndTheShortestWorks) {
  EXPECT_FALSE(TextWindows::Create(std::string(9, 'a'), 8, 1).ok());
  const auto windows = TextWindows::Create(std::string(10, 'a'), 8, 1);
  ASSERT_TRUE(windows.ok());
  windows->BatchOf(0, 100);
}

TEST(SamplingTest, ColdIsTheHighestAndWarmFollowsTheWeights) {
  std::mt19937_64 random(1);
  const std::vector<float> scores = {0, 3, 3, std::numeric_limits<float>::quiet_NaN()};
  for (const double cold : {0.0, -1.0}) {
    for (int i = 0; i < 10; ++i) EXPECT_EQ(SampleIndex(scores, cold, random), 1) << cold;
  }
  int counts[4] = {};
  for (int i = 0; i < 10'000; ++i) ++counts[SampleIndex(scores, 1, random)];
  EXPECT_EQ(counts[3], 0);
  EXPECT_NEAR(counts[1], counts[2], 300);
  EXPECT_NEAR(counts[0], 10'000 / (1 + 2 * std::exp(3.0)), 100);
}

TEST(ValueJsonTest, GoesThereAndBack) {
  for (const std::string text :
       {"null", "true", "-3", "0.5", "3.0", "\"text\"", "[1,[null,{}],[]]", R"({"a":1,"b":{"c":[2.5]}})"}) {
    const auto value = ValueFromJson(text, "--value x");
    ASSERT_TRUE(value.ok()) << value.status();
    EXPECT_EQ(ValueToJson(*value).dump(), text);
  }
  EXPECT_EQ(ValueFromJson("3", "x")->kind_case(), v1::Value::kIntValue);
  EXPECT_EQ(ValueFromJson("3.0", "x")->kind_case(), v1::Value::kDoubleValue);
  EXPECT_EQ(ValueFromJson("[]", "x")->kind_case(), v1::Value::kList);
  EXPECT_EQ(ValueFromJson("{}", "x")->kind_case(), v1::Value::kDict);
  const std::string deep = std::string(16, '[') + std::string(16, ']');
  EXPECT_TRUE(ValueFromJson(deep, "x").ok());
  for (const std::string& text :
       {std::string("word"), std::string(""), std::string("18446744073709551615"), "[" + deep + "]"}) {
    const auto value = ValueFromJson(text, "--value x");
    EXPECT_EQ(ReasonOf(value.status()), "USAGE") << text;
    EXPECT_THAT(std::string(value.status().message()), ::testing::StartsWith("--value x")) << text;
  }
}

TEST(ValueJsonTest, RefusesWhatReadersOfJsonChangeSilently) {
  for (const auto& [text, problem] : std::vector<std::pair<std::string, std::string>>{
           {R"({"a":1,"b":{"c":1,"c":2}})", "has the name c twice"},
           {R"([{"a":1},{"a":1,"a":1}])", "has the name a twice"},
           {"[1,18446744073709551616]", "must have integers of 64 bits, got 18446744073709551616"},
           {"-9223372036854775809", "must have integers of 64 bits, got -9223372036854775809"}}) {
    const auto value = ValueFromJson(text, "--value x");
    EXPECT_EQ(ReasonOf(value.status()), "USAGE") << text;
    EXPECT_EQ(value.status().message(), "--value x: " + problem);
  }
  EXPECT_EQ(ValueFromJson("-9223372036854775808", "x")->int_value(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(ValueFromJson("18446744073709551616.0", "x")->double_value(), std::ldexp(1.0, 64));
  EXPECT_TRUE(ValueFromJson(R"([{"a":{"a":1}},{"a":2}])", "x").ok()) << "the names of one object, not of all";
}

TEST(ValueJsonTest, ElementsOfEveryTypeAsListsInLists) {
  const auto json = [](DataType type, std::vector<int64_t> shape, const std::string& bytes) {
    return TensorToJson(HostTensor::FromBytes({"x", type, std::move(shape), 0}, bytes).value()).dump();
  };
  const float floats[] = {0.5F, -2.0F, std::numeric_limits<float>::infinity()};
  EXPECT_EQ(json(DataType::kFp32, {3}, {reinterpret_cast<const char*>(floats), 12}), "[0.5,-2.0,null]");
  EXPECT_EQ(json(DataType::kUint8, {2, 2}, std::string("\0\1\2\3", 4)), "[[0,1],[2,3]]");
  EXPECT_EQ(json(DataType::kBool, {}, std::string("\1", 1)), "true");
  EXPECT_EQ(json(DataType::kInt8, {1}, "\xff"), "[-1]");
  EXPECT_EQ(json(DataType::kBf16, {2}, std::string("\x80\x3f\x20\xc0", 4)), "[1.0,-2.5]");
  // One, the least above zero, minus two.
  EXPECT_EQ(json(DataType::kFp16, {3}, std::string("\x00\x3c\x01\x00\x00\xc0", 6)), "[1.0,5.960464477539063e-08,-2.0]");
  EXPECT_EQ(json(DataType::kInt64, {2, 0}, ""), "[[],[]]");
}

TEST(TensorFileTest, TheNameDecides) {
  std::vector<HostTensor> tensors;
  tensors.push_back(HostTensor::FromBytes({"x", DataType::kFp32, {1}, 0}, std::string(4, '\0')).value());
  EXPECT_EQ(TensorFile("a.npz", "--to", tensors, {})->substr(0, 4), "PK\3\4");
  EXPECT_TRUE(ReadSafetensors(*TensorFile("a.safetensors", "--to", tensors, {})).ok());
  tensors.push_back(HostTensor::FromBytes({"y", DataType::kBf16, {1}, 0}, std::string(2, '\0')).value());
  EXPECT_TRUE(TensorFile("-", "--to", tensors, {}).ok());
  const absl::Status refused = TensorFile("a.npz", "--to", tensors, {}).status();
  EXPECT_EQ(ReasonOf(refused), "USAGE");
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("no bfloat16, the type of y"));
}

TEST(SafetensorsTest, RefusesDamagedFiles) {
  const std::vector<float> values = {1, 2, 3};
  std::vector<HostTensor> tensors;
  tensors.push_back(*HostTensor::FromValues<float>("x", {3}, values));
  const std::string good = WriteSafetensors(tensors, {{"step", "7"}});
  ASSERT_TRUE(ReadSafetensors(good).ok());
  EXPECT_EQ((good.size() - 12) % 8, 0);
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(ReadSafetensors(std::string_view(good).substr(0, length)).ok()) << length;
  }
  EXPECT_FALSE(ReadSafetensors(good + "x").ok());
  const auto with_header = [](const std::string& json, size_t bytes) {
    std::string file(8, '\0');
    file[0] = static_cast<char>(json.size());
    return file + json + std::string(bytes, '\0');
  };
  EXPECT_TRUE(ReadSafetensors(with_header(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4)).ok());
  for (const char* json : {R"([])", R"({"x":1})", R"({"x":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}})",
                           R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
                           R"({"x":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
                           R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})",
                           R"({"x":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}})"}) {
    EXPECT_FALSE(ReadSafetensors(with_header(json, 4)).ok()) << json;
  }
  const absl::Status twice = ReadSafetensors(with_header(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                                         R"("x":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}})",
                                                         4))
                                 .status();
  EXPECT_EQ(twice.message(), "safetensors: the header has the name x twice");
}

}  // namespace
}  // namespace penstock
