#pragma once

#include <map>
#include <memory>
#include <vector>

#include "tests/support/group_in_process.h"

namespace penstock::testing {

// The same group, whose leader and other ranks say everything in messages, as processes do.
class GroupOverMessages : public GroupInProcess {
 public:
  using GroupInProcess::GroupInProcess;

 protected:
  absl::StatusOr<std::map<Rank, std::unique_ptr<RankCommands>>> Build(const PipelineSpec& spec, const Plan& plan,
                                                                      RankEvents* leader) override;

 private:
  std::vector<std::shared_ptr<void>> ranks_;  // of the pipeline that was made last
};

}  // namespace penstock::testing
