// What an exported program may ask for at most, and what must not cost more than it is worth.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/program/program_dimension.h"
#include "engine/program/program_model.h"
#include "tests/unit/program/program_archives.h"

namespace penstock {
namespace {

using testing::GoldenFile;
using ::testing::HasSubstr;
using testing::Repacked;
using testing::Shared;

constexpr char kModel[] = "models/model.json";

absl::Status ReadWithin(const ProgramLimits& limits) {
  return ReadExportedProgram(Shared(GoldenFile("counting_both.pt2")), limits).status();
}

void ExpectInvalid(const absl::Status& status, const std::string& sentence) {
  EXPECT_EQ(ReasonOf(status), "SPEC_INVALID") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(sentence));
}

TEST(ProgramLimits, AreNamedWhereAFileIsBeyondThem) {
  EXPECT_TRUE(ReadWithin({}).ok());
  ExpectInvalid(ReadWithin({.nodes = 2}), "must have at most 2 nodes");
  ExpectInvalid(ReadWithin({.tensors = 3}), "must have at most 3 tensors");
  ExpectInvalid(ReadWithin({.items = 1}), "at most 1 items");
  ExpectInvalid(ReadWithin({.rank = 1}), "must have at most 1 dimensions");
  ExpectInvalid(ReadWithin({.name_bytes = 3}), "must have a name of 1 to 3 bytes");
  for (const ProgramLimits& limits : {ProgramLimits{.graph_bytes = 100}, ProgramLimits{.tensor_bytes = 100}}) {
    const absl::Status status = ReadWithin(limits);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ReasonOf(status), "TENSOR_TOO_LARGE") << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("at most 100 bytes"));
  }
}

TEST(ProgramLimits, HoldForLists) {
  Repacked wide("conv_net.pt2");
  std::string numbers = "0";
  for (int i = 0; i < 20'000; ++i) numbers += ", 0";
  wide.Replace(kModel, R"("arg": {"as_ints": [)", R"("arg": {"as_ints": [)" + numbers + ", ");
  ExpectInvalid(wide.Read().status(), "must have lists of at most 10000 items, got 2000");
}

// A small record that many buffers look at in other ways would become much memory.
TEST(ProgramLimits, HoldForTensorsThatShareARecord) {
  const auto read = [](int buffers) {
    Repacked sharing("counting_both.pt2");
    sharing["data/weights/weight_9"] = std::string(400, '\0');
    std::string entries;
    for (int i = 101 - buffers; i <= 100; ++i) {
      absl::StrAppend(&entries, R"("shared)", i,
                      R"(": {"path_name": "weight_9", "is_param": false, "use_pickle": false, )",
                      R"("tensor_meta": {"dtype": 7, "sizes": [{"as_int": )", i, R"(}], "requires_grad": false, )",
                      R"("device": {"type": "cpu", "index": null}, "strides": [{"as_int": 1}], )",
                      R"("storage_offset": {"as_int": 0}, "layout": 7}}, )");
    }
    sharing.Replace("data/weights/model_weights_config.json", R"({"config": {)", R"({"config": {)" + entries);
    return sharing.Read().status();
  };
  EXPECT_TRUE(read(3).ok()) << read(3);
  ExpectInvalid(read(50), "must not be one of tensors that reach more than 16 times their record, got weight_9");
}

TEST(ProgramLimits, AParameterSharesNoPartOfAnother) {
  Repacked sharing("counting_training.pt2");
  sharing.Replace("data/weights/model_weights_config.json", R"("first.bias": {"path_name": "weight_1")",
                  R"("first.bias": {"path_name": "weight_0")");
  ExpectInvalid(sharing.Read().status(),
                "tensor first.weight: must not share a part of its elements with another, got first.bias");
}

TEST(ProgramLimits, HoldForTheValuesOfAGraph) {
  ExpectInvalid(ReadWithin({.graph_values = 100}), "must have at most 100 values, got ");
  Repacked wide("counting_both.pt2");
  wide[kModel] = "[0";
  for (int i = 0; i < 4'000'000; ++i) wide[kModel] += ",0";
  ExpectInvalid(wide.Read().status(), "must have at most 4000000 values, got 4000002");
}

// 4,000 masks that lie on one record of 16 MiB, which would be 64 GB to look through once for each.
TEST(ProgramLimits, ARecordOfTruthValuesIsReadOnceForAllOfItsTensors) {
  constexpr int kBytes = 16 << 20;
  Repacked sharing("counting_both.pt2");
  sharing["data/weights/weight_9"] = std::string(kBytes, '\1');
  std::string entries;
  for (int i = 0; i < 4'000; ++i) {
    absl::StrAppend(&entries, R"("mask)", i, R"(": {"path_name": "weight_9", "is_param": false, "use_pickle": false, )",
                    R"("tensor_meta": {"dtype": 12, "sizes": [{"as_int": 1}], "requires_grad": false, )",
                    R"("device": {"type": "cpu", "index": null}, "strides": [{"as_int": 1}], )",
                    R"("storage_offset": {"as_int": )", kBytes - 1 - i, R"(}, "layout": 7}}, )");
  }
  sharing.Replace("data/weights/model_weights_config.json", R"({"config": {)", R"({"config": {)" + entries);
  EXPECT_TRUE(sharing.Read().ok());
  sharing["data/weights/weight_9"][0] = 2;
  ExpectInvalid(sharing.Read().status(), "has a BOOL that is not 0 or 1");
}

// Names of outputs come from a text inside the JSON: deep, or wide and equal.
TEST(ProgramLimits, HoldForTheTreeOfOutputs) {
  Repacked deep("counting_both.pt2");
  const std::string spec = "\"out_spec\": \"";
  deep.Replace(kModel, spec, spec + std::string(100'000, '['));
  const absl::StatusOr<ExportedProgram> program = deep.Read();
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(program->graph.outputs[0].name, "output0");
}

// Each would end the process, or never be met, when the input of a call is compared with it.
TEST(ProgramLimits, HoldForDimensionsThatVary) {
  const std::string symbol = "Symbol('s77', positive=True, integer=True)";
  const auto read = [&](const std::string& expression) {
    Repacked changed("counting_both.pt2");
    for (const char* record : {kModel, "extra/penstock_training.json"}) changed.Replace(record, symbol, expression);
    return changed.Read().status();
  };
  EXPECT_TRUE(read("Add(Mul(" + symbol + ", Integer(2)), Integer(-1))").ok());
  for (const std::string& wrong :
       {"Mul(" + symbol + ", Integer(-1))", "Mul(" + symbol + ", Integer(0))",
        "Add(Mul(" + symbol + ", Integer(-1)), Integer(-9223372036854775808))",
        "Add(" + symbol + ", Integer(-9223372036854775808))", "Add(" + symbol + ", Integer(9223372036854775807))"}) {
    ExpectInvalid(read(wrong), "must be a symbol at least once, plus a number within +-");
  }
  ExpectInvalid(read("Integer(-1)"), "must have sizes from 0");
  Repacked empty("counting_both.pt2");
  empty.Replace(kModel, R"({"min_val": 1, "max_val": 4096})", R"({"min_val": 7, "max_val": 6})");
  ExpectInvalid(empty.Read().status(), "must begin before it ends, got 7");
}

TEST(ProgramLimits, CustomObjectsOfAnyFormAreRefused) {
  for (const char* objects : {R"({"a": 1})", "[1]", "1", R"("a")"}) {
    Repacked changed("counting_both.pt2");
    changed.Replace(kModel, R"("custom_obj_values": {})", absl::StrCat(R"("custom_obj_values": )", objects));
    EXPECT_EQ(ReasonOf(changed.Read().status()), "SPEC_INVALID") << objects;
  }
}

TEST(ProgramDimension, IsASumOrProductOfNumbersAndOneSymbol) {
  const auto parse = [](std::string_view text) { return ParseProgramDimension(text); };
  EXPECT_EQ(parse("Integer(7)")->addend, 7);
  const auto symbol = parse("Symbol('s1', positive=True, integer=True)");
  ASSERT_TRUE(symbol.has_value());
  EXPECT_EQ(symbol->symbol, "s1");
  EXPECT_EQ(symbol->factor, 1);
  const auto both = parse("Add(Mul(Integer(2), Symbol('s1', integer=True)), Integer(-3))");
  ASSERT_TRUE(both.has_value());
  EXPECT_EQ(both->factor, 2);
  EXPECT_EQ(both->addend, -3);
  for (const std::string_view wrong :
       {"", "7", "Symbol('s1'", "Symbol('s1)", "Integer(x)", "Integer(99999999999999999999)", "Mul(Integer(2))",
        "Add(Integer(1), Integer(2)", "Mul(Symbol('a'), Symbol('b'))", "Pow(Integer(2), Integer(3))",
        "Integer(1) and more", "Mul(Integer(9223372036854775807), Mul(Integer(2), Symbol('s')))",
        "Mul(Integer(4), Add(Symbol('s'), Integer(4611686018427387904)))"}) {
    EXPECT_FALSE(parse(wrong).has_value()) << wrong;
  }
}

// What is needed before a run must be a number in the file.
TEST(ProgramLimits, NumbersOfAttentionMustStandInTheFile) {
  Repacked changed("language.pt2");
  const std::string mask = R"({"name": "attn_mask", "arg": {"as_tensor": {"name": "and_1"}}, "kind": 1})";
  changed.Replace(kModel, mask,
                  mask + R"(, {"name": "dropout_p", "arg": {"as_sym_int": {"as_name": "sym_size_int_4"}}, "kind": 1})");
  absl::StatusOr<ExportedProgram> program = changed.Read();
  ASSERT_TRUE(program.ok()) << program.status();
  ExpectInvalid(ProgramModel::Create(*std::move(program)).status(),
                "must have a number that the file names, got dropout_p");
}

}  // namespace
}  // namespace penstock
