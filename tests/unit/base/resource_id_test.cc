#include "engine/base/resource_id.h"

#include <string>

#include "gtest/gtest.h"

namespace penstock {
namespace {

TEST(ResourceId, HasOneTo63OfLowerCaseLettersDigitsUnderscoresAndDashes) {
  for (const std::string& good : {std::string("a"), std::string("a-1"), std::string("step-200"),
                                  std::string("densenet_onnx"), std::string("a_-_1"), std::string(63, 'a')}) {
    EXPECT_TRUE(IsResourceId(good)) << good;
  }
  for (const std::string& bad :
       {std::string(), std::string(64, 'a'), std::string("1a"), std::string("-a"), std::string("a-"), std::string("A"),
        std::string("_a"), std::string("a_"), std::string("a.b"), std::string("a/b"), std::string("a\0b", 3)}) {
    EXPECT_FALSE(IsResourceId(bad)) << bad;
  }
}

}  // namespace
}  // namespace penstock
