#include "engine/device/torch_status.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "engine/base/error.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(RunTorch, AnswersOkWhereNothingThrows) {
  bool ran = false;
  EXPECT_TRUE(RunTorch([&] { ran = true; }).ok());
  EXPECT_TRUE(ran);
}

TEST(RunTorch, TellsOutOfMemory) {
  const absl::Status plain = RunTorch([] { throw std::bad_alloc(); });
  EXPECT_EQ(plain.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(plain), "HOST_MEMORY");
  // The allocator's own failure, for more than any machine has.
  const absl::Status allocator = RunTorch([] { at::empty({int64_t{1} << 55}, at::kFloat); });
  EXPECT_EQ(allocator.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(allocator), "HOST_MEMORY") << allocator;
}

TEST(RunTorch, TellsAFullGpuFromAFullHost) {
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  const auto reason = [](const std::function<void()>& body) { return ReasonOf(RunTorch(body)); };
  EXPECT_EQ(reason([&] { throw c10::OutOfMemoryError(here, "CUDA out of memory. Tried to allocate 20.00 GiB."); }),
            "DEVICE_MEMORY");
  EXPECT_EQ(reason([&] { throw c10::AcceleratorError(here, 2, "CUDA error: out of memory"); }), "DEVICE_MEMORY");
  EXPECT_EQ(reason([] { TORCH_CHECK(false, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"); }),
            "DEVICE_MEMORY");
  EXPECT_EQ(RunTorch([&] { throw c10::OutOfMemoryError(here, "CUDA out of memory."); }).code(),
            absl::StatusCode::kResourceExhausted);
  // A GPU that fails is nobody's fault: the log has the rest.
  const absl::Status broken =
      RunTorch([&] { throw c10::AcceleratorError(here, 700, "CUDA error: an illegal memory access was encountered"); });
  EXPECT_EQ(broken.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReasonOf(broken), "BUG");
  EXPECT_FALSE(ValuesOf(broken)["incident"].empty());
}

TEST(RunTorch, TellsTheCallersIndexFromABug) {
  const absl::Status index = RunTorch([] { at::embedding(at::ones({4, 2}), at::ones({1}, at::kLong).mul(9)); });
  EXPECT_EQ(index.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(index), "TENSOR_SIGNATURE");
  EXPECT_THAT(std::string(index.message()), HasSubstr("index out of range"));
  const absl::Status value = RunTorch([] { TORCH_CHECK_VALUE(false, "bad value 7"); });
  EXPECT_EQ(ReasonOf(value), "TENSOR_SIGNATURE");
  const absl::Status type = RunTorch([] { TORCH_CHECK_TYPE(false, "bad type"); });
  EXPECT_EQ(ReasonOf(type), "TENSOR_SIGNATURE");

  const absl::Status shapes = RunTorch([] { at::matmul(at::ones({2, 3}), at::ones({2, 3})); });
  EXPECT_EQ(shapes.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReasonOf(shapes), "BUG");
  EXPECT_THAT(std::string(shapes.message()), HasSubstr("(2x3 and 2x3)"));
  EXPECT_THAT(std::string(shapes.message()), Not(HasSubstr("frame")));
}

TEST(RunLayerCode, TellsALayersFaultFromAMachines) {
  const absl::Status thrown = RunLayerCode([] { throw std::logic_error("out of ideas\nand a stack"); });
  EXPECT_EQ(thrown.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(thrown), "LAYER_FAILED");
  EXPECT_EQ(std::string(thrown.message()), "out of ideas");
  EXPECT_EQ(ReasonOf(RunLayerCode([] { TORCH_CHECK(false, "shapes"); })), "LAYER_FAILED");
  EXPECT_EQ(ReasonOf(RunLayerCode([] { throw 7; })), "LAYER_FAILED");

  EXPECT_EQ(ReasonOf(RunLayerCode([] { throw std::bad_alloc(); })), "HOST_MEMORY");
  EXPECT_EQ(ReasonOf(RunLayerCode([] { TORCH_CHECK_VALUE(false, "bad value 7"); })), "TENSOR_SIGNATURE");
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  EXPECT_EQ(ReasonOf(RunLayerCode([&] { throw c10::AcceleratorError(here, 700, "CUDA error: an illegal access"); })),
            "BUG");
  for (const char* said : {"cuFFT error: CUFFT_EXEC_FAILED", "cuDNN Frontend error: no plan", "cusolver error: 7"}) {
    EXPECT_EQ(ReasonOf(RunLayerCode([&] { TORCH_CHECK(false, said); })), "BUG") << said;
  }
  EXPECT_EQ(ReasonOf(RunLayerCode([] { TORCH_CHECK(false, "no operator for the 'CUDA' backend"); })), "LAYER_FAILED");
  const absl::Status thrown_status = InvalidField("tokens", "must be small", "300");
  EXPECT_EQ(RunLayerCode([&] { ThrowStatus(thrown_status); }), thrown_status);
}

TEST(RunTorch, GivesEveryBugItsOwnIncident) {
  const auto bug = [] { return ValuesOf(RunTorch([] { throw std::logic_error("x"); }))["incident"]; };
  const std::string first = bug();
  EXPECT_FALSE(first.empty());
  EXPECT_NE(first, bug());
  EXPECT_EQ(ReasonOf(RunTorch([] { throw 7; })), "BUG");
}

TEST(RunTorch, KeepsAThrownStatusWhole) {
  const absl::Status thrown = InvalidField("tokens", "must be small", "300");
  EXPECT_EQ(RunTorch([&] { ThrowStatus(thrown); }), thrown);
}

TEST(CleanFirstLine, KeepsTheFirstLineOnly) {
  EXPECT_EQ(CleanFirstLine("one, two\nthree"), "one, two");
  EXPECT_EQ(CleanFirstLine("\nhidden"), "");
  EXPECT_EQ(CleanFirstLine(""), "");
}

TEST(CleanFirstLine, HidesPathsAndAddresses) {
  EXPECT_EQ(CleanFirstLine("[enforce fail at aten/src/alloc_cpu.cpp:117] err == 0"), "[enforce fail at PATH] err == 0");
  EXPECT_EQ(CleanFirstLine("open \"/some/x y\" file=/etc/passwd ~/a"), "open \"PATH y\" PATH PATH");
  EXPECT_EQ(CleanFirstLine("at 0x7ffee4c0, size 0x10"), "at ADDRESS, size 0x10");
  EXPECT_EQ(CleanFirstLine("shapes (8x20 and 30x5), 1/2 / 3"), "shapes (8x20 and 30x5), 1/2 / 3");
}

TEST(CleanFirstLine, IsPrintableAndShort) {
  EXPECT_EQ(CleanFirstLine("a\tb\x1b[31mc\xff"), "a b?[31mc?");
  EXPECT_EQ(CleanFirstLine(std::string(5000, 'x')).size(), 300u);
  EXPECT_LE(CleanFirstLine(std::string(290, ' ') + "/a/b/c /a/b/c /a/b/c").size(), 300u);
}

}  // namespace
}  // namespace penstock
