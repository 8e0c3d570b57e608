#pragma once

// KEY=VALUE of the command line, as options of a specification.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "penstock/v1/pipeline.pb.h"

namespace penstock {

using OptionMap = google::protobuf::Map<std::string, v1::Option>;

// Puts each pair into the map: true, false, 12, 1e-3; anything else as text. A usage error names `argument`.
absl::Status PutPairs(std::string_view argument, const std::vector<std::string>& pairs, OptionMap* map);

}  // namespace penstock
