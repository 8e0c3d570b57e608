#include "engine/ucx/ucx_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace penstock {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kSomeLibrary[] = "libm.so.6";  // that every machine has

TEST(OpenUcxLibrary, SaysWhatIsMissingAndWhatToDo) {
  const absl::Status ucp = OpenUcxLibrary({.ucp = "libnosuchucp.so.0"}).status();
  EXPECT_EQ(ucp.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(ucp), "FEATURE_DISABLED");
  EXPECT_THAT(std::string(ucp.message()), AllOf(HasSubstr("libnosuchucp.so.0: cannot open"),
                                                HasSubstr("Debian's libucx0"), HasSubstr("--peer-transport grpc")));
  const absl::Status ucs = OpenUcxLibrary({.ucp = kSomeLibrary, .ucs = "libnosuchucs.so.0"}).status();
  EXPECT_THAT(std::string(ucs.message()), HasSubstr("libnosuchucs.so.0: cannot open"));
}

TEST(OpenUcxLibrary, RefusesALibraryWithoutItsFunctions) {
  const absl::Status status = OpenUcxLibrary({.ucp = kSomeLibrary, .ucs = kSomeLibrary}).status();
  EXPECT_EQ(ReasonOf(status), "FEATURE_DISABLED");
  EXPECT_THAT(std::string(status.message()), HasSubstr("libm.so.6 has no ucp_am_recv_data_nbx"));
}

}  // namespace
}  // namespace penstock
