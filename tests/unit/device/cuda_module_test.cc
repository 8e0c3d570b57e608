#include "engine/device/cuda_module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Stands for the driver where a test wants one: a library that every machine has.
constexpr char kSomeLibrary[] = "libm.so.6";

TEST(OpenCudaModule, SaysThatThereIsNoDriver) {
  const OpenedCuda opened = OpenCudaModule({.driver = "libnosuchdriver.so.1", .module = FAKE_MODULE});
  EXPECT_EQ(opened.found.count, 0);
  EXPECT_TRUE(opened.devices.empty());
  EXPECT_THAT(opened.found.why_none,
              AllOf(HasSubstr("no NVIDIA driver"), HasSubstr("libnosuchdriver.so.1: cannot open")));
}

TEST(OpenCudaModule, SaysThatThereIsNoModuleWithoutShowingPaths) {
  const OpenedCuda opened = OpenCudaModule({.driver = kSomeLibrary, .module = "/no/such/folder/module.so"});
  EXPECT_EQ(opened.found.count, 0);
  EXPECT_THAT(opened.found.why_none, AllOf(HasSubstr("can't be opened"), Not(HasSubstr("/no/such"))));
}

TEST(OpenCudaModule, RefusesALibraryOfAnotherKind) {
  const OpenedCuda opened = OpenCudaModule({.driver = kSomeLibrary, .module = kSomeLibrary});
  EXPECT_EQ(opened.found.count, 0);
  EXPECT_THAT(opened.found.why_none, HasSubstr("libm.so.6 is no CUDA module"));
}

TEST(OpenCudaModule, RefusesAnotherVersion) {
  const OpenedCuda opened = OpenCudaModule({.driver = kSomeLibrary, .module = OLD_MODULE});
  EXPECT_EQ(opened.found.count, 0);
  EXPECT_THAT(opened.found.why_none, HasSubstr("has version -7, but this program needs version"));
}

TEST(OpenCudaModule, PassesOnWhyThereIsNoDevice) {
  const OpenedCuda opened = OpenCudaModule({.driver = kSomeLibrary, .module = EMPTY_MODULE});
  EXPECT_EQ(opened.found.count, 0);
  EXPECT_EQ(opened.found.why_none, "the GPUs are away");
}

TEST(OpenCudaModule, AnswersTheDevicesOfTheModule) {
  const OpenedCuda opened = OpenCudaModule({.driver = kSomeLibrary, .module = FAKE_MODULE});
  EXPECT_EQ(opened.found.count, 2);
  ASSERT_EQ(opened.devices.size(), 2u);
  EXPECT_NE(opened.devices[0], opened.devices[1]);
  EXPECT_EQ(opened.found.free_bytes(1), 900);
  EXPECT_EQ(opened.found.why_none, "");
}

}  // namespace
}  // namespace penstock
