#include "client/cli/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <new>
#include <stdexcept>
#include <streambuf>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/safetensors_file.h"
#include "tests/unit/cli/command_fixture.h"

namespace penstock {
namespace {

using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::RichStatus;
using ::testing::SizeIs;
using ::testing::StartsWith;

class CommandLineTest : public testing::DaemonCommandFixture {
 protected:
  void OnATerminal() { world_.in_is_terminal = world_.err_is_terminal = true; }
};

TEST_F(CommandLineTest, EveryCommandIsListed) {
  EXPECT_EQ(Run("--dump=commands"), 0);
  ExpectGolden("commands.txt");
}

TEST_F(CommandLineTest, HelpShowsExamplesFirst) {
  EXPECT_EQ(Run("pipeline create --help"), 0);
  EXPECT_THAT(out_, StartsWith("Examples:\n  penstock pipeline create gpt"));
  EXPECT_THAT(out_, HasSubstr("Usage: penstock pipeline create"));
  EXPECT_EQ(Run("--help"), 0);
  EXPECT_THAT(out_, StartsWith("Examples:\n  penstock status"));
}

TEST_F(CommandLineTest, TheTimeIsThatOfTheCommandAndOfATrainingThatOfEachCall) {
  const std::string text = TemporaryFile("text", std::string(2000, 'x'));
  const auto busy = [this](const std::string& method) {
    daemon_.PushBack("1500");
    daemon_.Fail(method, RichStatus(grpc::StatusCode::UNAVAILABLE, "DRAINING", "later"));
  };
  busy("GetPipeline");
  busy("Infer");
  EXPECT_EQ(Run("--timeout 2 infer gpt --prompt abc --bytes 1"), 4);  // 1.5 s are gone when Infer waits as long again
  busy("GetPipeline");
  EXPECT_EQ(Run("--timeout 2 infer gpt --prompt abc --bytes 1"), 0) << err_;
  busy("GetPipeline");
  busy("TrainStep");
  EXPECT_EQ(Run("--timeout 2 train gpt --steps 2 --batch 2 --text " + text), 0) << err_;
}

TEST_F(CommandLineTest, NearMissesAreSuggested) {
  EXPECT_EQ(Run("pipline list"), 2);
  EXPECT_THAT(err_, HasSubstr("unknown command 'pipline': did you mean 'pipeline'?"));
  EXPECT_EQ(Run("pipeline lsit"), 2);
  EXPECT_THAT(err_, HasSubstr("did you mean 'list'?"));
  EXPECT_EQ(Run("train gpt --txet x"), 2);
  EXPECT_THAT(err_, HasSubstr("did you mean '--text'?"));
  EXPECT_EQ(Run("pipeline"), 2);
  EXPECT_THAT(err_, HasSubstr("a command is missing"));
  EXPECT_THAT(out_, IsEmpty());
}

class FolderForFileTest : public CommandLineTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(FolderForFileTest, IsRefusedInOneLineThatNamesIt) {
  const std::string folder = ::testing::TempDir() + "/penstock_cli_folder";
  std::filesystem::create_directory(folder);
  EXPECT_EQ(Run(absl::StrCat(GetParam(), " ", folder)), 2);
  EXPECT_THAT(err_, HasSubstr(absl::StrCat(" failed: ", folder, ": cannot be read (read: Is a directory)\n")));
  EXPECT_THAT(out_, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Options, FolderForFileTest,
                         ::testing::Values("train gpt --text", "pipeline create x --spec",
                                           "pipeline create x --model gpt --schedule-file", "infer gpt --to x --input",
                                           "handle put gpt", "schedule show --file", "schedule verify",
                                           "model add --id x.pt2", "bench gpt --input"));

class EndlessFileTest : public CommandLineTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(EndlessFileTest, IsRefusedByName) {
  EXPECT_EQ(Run(absl::StrCat(GetParam(), " /dev/zero")), 2);
  EXPECT_THAT(err_, HasSubstr(" failed: /dev/zero: "));
  EXPECT_THAT(out_, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Options, EndlessFileTest,
                         ::testing::Values("pipeline create x --spec", "pipeline create x --model gpt --schedule-file",
                                           "infer gpt --to x --input", "handle put gpt", "bench gpt --input"));

TEST_F(CommandLineTest, AFileThatIsTooLongIsRefusedWithTheLimit) {
  const std::string spec = TemporaryFile("long", std::string((4 << 20) + 1, ' '));
  EXPECT_EQ(Run("pipeline create x --spec " + spec), 2);
  EXPECT_THAT(err_, HasSubstr(spec + ": has more than 4194304 bytes, the limit of a specification\n"));
  EXPECT_EQ(Run("pipeline create x --spec -", std::string((4 << 20) + 1, ' ')), 2);
  EXPECT_THAT(err_, HasSubstr("stdin: has more than 4194304 bytes"));
}

TEST_F(CommandLineTest, ReadsNoMoreOfTensorsThanTheirHeaderSays) {
  std::string header = R"({"x":{"dtype":"F32","shape":[268435457],"data_offsets":[0,1073741828]}})";
  const std::string large = std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header;
  EXPECT_EQ(Run("handle put gpt -", large), 2);
  EXPECT_THAT(err_, HasSubstr("stdin: x: has more than 1073741824 bytes, the most of a tensor"));
  const std::vector<float> values = {1};
  std::vector<HostTensor> tensors;
  tensors.push_back(*HostTensor::FromValues<float>("x", {1}, values));
  const std::string good = WriteSafetensors(tensors, {});
  EXPECT_EQ(Run("handle put gpt -", good), 0) << err_;
  EXPECT_EQ(Run("handle put gpt -", good + "x"), 2);
  EXPECT_THAT(err_, HasSubstr("bytes behind the last tensor"));
  EXPECT_EQ(Run("handle put gpt -", good.substr(0, 20)), 2);
  EXPECT_THAT(err_, HasSubstr("does not fit"));
}

TEST_F(CommandLineTest, WholeNumbersThatDoNotFitAreRefused) {
  for (const auto& [words, option, value] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"train gpt --text x", "--seed", "-1"},
           {"infer gpt --prompt x", "--seed", "18446744073709551616"},
           {"pipeline create x --model gpt", "--seed", "-1"},
           {"pipeline create x --model gpt", "--mini-batch-rows", "9223372036854775808"},
           {"train gpt --text x", "--steps", "9223372036854775808"},
           {"train gpt --text x", "--batch", "99999999999999999999"},
           {"params write gpt --from x", "--step", "9223372036854775808"}}) {
    EXPECT_EQ(Run(absl::StrCat(words, " ", option, " ", value)), 2);
    EXPECT_THAT(err_, HasSubstr(absl::StrCat(option, ": takes no such value, got ", value, "\n")));
  }
  EXPECT_EQ(Run("pipeline create x --model gpt --option blocks=9223372036854775808"), 2);
  EXPECT_THAT(err_, HasSubstr("--option: must have integers of 64 bits, got 'blocks=9223372036854775808'\n"));
  EXPECT_EQ(Run("pipeline create x --model gpt --seed 18446744073709551615"), 0) << err_;
  EXPECT_EQ(daemon_.LastCreate().spec().seed(), 18446744073709551615U);
}

TEST_F(CommandLineTest, WholeNumbersAreDecimalUnlessTheyBeginWith0x) {
  for (const auto& [text, number] :
       std::vector<std::pair<std::string, uint64_t>>{{"010", 10}, {"09", 9}, {"0x1f", 31}}) {
    EXPECT_EQ(Run("pipeline create x --model gpt --seed " + text + " --mini-batch-rows " + text), 0) << err_;
    EXPECT_EQ(daemon_.LastCreate().spec().seed(), number);
    EXPECT_EQ(daemon_.LastCreate().spec().schedule().mini_batch_rows(), static_cast<int64_t>(number));
    EXPECT_EQ(Run(absl::StrCat("schedule show --kind 1f1b --devices 2 --micro-batches ", number)), 0) << err_;
    const std::string drawn = out_;
    EXPECT_EQ(Run("schedule show --kind 1f1b --devices 2 --micro-batches " + text), 0) << err_;
    EXPECT_EQ(out_, drawn) << text;
  }
  for (const char* wrong : {"0x", "x1", "1x", "1_0", "1.0", "--1"}) {
    EXPECT_EQ(Run(absl::StrCat("pipeline create x --model gpt --seed=", wrong)), 2) << wrong;
  }
}

TEST_F(CommandLineTest, AReportThatCanNotBeWrittenEndsATrainingBeforeItsFirstStep) {
  const std::string text = TemporaryFile("text", std::string(200, 'a'));
  EXPECT_EQ(Run("train gpt --steps 2 --batch 2 --text " + text + " --json /does/not/exist/report.json"), 1);
  EXPECT_THAT(err_, HasSubstr("/does/not/exist/report.json: cannot be written: No such file or directory"));
  EXPECT_THAT(daemon_.LastTrainStep().request_id(), IsEmpty());
}

TEST_F(CommandLineTest, StatusInEveryFormat) {
  EXPECT_EQ(Run("status"), 0);
  ExpectGolden("status.txt");
  EXPECT_EQ(Run("status -o json"), 0);
  const Json json = Json::parse(out_, nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["server"]["state"], "ready");
  EXPECT_EQ(json["server"]["devices"][0]["memory_limit_bytes"], int64_t{8} << 30);
  EXPECT_EQ(json["pipelines"][0]["pipeline"]["state"], "ready");
  EXPECT_EQ(Run("status -o name"), 0);
  EXPECT_EQ(out_, "pipelines/gpt\npipelines/other\n");
  EXPECT_EQ(Run("-o jsonl pipeline list"), 0);
  EXPECT_EQ(std::count(out_.begin(), out_.end(), '\n'), 2);
}

TEST_F(CommandLineTest, PipelineTables) {
  EXPECT_EQ(Run("pipeline list"), 0);
  ExpectGolden("pipeline_list.txt");
  EXPECT_EQ(Run("pipeline get gpt"), 0);
  ExpectGolden("pipeline_get.txt");
}

TEST_F(CommandLineTest, CreateSendsWhatTheOptionsSay) {
  EXPECT_EQ(Run("pipeline create small --model gpt --option blocks=8 --option dropout=0.1 --option tied=true "
                "--balance 5,5 --ranks 0,0 --device cpu:0 --device cpu:1 --schedule gpipe --micro-batches 4 "
                "--checkpoint always --optimizer adamw --learning-rate 1e-3 --weight-decay 0.1 --clip-norm 1.0 "
                "--warmup-steps 10 "
                "--total-steps 100 --loss cross_entropy --seed 7 --bubble-filling off --inference-share 0.05 "
                "--inference-max-wait 1.5 --planning-seconds 7.5 --batch-rows 32 --batch-micro-batch-rows 8 "
                "--batch-delay 0.5"),
            0)
      << err_;
  EXPECT_THAT(err_, HasSubstr("created pipelines/small; next: penstock train small"));
  const v1::CreatePipelineRequest seen = daemon_.LastCreate();
  EXPECT_EQ(seen.pipeline_id(), "small");
  EXPECT_FALSE(seen.validate_only());
  EXPECT_EQ(seen.request_id().size(), 36);
  const v1::PipelineSpec& spec = seen.spec();
  EXPECT_EQ(spec.model().options().at("blocks").int_value(), 8);
  EXPECT_EQ(spec.model().options().at("dropout").double_value(), 0.1);
  EXPECT_EQ(spec.model().options().at("tied").bool_value(), true);
  EXPECT_THAT(spec.cut().balance(), ElementsAre(5, 5));
  EXPECT_THAT(spec.cut().ranks(), ElementsAre(0, 0));
  EXPECT_THAT(spec.devices(), ElementsAre("cpu:0", "cpu:1"));
  EXPECT_EQ(spec.schedule().kind(), "gpipe");
  EXPECT_EQ(spec.schedule().micro_batches(), 4);
  EXPECT_EQ(spec.schedule().checkpoint(), v1::CHECKPOINT_MODE_ALWAYS);
  EXPECT_EQ(spec.optimizer().options().at("learning_rate").double_value(), 1e-3);
  EXPECT_EQ(spec.optimizer().clip_norm(), 1.0);
  EXPECT_EQ(spec.optimizer().learning_rate_schedule().name(), "warmup_cosine");
  EXPECT_EQ(spec.optimizer().learning_rate_schedule().warmup_steps(), 10);
  EXPECT_EQ(spec.loss().name(), "cross_entropy");
  EXPECT_EQ(spec.seed(), 7);
  EXPECT_EQ(spec.bubble_filling().mode(), v1::BUBBLE_FILLING_OFF);
  EXPECT_EQ(spec.bubble_filling().inference_share(), 0.05);
  EXPECT_EQ(spec.bubble_filling().max_wait_seconds(), 1.5);
  EXPECT_EQ(spec.planning_seconds(), 7.5);
  EXPECT_EQ(spec.dynamic_batching().max_rows(), 32);
  EXPECT_EQ(spec.dynamic_batching().micro_batch_rows(), 8);
  EXPECT_EQ(spec.dynamic_batching().max_delay_seconds(), 0.5);
}

TEST_F(CommandLineTest, AnEmptyTextIsNoNumber) {
  for (const auto& [words, option] :
       std::vector<std::pair<std::string, std::string>>{{"pipeline create x --model gpt", "--batch-rows"},
                                                        {"pipeline create x --model gpt", "--batch-micro-batch-rows"},
                                                        {"pipeline create x --model gpt", "--batch-delay"},
                                                        {"pipeline create x --model gpt", "--stages"},
                                                        {"pipeline create x --model gpt", "--seed"},
                                                        {"pipeline create x --model gpt", "--balance"},
                                                        {"pipeline create x --model gpt", "--class-weights"},
                                                        {"pipeline create x --model gpt", "--learning-rate"},
                                                        {"pipeline plan --model gpt", "--batch-rows"},
                                                        {"pipeline plan --model gpt", "--max-chunks"},
                                                        {"train gpt --text x", "--steps"},
                                                        {"infer gpt --prompt x", "--temperature"}}) {
    std::ostringstream out;
    std::vector<std::string> arguments = absl::StrSplit(words, ' ');
    arguments.insert(arguments.end(), {option, ""});
    EXPECT_EQ(RunInto(out, arguments), 2) << words << " " << option;
    EXPECT_THAT(err_, HasSubstr(option + ": "));
    EXPECT_THAT(err_, HasSubstr(", got"));
  }
  EXPECT_EQ(daemon_.LastCreate().pipeline_id(), "");
  std::ostringstream out;
  EXPECT_EQ(RunInto(out, {"pipeline", "create", "x", "--model", "gpt", "--batch-rows", ""}), 2);
  EXPECT_THAT(err_, HasSubstr("--batch-rows: takes no such value, got ''\n"));
}

TEST_F(CommandLineTest, NothingAfterAnEqualsSignTakesNoOtherWord) {
  for (const std::string words : {"--caller= status", "status --caller=", "--output= pipeline list"}) {
    std::ostringstream out;
    EXPECT_EQ(RunInto(out, absl::StrSplit(words, ' ')), 2) << words;
    EXPECT_THAT(err_, ContainsRegex("--(caller|output): takes no such value, got ''\n")) << words;
  }
}

// Each command with each of its options that take no value, by the list of commands.
std::vector<std::pair<std::string, std::string>> Switches(const std::string& commands) {
  std::vector<std::pair<std::string, std::string>> switches = {{"status", "--no-color"},
                                                               {"status", "--grpc-exit-codes"}};
  for (const absl::string_view line : absl::StrSplit(commands, '\n', absl::SkipEmpty())) {
    std::string command;
    bool in_command = true;
    for (const absl::string_view word : absl::StrSplit(line, ' ')) {
      in_command = in_command && std::islower(word[0]);
      if (in_command) absl::StrAppend(&command, command.empty() ? "" : " ", word);
      if (absl::StartsWith(word, "[--") && absl::EndsWith(word, "]"))
        switches.emplace_back(command, std::string(word.substr(1, word.size() - 2)));
    }
  }
  return switches;
}

TEST_F(CommandLineTest, ASwitchIsOnOrOff) {
  EXPECT_EQ(Run("--dump=commands"), 0);
  const auto switches = Switches(out_);
  EXPECT_THAT(switches, Contains(std::pair("pipeline replan", "--dynamic-batching")));
  EXPECT_THAT(switches, Contains(std::pair("checkpoint restore", "--force")));
  for (const auto& [command, name] : switches) {
    for (const std::string value : {"maybe", "99999999999999999999", "2", "1e3", "-1", ""}) {
      EXPECT_EQ(Run(absl::StrCat(command, " ", name, "=", value)), 2) << command;
      EXPECT_THAT(err_, HasSubstr(absl::StrCat("penstock ", command, ": ", name, ": takes no such value, got ",
                                               value.empty() ? "''" : value, "\n")));
    }
  }
  for (const std::string value : {"true", "TRUE", "on", "yes", "1"}) {
    EXPECT_EQ(Run(absl::StrCat("pipeline replan gpt --dry-run=", value, " --dynamic-batching=", value)), 0) << err_;
    EXPECT_TRUE(daemon_.LastReplan().spec().has_dynamic_batching()) << value;
    EXPECT_TRUE(daemon_.LastReplan().validate_only()) << value;
  }
  for (const std::string value : {"false", "Off", "no", "0"}) {
    EXPECT_EQ(Run(absl::StrCat("pipeline replan gpt --dry-run=", value, " --dynamic-batching=", value)), 0) << err_;
    EXPECT_TRUE(daemon_.LastReplan().no_dynamic_batching()) << value;
    EXPECT_FALSE(daemon_.LastReplan().validate_only()) << value;
  }
  EXPECT_EQ(Run("pipeline replan gpt --dynamic-batching=false --dynamic-batching"), 0) << err_;
  EXPECT_FALSE(daemon_.LastReplan().no_dynamic_batching()) << "the last one counts";
  EXPECT_EQ(Run("infer gpt --bytes 1 --prompt --no-color="), 0) << "a value of another option: " << err_;
  world_.setting_files = {TemporaryFile("switch.toml", "no-color = 2\n")};
  EXPECT_EQ(Run("status"), 2);
  EXPECT_THAT(err_, HasSubstr("switch.toml:1: --no-color: takes no such value, got 2\n"));
}

TEST_F(CommandLineTest, WhatBelongsToBatchingDoesNotGoWithItsRefusal) {
  const std::string create = "pipeline create x --model gpt --dynamic-batching=false ";
  for (const auto& [option, value] : std::vector<std::pair<std::string, std::string>>{
           {"--batch-rows", "2"}, {"--batch-micro-batch-rows", "3"}, {"--batch-delay", "0.5"}}) {
    EXPECT_EQ(Run(absl::StrCat(create, option, " ", value)), 2);
    EXPECT_THAT(err_, HasSubstr(absl::StrCat(option, ": belongs to --dynamic-batching, which is false, got ", value)));
    EXPECT_EQ(Run(absl::StrCat("pipeline plan --model gpt --dynamic-batching=false ", option, "=", value)), 2);
  }
  EXPECT_EQ(Run("pipeline create x --from-checkpoint gpt/step-1 --dynamic-batching=false"), 2);
  EXPECT_THAT(err_, HasSubstr("--dynamic-batching: can't take back"));
  EXPECT_EQ(daemon_.LastCreate().pipeline_id(), "");

  EXPECT_EQ(Run(create), 0) << err_;
  EXPECT_FALSE(daemon_.LastCreate().spec().has_dynamic_batching());
  const std::string spec = " --spec " + TemporaryFile("batched", R"({"dynamicBatching": {"maxRows": "8"}})");
  EXPECT_EQ(Run(create + spec), 0) << err_;
  EXPECT_FALSE(daemon_.LastCreate().spec().has_dynamic_batching()) << "options go over the file";
  EXPECT_EQ(Run("pipeline create x --model gpt --dynamic-batching --batch-delay 1" + spec), 0) << err_;
  EXPECT_EQ(daemon_.LastCreate().spec().dynamic_batching().max_rows(), 8);
  EXPECT_EQ(daemon_.LastCreate().spec().dynamic_batching().max_delay_seconds(), 1);
}

TEST_F(CommandLineTest, ASwitchGoesOverTheFile) {
  const std::string spec =
      " --spec " +
      TemporaryFile("on", R"({"model": {"name": "gpt", "deferredBatchNorm": true, "tupleAsOneArgument": true}})");
  EXPECT_EQ(Run("pipeline create x" + spec), 0) << err_;
  EXPECT_TRUE(daemon_.LastCreate().spec().model().deferred_batch_norm());
  EXPECT_TRUE(daemon_.LastCreate().spec().model().tuple_as_one_argument());
  EXPECT_EQ(Run("pipeline create x --deferred-batch-norm=false --tuple-as-one-argument=false" + spec), 0) << err_;
  EXPECT_FALSE(daemon_.LastCreate().spec().model().deferred_batch_norm());
  EXPECT_FALSE(daemon_.LastCreate().spec().model().tuple_as_one_argument());
  EXPECT_EQ(Run("pipeline create x --model gpt --deferred-batch-norm --tuple-as-one-argument"), 0) << err_;
  EXPECT_TRUE(daemon_.LastCreate().spec().model().deferred_batch_norm());
  EXPECT_TRUE(daemon_.LastCreate().spec().model().tuple_as_one_argument());
}

TEST_F(CommandLineTest, AnOptimizerIsDescribedAndUpdated) {
  EXPECT_EQ(Run("pipeline create small --model gpt --optimizer rmsprop --optimizer-option centered=true "
                "--rate-schedule step --rate-step-size 30 --rate-gamma 0.5 --warmup-steps 3 "
                "--group *.bias,*.norm.*:weight_decay=0,learning_rate=0.5 --freeze block0.* --freeze embedding.* "
                "--loss cross_entropy --loss-option label_smoothing=0.1 --class-weights 1,2.5"),
            0)
      << err_;
  const v1::PipelineSpec spec = daemon_.LastCreate().spec();
  EXPECT_EQ(spec.optimizer().name(), "rmsprop");
  EXPECT_EQ(spec.optimizer().options().at("centered").bool_value(), true);
  const v1::LearningRateSpec& rate = spec.optimizer().learning_rate_schedule();
  EXPECT_EQ(rate.name(), "step");
  EXPECT_EQ(rate.step_size(), 30);
  EXPECT_EQ(rate.gamma(), 0.5);
  EXPECT_EQ(rate.warmup_steps(), 3);
  EXPECT_FALSE(rate.has_power());
  ASSERT_EQ(spec.optimizer().groups_size(), 2);
  EXPECT_THAT(spec.optimizer().groups(0).patterns(), ElementsAre("block0.*", "embedding.*"));
  EXPECT_TRUE(spec.optimizer().groups(0).frozen());
  EXPECT_THAT(spec.optimizer().groups(1).patterns(), ElementsAre("*.bias", "*.norm.*"));
  EXPECT_EQ(spec.optimizer().groups(1).options().at("weight_decay").int_value(), 0);
  EXPECT_EQ(spec.optimizer().groups(1).options().at("learning_rate").double_value(), 0.5);
  EXPECT_THAT(spec.loss().class_weights(), ElementsAre(1, 2.5));
  EXPECT_EQ(Run("pipeline create small --model gpt --group weight_decay=0"), 2);
  EXPECT_THAT(err_, HasSubstr("--group"));

  // What is not said stays.
  EXPECT_EQ(Run("pipeline update gpt --learning-rate 0.25 --rate-schedule polynomial --total-steps 9 --rate-power 2"),
            0)
      << err_;
  v1::UpdateOptimizerRequest update = daemon_.LastUpdate();
  EXPECT_EQ(update.name(), "pipelines/gpt");
  EXPECT_EQ(update.request_id().size(), 36);
  EXPECT_EQ(update.optimizer().name(), "adamw");
  EXPECT_EQ(update.optimizer().options().at("beta1").double_value(), 0.5);
  EXPECT_EQ(update.optimizer().options().at("learning_rate").double_value(), 0.25);
  EXPECT_EQ(update.optimizer().groups_size(), 1);
  EXPECT_EQ(update.optimizer().learning_rate_schedule().name(), "polynomial");
  EXPECT_EQ(update.optimizer().learning_rate_schedule().warmup_steps(), 0) << "a schedule that is named begins anew";
  EXPECT_EQ(update.optimizer().learning_rate_schedule().power(), 2);
  EXPECT_THAT(err_, HasSubstr("changed the optimizer of pipelines/gpt"));
  EXPECT_EQ(Run("pipeline update gpt --group head.*:weight_decay=0"), 0) << err_;
  update = daemon_.LastUpdate();
  ASSERT_EQ(update.optimizer().groups_size(), 1) << "groups that are named begin anew";
  EXPECT_THAT(update.optimizer().groups(0).patterns(), ElementsAre("head.*"));
  EXPECT_EQ(Run("pipeline update gpt --no-groups --warmup-steps 8"), 0) << err_;
  update = daemon_.LastUpdate();
  EXPECT_EQ(update.optimizer().groups_size(), 0);
  EXPECT_EQ(update.optimizer().learning_rate_schedule().name(), "warmup_cosine");
  EXPECT_EQ(update.optimizer().learning_rate_schedule().warmup_steps(), 8);
}

TEST_F(CommandLineTest, ReplanSendsWhatIsSaidAndNothingElse) {
  EXPECT_EQ(Run("pipeline replan gpt --stages 2 --schedule zb-h1 --batch-rows 8"), 0) << err_;
  v1::UpdatePipelineRequest request = daemon_.LastReplan();
  EXPECT_EQ(request.name(), "pipelines/gpt");
  EXPECT_EQ(request.request_id().size(), 36);
  EXPECT_EQ(request.spec().cut().stages(), 2);
  EXPECT_EQ(request.spec().schedule().kind(), "zb-h1");
  EXPECT_EQ(request.spec().dynamic_batching().max_rows(), 8);
  EXPECT_EQ(request.spec().model().name(), "");
  EXPECT_EQ(request.spec().optimizer().name(), "");
  EXPECT_EQ(request.spec().optimizer().options_size(), 0);
  EXPECT_EQ(request.spec().loss().name(), "");
  EXPECT_FALSE(request.no_dynamic_batching());
  EXPECT_FALSE(request.validate_only());
  EXPECT_THAT(err_, HasSubstr("changed the plan of pipelines/gpt"));
  EXPECT_EQ(Run("pipeline replan pipelines/gpt --dynamic-batching=false --dry-run"), 0) << err_;
  request = daemon_.LastReplan();
  EXPECT_TRUE(request.no_dynamic_batching());
  EXPECT_TRUE(request.validate_only());
  EXPECT_FALSE(request.spec().has_dynamic_batching());
  EXPECT_THAT(err_, HasSubstr("nothing was changed"));
  EXPECT_EQ(Run("pipeline replan"), 2);
}

TEST_F(CommandLineTest, AnUnloadTellsTheWayBack) {
  EXPECT_EQ(Run("pipeline unload gpt"), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("unloaded"));
  EXPECT_THAT(err_, HasSubstr("unloaded; back: penstock pipeline load gpt"));
  EXPECT_EQ(Run("pipeline load gpt"), 0) << err_;
  EXPECT_THAT(err_, HasSubstr("loaded, at step"));
  EXPECT_EQ(Run("pipeline unload"), 2);
}

v1::CreateProgress ProgressOf(const std::string& phase, double done) {
  v1::CreateProgress progress;
  progress.set_phase(phase);
  progress.set_done(done);
  progress.set_elapsed_seconds(done * 40);
  return progress;
}

TEST_F(CommandLineTest, CreateShowsHowFarItIs) {
  const auto create = [this](const std::string& more) {
    daemon_.SetProgress({ProgressOf("measuring", 0.1), ProgressOf("measuring", 0.2), ProgressOf("confirming", 0.5)});
    EXPECT_EQ(Run("pipeline create small --model gpt" + more), 0) << err_;
  };
  create("");
  EXPECT_THAT(err_, StartsWith("creating small: measuring  [==>                 ]  10 %, 4 s\n"
                               "creating small: confirming [==========>         ]  50 %, 20 s\n"
                               "created pipelines/small"));
  OnATerminal();
  create("");
  EXPECT_THAT(err_, StartsWith("\rcreating small: measuring  [==>                 ]  10 %, 4 s\x1b[K"
                               "\rcreating small: measuring  [====>               ]  20 %, 8 s\x1b[K"
                               "\rcreating small: confirming [==========>         ]  50 %, 20 s\x1b[K"
                               "\r\x1b[Kcreated pipelines/small"));
}

TEST_F(CommandLineTest, CreateAsJsonShowsNoProgress) {
  EXPECT_EQ(Run("pipeline create small --model gpt -o json"), 0);
  EXPECT_THAT(daemon_.RequestIds("GetPipeline"), IsEmpty());
}

TEST_F(CommandLineTest, PlanAndDryRunCreateNothing) {
  EXPECT_EQ(Run("pipeline plan --model gpt --stages 2"), 0);
  EXPECT_EQ(daemon_.LastPlan().spec().cut().stages(), 2);
  EXPECT_FALSE(daemon_.LastPlan().has_sample());
  EXPECT_EQ(daemon_.LastCreate().pipeline_id(), "");
  EXPECT_EQ(Run("pipeline create x --model gpt --dry-run"), 0);
  EXPECT_TRUE(daemon_.LastCreate().validate_only());
  EXPECT_FALSE(daemon_.LastCreate().has_sample());
}

TEST_F(CommandLineTest, PlanShowsLayersCostsCutSkipsAndWhy) {
  EXPECT_EQ(Run("plan --model gpt --stages 2"), 0) << err_;
  ExpectGolden("plan.txt");
  const std::string plan = out_;
  EXPECT_EQ(Run("pipeline plan --model gpt --stages 2"), 0) << err_;
  EXPECT_EQ(out_, plan);
  EXPECT_EQ(Run("plan --model gpt --stages 2 -o json"), 0) << err_;
  const Json json = Json::parse(out_, nullptr, false)["plan"];
  EXPECT_EQ(json["layers"][3]["name"], "head");
  EXPECT_EQ(json["layers"][3]["stage"], 1);
  EXPECT_EQ(json["layers"][3]["cost"], 3000);
  EXPECT_EQ(json["skips"][0]["names"][1], "inner/mask");
  EXPECT_EQ(json["skips"][0]["bytes"], 20 << 10);
  EXPECT_EQ(json["why"].size(), 2);
  EXPECT_EQ(Json::parse(out_, nullptr, false)["candidates"].size(), 2);
  // A pipeline that exists shows them to those who ask for more.
  EXPECT_EQ(Run("pipeline get gpt -o wide"), 0);
  EXPECT_THAT(out_, HasSubstr("Skips     stage 0 -> 1: residual, inner/mask, 20.0 KiB per micro-batch\n"));
}

TEST_F(CommandLineTest, PlanListsCandidatesAndWhyOthersWereRefused) {
  EXPECT_EQ(Run("plan --model gpt -o wide"), 0) << err_;
  ExpectGolden("plan_wide.txt");
  EXPECT_EQ(Run("plan --model gpt -o name"), 0) << err_;
  EXPECT_EQ(out_, "1f1b\n");
  EXPECT_EQ(Run("plan --model gpt --kinds 1f1b,zb-h1 --max-chunks 3 --micro-batch-counts 4,8 --mini-batch-rows 64"), 0)
      << err_;
  const v1::PlanPipelineRequest seen = daemon_.LastPlan();
  EXPECT_THAT(seen.limits().kinds(), ElementsAre("1f1b", "zb-h1"));
  EXPECT_EQ(seen.limits().max_chunks(), 3);
  EXPECT_THAT(seen.limits().micro_batches(), ElementsAre(4, 8));
  EXPECT_EQ(seen.spec().schedule().mini_batch_rows(), 64);
  EXPECT_FALSE(seen.spec().schedule().has_micro_batches());
  daemon_.Fail("PlanPipeline", RichStatus(grpc::StatusCode::FAILED_PRECONDITION, "NO_PLAN", "there is no plan"));
  EXPECT_EQ(Run("plan --model gpt"), 1);
  EXPECT_THAT(err_, HasSubstr("there is no plan"));
}

TEST_F(CommandLineTest, CreateSendsTheWholeSchedule) {
  EXPECT_EQ(Run("pipeline create x --model gpt --schedule lag --lag 5 --chunks 1 --checkpoint skip_adjacent "
                "--mini-batch-rows 16"),
            0)
      << err_;
  v1::ScheduleSpec schedule = daemon_.LastCreate().spec().schedule();
  EXPECT_EQ(schedule.kind(), "lag");
  EXPECT_EQ(schedule.lag(), 5);
  EXPECT_EQ(schedule.chunks(), 1);
  EXPECT_EQ(schedule.checkpoint(), v1::CHECKPOINT_MODE_SKIP_ADJACENT);
  EXPECT_EQ(schedule.mini_batch_rows(), 16);
  EXPECT_FALSE(schedule.has_live_limit());
  EXPECT_EQ(Run("pipeline create x --model gpt --schedule auto --limit 7"), 0) << err_;
  schedule = daemon_.LastCreate().spec().schedule();
  EXPECT_EQ(schedule.live_limit(), 7);
  EXPECT_FALSE(schedule.has_chunks());
  EXPECT_FALSE(schedule.has_lag());
  EXPECT_EQ(Run("pipeline create x --model gpt --stages two"), 2);
  EXPECT_THAT(err_, HasSubstr("--stages: takes no such value, got two"));
  EXPECT_EQ(Run("pipeline create x --model gpt --checkpoint sometimes"), 2);
}

TEST_F(CommandLineTest, CreateSendsListsOfAFileInsteadOfAKind) {
  const std::string lists = "0F0,0B0\n1F0,1B0\n";
  const std::string file = TemporaryFile("lists.csv", lists);
  EXPECT_EQ(Run("pipeline create x --model gpt --schedule-file " + file), 0) << err_;
  EXPECT_EQ(daemon_.LastCreate().spec().schedule().actions(), lists);
  EXPECT_EQ(daemon_.LastCreate().spec().schedule().kind(), "");
  // Over what a specification says, either way.
  const std::string spec =
      TemporaryFile("spec.textproto", "model { name: 'gpt' } schedule { kind: 'gpipe' actions: '0F0,0B0' }");
  EXPECT_EQ(Run("pipeline create x --spec " + spec + " --schedule-file " + file), 0) << err_;
  EXPECT_EQ(daemon_.LastCreate().spec().schedule().actions(), lists);
  EXPECT_EQ(daemon_.LastCreate().spec().schedule().kind(), "");
  EXPECT_EQ(Run("pipeline create x --spec " + spec + " --schedule 1f1b"), 0) << err_;
  EXPECT_EQ(daemon_.LastCreate().spec().schedule().actions(), "");
  EXPECT_EQ(Run("pipeline create x --model gpt --schedule 1f1b --schedule-file " + file), 2);
  EXPECT_EQ(Run("pipeline create x --model gpt --schedule-file " + TemporaryFile("empty.csv", "")), 2);
  EXPECT_THAT(err_, HasSubstr("--schedule-file: is empty"));
  EXPECT_NE(Run("pipeline create x --model gpt --schedule-file /nowhere.csv"), 0);
  EXPECT_THAT(err_, HasSubstr("/nowhere.csv"));
}

TEST_F(CommandLineTest, CreateSendsCutTiesAndPrecision) {
  const std::string file =
      TemporaryFile("layers.textproto",
                    "model {\n"
                    "  layers { kind: 'linear' name: 'first' options { key: 'width' value { int_value: 4 } } }\n"
                    "  layers { kind: 'sequential' name: 'middle' layers { kind: 'relu' }\n"
                    "           isolate { skip_namespace: 'ns' only: 'x' } }\n"
                    "  layers { kind: 'linear' device: 'cpu:0' }\n"
                    "}\n");
  EXPECT_EQ(Run("pipeline create x --spec " + file +
                " --device-of first=cpu:0 --device-of 2=cpu:1 --tie first.weight,2.weight --tie a,b,c "
                "--deferred-batch-norm --tuple-as-one-argument --dtype bf16 --autocast fp16 --cut-cost size "
                "--cut-method block-partition --parameter-scale 4.5"),
            0)
      << err_;
  const v1::PipelineSpec spec = daemon_.LastCreate().spec();
  EXPECT_EQ(spec.model().layers(0).device(), "cpu:0");
  EXPECT_EQ(spec.model().layers(1).device(), "");
  EXPECT_EQ(spec.model().layers(1).layers(0).kind(), "relu");
  EXPECT_THAT(spec.model().layers(1).isolate(0).only(), ElementsAre("x"));
  EXPECT_EQ(spec.model().layers(2).device(), "cpu:1");  // the option goes over the file
  ASSERT_EQ(spec.model().ties_size(), 2);
  EXPECT_THAT(spec.model().ties(0).parameters(), ElementsAre("first.weight", "2.weight"));
  EXPECT_THAT(spec.model().ties(1).parameters(), ElementsAre("a", "b", "c"));
  EXPECT_TRUE(spec.model().deferred_batch_norm());
  EXPECT_TRUE(spec.model().tuple_as_one_argument());
  EXPECT_EQ(spec.model().dtype(), "bf16");
  EXPECT_EQ(spec.model().autocast(), "fp16");
  EXPECT_EQ(spec.cut().cost(), v1::CUT_COST_SIZE);
  EXPECT_EQ(spec.cut().method(), v1::CUT_METHOD_BLOCK_PARTITION);
  EXPECT_EQ(spec.cut().parameter_scale(), 4.5);

  EXPECT_EQ(Run("plan --spec " + file), 0) << err_;
  EXPECT_EQ(daemon_.LastPlan().spec().cut().cost(), v1::CUT_COST_UNSPECIFIED);
  EXPECT_FALSE(daemon_.LastPlan().spec().cut().has_parameter_scale());
  EXPECT_FALSE(daemon_.LastPlan().spec().model().deferred_batch_norm());

  EXPECT_EQ(Run("plan --spec " + file + " --device-of last=cpu:0"), 2);
  EXPECT_THAT(err_, HasSubstr("--device-of: must name one of the specification's 3 layers"));
  EXPECT_EQ(Run("plan --spec " + file + " --device-of 3=cpu:0"), 2);
  EXPECT_EQ(Run("plan --spec " + file + " --device-of first"), 2);
  EXPECT_THAT(err_, HasSubstr("--device-of: must be LAYER=DEVICE, got 'first'"));
  EXPECT_EQ(Run("plan --model gpt --tie alone"), 2);
  EXPECT_THAT(err_, HasSubstr("--tie: must be PARAMETER,PARAMETER, got 'alone'"));
  EXPECT_EQ(Run("plan --model gpt --cut-cost weight"), 2);
}

TEST_F(CommandLineTest, SpecificationFilesMayBeJson) {
  const std::string file = TemporaryFile("spec.json",
                                         R"( {"model": {"layers": [{"kind": "linear", "device": "cpu:1",
                                              "options": {"width": {"intValue": 4}}}]},
                                              "cut": {"cost": "CUT_COST_SIZE"}})");
  EXPECT_EQ(Run("plan --spec " + file), 0) << err_;
  const v1::PipelineSpec spec = daemon_.LastPlan().spec();
  EXPECT_EQ(spec.model().layers(0).device(), "cpu:1");
  EXPECT_EQ(spec.model().layers(0).options().at("width").int_value(), 4);
  EXPECT_EQ(spec.cut().cost(), v1::CUT_COST_SIZE);
  EXPECT_EQ(Run("plan --spec " + TemporaryFile("bad.json", R"({"model": {"nam": 1}})")), 2);
  EXPECT_THAT(err_, HasSubstr("nam"));
}

TEST_F(CommandLineTest, SpecificationFilesAreReadAndOverridden) {
  const std::string file =
      TemporaryFile("spec.textproto", "model { name: \"mlp\" }\nschedule { kind: \"gpipe\" micro_batches: 2 }\n");
  EXPECT_EQ(Run("pipeline plan --spec " + file + " --micro-batches 16"), 0) << err_;
  EXPECT_EQ(daemon_.LastPlan().spec().model().name(), "mlp");
  EXPECT_EQ(daemon_.LastPlan().spec().schedule().micro_batches(), 16);
  EXPECT_EQ(Run("pipeline plan --spec " + TemporaryFile("bad.textproto", "model {\n  nam: 1 }")), 2);
  EXPECT_THAT(err_, HasSubstr("line 2"));
}

TEST_F(CommandLineTest, UsageErrorsNameTheOption) {
  EXPECT_EQ(Run("pipeline create x --model gpt --option blocks"), 2);
  EXPECT_THAT(err_, HasSubstr("--option: must be KEY=VALUE, got 'blocks'"));
  EXPECT_EQ(Run("pipeline create x"), 2);
  EXPECT_THAT(err_, HasSubstr("--model: missing"));
  EXPECT_EQ(Run("train gpt --text /does/not/exist"), 2);
  EXPECT_EQ(Run("schedule simulate --kind nonsense --devices 2 --micro-batches 2"), 2);
  EXPECT_THAT(err_, HasSubstr("--kind: must be one of"));
  EXPECT_EQ(Run("status -o yaml"), 2);
}

TEST_F(CommandLineTest, NumbersOutOfRangeAreRefusedInWords) {
  EXPECT_EQ(Run("train gpt --text /dev/null --batch 0"), 2);
  EXPECT_THAT(err_, HasSubstr("--batch: must be a number above 0, got 0"));
  EXPECT_EQ(Run("infer gpt --prompt a --temperature -1"), 2);
  EXPECT_THAT(err_, HasSubstr("--temperature: must be a number of at least 0, got -1"));
}

TEST_F(CommandLineTest, ACallerThatCantBeSentIsRefusedHere) {
  EXPECT_EQ(Run("--caller Jürgen status"), 2);
  EXPECT_THAT(err_, HasSubstr("--caller: must be 1 to 128 of a to z, A to Z, 0 to 9 and _ . @ : -, got Jürgen"));
}

TEST_F(CommandLineTest, ExitCodesFollowTheTable) {
  const auto fail = [&](grpc::StatusCode code, const std::string& reason) {
    daemon_.Fail("GetPipeline", RichStatus(code, reason, "no"));
    return Run("pipeline get gpt");
  };
  EXPECT_EQ(fail(grpc::StatusCode::NOT_FOUND, "PIPELINE_NOT_FOUND"), 1);
  EXPECT_EQ(fail(grpc::StatusCode::FAILED_PRECONDITION, "PIPELINE_NOT_READY"), 4);
  EXPECT_EQ(fail(grpc::StatusCode::DEADLINE_EXCEEDED, "QUEUE_DEADLINE"), 4);
  EXPECT_EQ(fail(grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL"), 5);
  EXPECT_EQ(fail(grpc::StatusCode::PERMISSION_DENIED, "ROLE_MISSING"), 5);
  EXPECT_EQ(fail(grpc::StatusCode::INTERNAL, "BUG"), 1);
  for (int i = 0; i < 20; ++i) {
    daemon_.Fail("GetServerInfo", grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection refused"));
  }
  EXPECT_EQ(Run("status"), 3);
  EXPECT_THAT(err_, HasSubstr("no daemon answers at 127.0.0.1:8470"));
  daemon_.Fail("GetPipeline", RichStatus(grpc::StatusCode::NOT_FOUND, "PIPELINE_NOT_FOUND", "no"));
  EXPECT_EQ(Run("pipeline get gpt --grpc-exit-codes"), 69);
}

TEST_F(CommandLineTest, ErrorsSayWhatWhyAndWhatToDo) {
  daemon_.Fail("DeletePipeline", RichStatus(grpc::StatusCode::FAILED_PRECONDITION, "PIPELINE_IN_USE",
                                            "pipeline has queued work", {{"queued", "3"}}));
  EXPECT_EQ(Run("pipeline delete gpt --yes --request-id 11111111-2222-4333-8444-555555555555"), 1);
  EXPECT_EQ(err_,
            "penstock: pipeline delete failed: pipeline has queued work\n"
            "  why: FAILED_PRECONDITION / PIPELINE_IN_USE (queued=3)\n"
            "  do:  wait for its work to end, or delete with --force\n"
            "  request_id: 11111111-2222-4333-8444-555555555555 (repeat a lost call with --request-id)\n");
  EXPECT_THAT(out_, IsEmpty());
}

TEST_F(CommandLineTest, DeletingAsksFirst) {
  EXPECT_EQ(Run("pipeline delete gpt"), 2);
  EXPECT_THAT(err_, HasSubstr("--yes"));
  OnATerminal();
  for (const char* answer : {"n\n", "\n", "", "maybe\n", "yes, but later\n"}) {
    EXPECT_EQ(Run("pipeline delete gpt", answer), 1) << answer;
  }
  EXPECT_THAT(daemon_.RequestIds("DeletePipeline"), IsEmpty());
  EXPECT_EQ(Run("pipeline delete gpt", "y\n"), 0);
  EXPECT_THAT(daemon_.RequestIds("DeletePipeline"), SizeIs(1));
  EXPECT_EQ(Run("pipeline delete gpt --dry-run"), 0);
  EXPECT_THAT(daemon_.RequestIds("DeletePipeline"), SizeIs(1));
}

TEST_F(CommandLineTest, TrainReportsAndReleasesItsHandles) {
  const std::string text = TemporaryFile("text.txt", std::string(500, 'a') + std::string(500, 'b'));
  EXPECT_EQ(Run("train gpt --text " + text + " --steps 5 --batch 4 --json " + TemporaryFile("report.json", "")), 0)
      << err_;
  EXPECT_EQ(daemon_.Steps(), 5);
  EXPECT_EQ(daemon_.LiveHandles(), 0);
  const v1::TrainStepRequest step = daemon_.LastTrainStep();
  EXPECT_EQ(step.inputs(0).name(), "tokens");
  EXPECT_EQ(step.target().name(), "targets");
  EXPECT_THAT(step.inputs(0).tensor().header().shape(), ElementsAre(4, 16));
  EXPECT_THAT(out_, HasSubstr("20.0 % measured"));
  EXPECT_THAT(out_, HasSubstr("Handles    5 created, 0 live"));
  EXPECT_THAT(err_, HasSubstr("step 5/5  loss 1.1000"));
  EXPECT_THAT(err_, Not(HasSubstr("\x1b")));

  std::ifstream file(::testing::TempDir() + "/penstock_cli_report.json");
  const Json json = Json::parse(file, nullptr, false);
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_THAT(keys,
              ElementsAre("steps", "loss_first", "loss_last", "samples_per_second", "bubble", "lanes", "versions"));
  EXPECT_EQ(json["steps"], 5);
  EXPECT_NEAR(json["bubble"]["measured"].get<double>(), 0.2, 1e-9);
  EXPECT_EQ(json["lanes"][1]["device"], "cpu:1");
  EXPECT_NEAR(json["lanes"][0]["seconds"]["backward"].get<double>(), 2.5, 1e-9);
  // Set-up was before the training.
  EXPECT_FALSE(json["lanes"][0]["seconds"].contains("setup"));
}

TEST_F(CommandLineTest, TrainEndsWithTheFirstErrorAndCancelsTheStepsThatWait) {
  daemon_.Fail("WaitHandles", RichStatus(grpc::StatusCode::INTERNAL, "BUG", "no"));
  const std::string text = TemporaryFile("text.txt", std::string(500, 'a'));
  EXPECT_EQ(Run("train gpt --text " + text + " --steps 5 --batch 2"), 1);
  EXPECT_THAT(daemon_.RequestIds("TrainStep"), SizeIs(2)) << "one runs, one waits";
  EXPECT_THAT(daemon_.RequestIds("CancelHandles"), SizeIs(1));
  EXPECT_EQ(daemon_.LiveHandles(), 0);
}

TEST_F(CommandLineTest, TrainGoesOnAfterAnInterruption) {
  daemon_.Fail("TrainStep", grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection reset"));
  const std::string text = TemporaryFile("text.txt", std::string(500, 'a'));
  EXPECT_EQ(Run("train gpt --text " + text + " --steps 3 --batch 2"), 0) << err_;
  const std::vector<std::string> ids = daemon_.RequestIds("TrainStep");
  ASSERT_THAT(ids, SizeIs(4));
  EXPECT_EQ(ids[0], ids[1]);
}

TEST_F(CommandLineTest, TrainBringsALossWhereThePipelineHasNone) {
  daemon_.SetFlexible();
  const std::string text = TemporaryFile("text.txt", std::string(500, 'a'));
  EXPECT_EQ(Run("train gpt --text " + text + " --steps 1 --batch 2"), 0) << err_;
  const v1::TrainStepRequest step = daemon_.LastTrainStep();
  EXPECT_EQ(step.loss().name(), "cross_entropy");
  EXPECT_EQ(step.target().name(), "target");
  EXPECT_THAT(step.inputs(0).tensor().header().shape(), ElementsAre(2, 16));
  EXPECT_EQ(Run("train gpt --text " + text + " --steps 1 --sequence 17"), 2);
  EXPECT_THAT(err_, HasSubstr("--sequence: must be at most 16, got 17"));
}

TEST_F(CommandLineTest, TrainReleasesWhatItHeldWhenItFails) {
  daemon_.Fail("TrainStep", grpc::Status::OK);
  daemon_.Fail("TrainStep", RichStatus(grpc::StatusCode::INTERNAL, "BUG", "stage 1 failed", {{"stage", "1"}}));
  const std::string text = TemporaryFile("text.txt", std::string(500, 'a'));
  EXPECT_EQ(Run("train gpt --text " + text + " --steps 3 --batch 2"), 1);
  EXPECT_THAT(err_, HasSubstr("stage=1"));
  EXPECT_EQ(daemon_.LiveHandles(), 0);
}

TEST_F(CommandLineTest, EvaluateWeighsMiniBatchesByWhatCounts) {
  const std::string text = TemporaryFile("text.txt", std::string(500, 'a'));
  const std::string command = "evaluate gpt --text " + text + " --batches 2 --batch 4 --metric accuracy";
  EXPECT_EQ(Run(command + " -o json"), 0) << err_;
  const v1::EvaluateRequest request = daemon_.LastEvaluate();
  EXPECT_EQ(request.inputs(0).name(), "tokens");
  EXPECT_EQ(request.target().name(), "targets");
  EXPECT_THAT(request.metrics(), ElementsAre("accuracy"));
  const Json json = Json::parse(out_, nullptr, false);
  EXPECT_NEAR(json["loss"].get<double>(), (12 * 2 + 4 * 1) / 16.0, 1e-12);
  EXPECT_NEAR(json["perplexity"].get<double>(), std::exp(1.75), 1e-9);
  EXPECT_NEAR(json["metrics"]["accuracy"].get<double>(), (4 * 0.5 + 4 * 0.25) / 8, 1e-12);
  EXPECT_EQ(json["counted_elements"], 16);
  EXPECT_EQ(json["rows"], 8);
  EXPECT_EQ(json["state_token"], "token");
  EXPECT_EQ(daemon_.LiveHandles(), 0);
  EXPECT_EQ(daemon_.Steps(), 0);
  EXPECT_EQ(Run(command), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("loss 1.0000  perplexity 2.72  accuracy 0.2500  of 8 bytes in 8 rows, at step 0"));
  EXPECT_EQ(Run("evaluate gpt --text " + text + " --batches 0"), 2);
  daemon_.Fail("Evaluate", RichStatus(grpc::StatusCode::INVALID_ARGUMENT, "FIELD_INVALID", "no such metric",
                                      {{"field", "metrics[0]"}}));
  EXPECT_EQ(Run(command), 1);
  EXPECT_THAT(err_, HasSubstr("no such metric"));
}

TEST_F(CommandLineTest, TrainsAndEvaluatesOnArraysOfAFile) {
  const std::vector<int64_t> values(7 * 16, 3);
  std::vector<HostTensor> tensors;
  tensors.push_back(*HostTensor::FromValues<int64_t>("labels", {7, 16}, values));
  tensors.push_back(*HostTensor::FromValues<int64_t>("tokens", {7, 16}, values));
  const std::string data = TemporaryFile("rows.safetensors", WriteSafetensors(tensors, {}));
  EXPECT_EQ(Run("train gpt --data " + data + " --steps 5 --batch 3"), 0) << err_;
  EXPECT_EQ(daemon_.Steps(), 5);
  EXPECT_EQ(daemon_.LiveHandles(), 0);
  const v1::TrainStepRequest step = daemon_.LastTrainStep();
  EXPECT_EQ(step.inputs(0).name(), "tokens");
  EXPECT_EQ(step.target().name(), "targets");
  EXPECT_FALSE(step.has_loss());
  EXPECT_THAT(step.target().tensor().header().shape(), ElementsAre(3, 16));
  EXPECT_THAT(err_, HasSubstr("next: penstock evaluate gpt --data FILE"));

  EXPECT_EQ(Run("evaluate gpt --batch 3 --data " + data), 0) << err_;
  EXPECT_THAT(daemon_.RequestIds("Evaluate"), SizeIs(3));
  EXPECT_THAT(daemon_.LastEvaluate().inputs(0).tensor().header().shape(), ElementsAre(1, 16));
  EXPECT_THAT(out_, HasSubstr(" elements in "));
  EXPECT_THAT(out_, Not(HasSubstr("perplexity")));
  EXPECT_EQ(Run("evaluate gpt --batch 3 --batches 2 --data " + data), 0) << err_;
  EXPECT_THAT(daemon_.RequestIds("Evaluate"), SizeIs(5));

  const std::string given = " --data " + data;
  for (const std::string& command : {std::string("train gpt"), std::string("evaluate gpt"),
                                     std::string("train gpt --text /dev/null --target labels"),
                                     "train gpt --sequence 4" + given, "train gpt --text /dev/null" + given}) {
    EXPECT_EQ(Run(command), 2) << command;
  }
}

TEST_F(CommandLineTest, InferContinuesThePrompt) {
  EXPECT_EQ(Run("infer gpt --prompt abc --bytes 5"), 0) << err_;
  EXPECT_EQ(out_, "abcdefgh\n");
  EXPECT_EQ(daemon_.LiveHandles(), 0);
  // Longer than the model's sequence: the last bytes count.
  EXPECT_EQ(Run("infer gpt --prompt 0123456789012345678901234567a --bytes 2 -o json"), 0) << err_;
  EXPECT_EQ(Json::parse(out_, nullptr, false)["continuation"], "bc");
}

TEST_F(CommandLineTest, HandlesTravelThroughFiles) {
  const std::vector<float> values = {1, 2, 3};
  std::vector<HostTensor> tensors;
  tensors.push_back(*HostTensor::FromValues<float>("x", {3}, values));
  const std::string from = TemporaryFile("in.safetensors", WriteSafetensors(tensors, {}));
  ASSERT_EQ(Run("handle put gpt " + from + " -o name"), 0) << err_;
  const std::string name = out_.substr(0, out_.size() - 1);
  EXPECT_EQ(Run("handle get " + name + " -o json"), 0);
  EXPECT_EQ(Json::parse(out_, nullptr, false)["tensors"][0]["type"], "fp32");
  EXPECT_EQ(Run("handle fetch " + name + " --to -"), 0) << err_;
  const auto read = ReadSafetensors(out_);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ((*read)[0].bytes(), tensors[0].bytes());
  EXPECT_EQ(Run("handle share " + name + " bob --lease 60 -o name"), 0) << err_;
  EXPECT_EQ(out_, name + "-shared\n");
  EXPECT_THAT(err_, HasSubstr("bob can use it now: penstock handle fetch " + name + "-shared"));
  EXPECT_EQ(Run("handle share " + name + " bob --lease 60 -o json"), 0);
  const Json shared = Json::parse(out_, nullptr, false);
  EXPECT_EQ(shared["owner"], "bob");
  EXPECT_EQ(shared["expire_time"], "1970-01-01T00:01:00.000Z");
  EXPECT_THAT(daemon_.RequestIds("ShareHandle"), SizeIs(2));
  EXPECT_EQ(Run("handle share " + name), 2) << "with nobody";
  EXPECT_EQ(Run("handle release " + name), 0);
  EXPECT_EQ(daemon_.LiveHandles(), 0);
}

TEST_F(CommandLineTest, ABatchThatPartlyFailsIsPartialSuccess) {
  const std::string name = daemon_.AddHandle({});
  EXPECT_EQ(Run("handle release " + name + " pipelines/gpt/handles/none"), 6);
  EXPECT_THAT(err_, HasSubstr("pipelines/gpt/handles/none: no such handle (NOT_FOUND / HANDLE_NOT_FOUND)"));
  EXPECT_EQ(Run("handle wait pipelines/gpt/handles/none"), 6);
}

TEST_F(CommandLineTest, WaitingForAnyEndsWithTheFirst) {
  const std::string ready = daemon_.AddHandle({});
  const std::string pending = daemon_.AddHandle({}, v1::HANDLE_STATE_PENDING);
  EXPECT_EQ(Run("handle wait --any " + pending + " " + ready), 0) << err_;
  EXPECT_EQ(Run("handle wait " + pending + " " + ready), 4);
  EXPECT_EQ(Run("handle wait --any " + pending), 4);
  EXPECT_THAT(err_, HasSubstr("1 handles are still pending"));
}

TEST_F(CommandLineTest, Checkpoints) {
  EXPECT_EQ(Run("checkpoint save gpt"), 0);
  EXPECT_THAT(err_, HasSubstr("next: penstock checkpoint restore gpt step-7"));
  EXPECT_EQ(Run("checkpoint list gpt -o wide"), 0);
  ExpectGolden("checkpoint_list_wide.txt");
  EXPECT_EQ(Run("checkpoint restore gpt step-7"), 2);
  EXPECT_EQ(Run("checkpoint restore gpt step-7 --dry-run"), 0);
  EXPECT_THAT(daemon_.RequestIds("RestoreCheckpoint"), IsEmpty());
  EXPECT_EQ(Run("checkpoint restore gpt step-7 --yes"), 0);
  EXPECT_THAT(daemon_.RequestIds("RestoreCheckpoint"), SizeIs(1));
  EXPECT_EQ(Run("checkpoint restore gpt pipelines/gpt/checkpoints/step-7 --yes"), 0);
  EXPECT_THAT(daemon_.RequestIds("RestoreCheckpoint"), SizeIs(2));
  EXPECT_FALSE(daemon_.LastRestore().force());
  EXPECT_EQ(Run("checkpoint restore gpt step-7 --yes --force"), 0);
  EXPECT_TRUE(daemon_.LastRestore().force());
  EXPECT_EQ(Run("checkpoint delete gpt step-7"), 2);
  EXPECT_THAT(daemon_.RequestIds("DeleteCheckpoint"), IsEmpty());
  EXPECT_EQ(Run("checkpoint delete gpt step-7 --yes"), 0);
  EXPECT_THAT(err_, HasSubstr("deleted pipelines/gpt/checkpoints/step-7"));
  EXPECT_THAT(daemon_.RequestIds("DeleteCheckpoint"), SizeIs(1));
}

TEST_F(CommandLineTest, ExportsACheckpoint) {
  const std::string to = TemporaryFile("exported", "");
  EXPECT_EQ(Run("checkpoint export gpt/step-7 --to " + to), 0) << err_;
  EXPECT_EQ(daemon_.LastRead().checkpoint(), "pipelines/gpt/checkpoints/step-7");
  EXPECT_THAT(daemon_.LastRead().pipeline(), IsEmpty());
  EXPECT_FALSE(daemon_.LastRead().include_optimizer_state());
  EXPECT_THAT(err_, HasSubstr("exported 1 tensors of step 7"));
  EXPECT_EQ(Run("checkpoint export gpt/step-7 --optimizer-state --to -"), 0) << err_;
  EXPECT_TRUE(daemon_.LastRead().include_optimizer_state());
  std::ifstream file(to, std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), out_);
  EXPECT_THAT(out_, HasSubstr(R"("checkpoint":"pipelines/gpt/checkpoints/step-7")"));
  EXPECT_EQ(Run("checkpoint export step-7 --to " + to), 2);
  EXPECT_EQ(Run("checkpoint export gpt/step-7 --to /does/not/exist"), 1);
  EXPECT_THAT(err_, HasSubstr("/does/not/exist: cannot be written"));
}

TEST_F(CommandLineTest, CheckpointsOfAllPipelines) {
  EXPECT_EQ(Run("checkpoint list --all"), 0) << err_;
  ExpectGolden("checkpoint_list_all.txt");
  EXPECT_THAT(err_, HasSubstr("*: the pipeline is deleted; next: penstock pipeline create NAME --from-checkpoint"));
  EXPECT_EQ(Run("checkpoint list"), 2);
  EXPECT_THAT(err_, HasSubstr("PIPELINE: missing; or give --all"));
  EXPECT_EQ(Run("checkpoint list gpt --all"), 2);
}

TEST_F(CommandLineTest, SavesReplaceAndRotate) {
  EXPECT_EQ(Run("checkpoint save gpt --name mine --replace --keep 3 -o wide"), 0) << err_;
  EXPECT_TRUE(daemon_.LastSave().replace());
  EXPECT_EQ(daemon_.LastSave().keep(), 3);
  EXPECT_THAT(out_, HasSubstr("rotating"));
}

TEST_F(CommandLineTest, CheckpointsAreCopied) {
  EXPECT_EQ(Run("checkpoint copy old/best gpt"), 0) << err_;
  EXPECT_EQ(daemon_.LastCopy().source(), "pipelines/old/checkpoints/best");
  EXPECT_EQ(daemon_.LastCopy().destination(), "pipelines/gpt");
  EXPECT_EQ(daemon_.LastCopy().checkpoint_id(), "");
  EXPECT_EQ(Run("checkpoint copy pipelines/old/checkpoints/best gpt --name start"), 0) << err_;
  EXPECT_EQ(daemon_.LastCopy().checkpoint_id(), "start");
  EXPECT_THAT(err_, HasSubstr("next: penstock checkpoint restore gpt start"));
  for (const std::string bad : {"best", "a/b/c", "/best", "old/"}) {
    EXPECT_EQ(Run("checkpoint copy " + bad + " gpt"), 2);
    EXPECT_THAT(err_, HasSubstr("must be PIPELINE/CHECKPOINT, got " + bad));
  }
}

TEST_F(CommandLineTest, APipelineFromACheckpointNeedsNoModel) {
  EXPECT_EQ(Run("pipeline create tuned --from-checkpoint gpt/step-7 --stages 2 --exist-ok"), 0) << err_;
  EXPECT_EQ(daemon_.LastCreate().from_checkpoint(), "pipelines/gpt/checkpoints/step-7");
  EXPECT_TRUE(daemon_.LastCreate().exist_ok());
  EXPECT_EQ(daemon_.LastCreate().spec().cut().stages(), 2);
  EXPECT_EQ(daemon_.LastCreate().spec().model().ByteSizeLong(), 0u);
  EXPECT_EQ(Run("pipeline create tuned --exist-ok"), 2);
  EXPECT_EQ(Run("pipeline create tuned --from-checkpoint step-7"), 2);
}

TEST_F(CommandLineTest, ACheckpointIsPublishedAndTakenBack) {
  EXPECT_EQ(Run("checkpoint publish gpt step-7"), 0) << err_;
  EXPECT_EQ(daemon_.LastPublish().pipeline(), "pipelines/gpt");
  EXPECT_EQ(daemon_.LastPublish().checkpoint_id(), "step-7");
  EXPECT_THAT(out_, HasSubstr("Published step-7  step 7, version 2"));
  EXPECT_THAT(err_, HasSubstr("inference sees step 7, version 2; back: penstock checkpoint publish gpt --live"));
  EXPECT_EQ(Run("checkpoint publish gpt pipelines/gpt/checkpoints/mine"), 0) << err_;
  EXPECT_EQ(daemon_.LastPublish().checkpoint_id(), "mine");
  EXPECT_EQ(Run("checkpoint publish gpt --live"), 0) << err_;
  EXPECT_EQ(daemon_.LastPublish().checkpoint_id(), "");
  EXPECT_THAT(out_, ::testing::Not(HasSubstr("Published")));
  EXPECT_EQ(Run("checkpoint publish gpt"), 2);
  EXPECT_THAT(err_, HasSubstr("CHECKPOINT: missing; or give --live"));
  EXPECT_EQ(Run("checkpoint publish gpt step-7 --live"), 2);
  EXPECT_THAT(daemon_.RequestIds("PublishCheckpoint"), SizeIs(3));
}

TEST_F(CommandLineTest, ACheckpointOfAnotherPipelineIsRefused) {
  EXPECT_EQ(Run("checkpoint publish gpt pipelines/other/checkpoints/step-7"), 2);
  for (const std::string command : {"restore", "delete"}) {
    EXPECT_EQ(Run("checkpoint " + command + " gpt pipelines/other/checkpoints/step-7 --yes"), 2);
    EXPECT_THAT(err_, HasSubstr("must be one of pipelines/gpt, got pipelines/other/checkpoints/step-7"));
  }
  EXPECT_THAT(daemon_.RequestIds("RestoreCheckpoint"), IsEmpty());
  EXPECT_THAT(daemon_.RequestIds("DeleteCheckpoint"), IsEmpty());
}

TEST_F(CommandLineTest, ParametersAreWrittenAsSafetensors) {
  EXPECT_EQ(Run("params read gpt --to -"), 0) << err_;
  const auto tensors = ReadSafetensors(out_);
  ASSERT_TRUE(tensors.ok());
  EXPECT_EQ((*tensors)[0].name(), "head.weight");
  EXPECT_FALSE(daemon_.LastRead().gradients());
  EXPECT_EQ(Run("params read gpt --gradients --to -"), 0) << err_;
  EXPECT_TRUE(daemon_.LastRead().gradients());
  EXPECT_THAT(err_, HasSubstr("read 1 gradients after step 7"));
  EXPECT_EQ(Run("params read gpt --gradients --optimizer-state --to -"), 2);
}

TEST_F(CommandLineTest, HealthWaitsUntilReady) {
  daemon_.SetReady(false);
  EXPECT_EQ(Run("health"), 4);
  daemon_.SetReady(false);
  daemon_.Fail("Check", grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection refused"));
  daemon_.Fail("Check", grpc::Status(grpc::StatusCode::CANCELLED, "CANCELLED"));
  EXPECT_EQ(Run("health --wait 60"), 0) << err_;
  EXPECT_EQ(Run("health nonsense"), 1);
}

TEST_F(CommandLineTest, HealthWaitsForAsLongAsItIsTold) {
  for (const std::string wait : {"inf", "1e10", "1e300"}) {
    daemon_.SetReady(false);
    daemon_.Fail("Check", grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection refused"));
    EXPECT_EQ(Run("health --wait " + wait), 0) << wait << err_;
    EXPECT_EQ(Run("--timeout " + wait + " health"), 0) << wait << err_;
  }
}

// A stream of which nothing comes out, like a pipe that nobody reads.
class BrokenStream : public std::ostream {
 public:
  BrokenStream() : std::ostream(nullptr) {}
};

// One that throws where nothing comes out.
class ThrowingStream : public std::ostream {
 public:
  ThrowingStream() : std::ostream(&buffer_) { exceptions(std::ios::badbit); }

 private:
  struct Buffer : std::streambuf {
    int_type overflow(int_type) override { throw std::length_error("no room"); }
  };
  Buffer buffer_;
};

TEST_F(CommandLineTest, ATextThatNobodyReadsIsNotContinued) {
  BrokenStream out;
  EXPECT_EQ(RunInto(out, {"infer", "gpt", "--prompt", "abc", "--bytes", "100"}), 1);
  EXPECT_THAT(daemon_.RequestIds("Infer"), SizeIs(1));
  EXPECT_EQ(daemon_.LiveHandles(), 0);
  EXPECT_EQ(RunInto(out, {"top", "gpt", "--interval", "1", "--looks", "100"}), 1);
  EXPECT_THAT(daemon_.RequestIds("WatchStatistics"), SizeIs(2)) << "the first look and the one that was not written";
}

TEST_F(CommandLineTest, AnExceptionEndsTheCommandAlone) {
  world_.open_terminal = []() -> std::unique_ptr<Terminal> { throw std::bad_alloc(); };
  world_.out_has_colours = true;
  EXPECT_EQ(Run("top"), 1);
  EXPECT_THAT(err_, HasSubstr("HOST_MEMORY"));
}

TEST_F(CommandLineTest, AnExceptionBesideTheCommandsEndsInWordsToo) {
  for (const char* words : {"--help", "--version", "--dump=commands"}) {
    ThrowingStream out;
    EXPECT_EQ(RunInto(out, {words}), 1) << words;
    EXPECT_THAT(err_, HasSubstr("penstock: the command line failed: ")) << words;
    EXPECT_THAT(err_, HasSubstr("INTERNAL / BUG (incident=")) << words;
  }
}

TEST_F(CommandLineTest, WhatIsUnloadedIsNotSaidToBeOfAnotherKind) {
  const std::string text = TemporaryFile("unloaded.txt", std::string(2000, 'x'));
  daemon_.SetUnloaded(true);
  for (const std::string& words : std::vector<std::string>{"train gpt --text " + text, "evaluate gpt --text " + text,
                                                           "infer gpt --prompt x", "bench gpt", "bench gpt --train"}) {
    EXPECT_EQ(Run(words), 4) << words;
    EXPECT_THAT(err_, HasSubstr("pipeline gpt is unloaded; ")) << words;
    EXPECT_THAT(err_, HasSubstr("penstock pipeline load gpt")) << words;
    EXPECT_THAT(err_, HasSubstr("PIPELINE_NOT_READY")) << words;
  }
  daemon_.SetUnloaded(false);
  EXPECT_EQ(Run("infer gpt --prompt x --bytes 1"), 0) << err_;
}

TEST_F(CommandLineTest, ListsNoHandlesOfAPipelineThatIsNot) {
  EXPECT_EQ(Run("handle list gpt"), 0) << err_;
  EXPECT_EQ(out_, "no handles\n");
  EXPECT_EQ(Run("handle list -"), 0) << err_;
  EXPECT_EQ(Run("handle list nobody"), 1);
  EXPECT_EQ(out_, "");
  EXPECT_THAT(err_, HasSubstr("no such pipeline: pipelines/nobody"));
  daemon_.Fail("GetPipeline", RichStatus(grpc::StatusCode::PERMISSION_DENIED, "ROLE_MISSING", "no"));
  EXPECT_EQ(Run("handle list nobody"), 0) << "who may list and not look: " << err_;
  daemon_.AddHandle({});
  EXPECT_EQ(Run("handle list nobody -o name"), 0) << "what a deleted one has left: " << err_;
}

TEST_F(CommandLineTest, VersionNeedsNoDaemon) {
  EXPECT_EQ(Run("version -o name"), 0);
  EXPECT_EQ(out_, "0.1.0\n");
}

}  // namespace
}  // namespace penstock
