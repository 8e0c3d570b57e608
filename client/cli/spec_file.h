#pragma once

// A pipeline's specification from a file: protobuf's text form or its JSON form.

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/session.h"
#include "penstock/v1/pipeline.pb.h"

namespace penstock {

// What begins with `{` is JSON. Fails: a usage error of --spec that says where the file is wrong.
absl::StatusOr<v1::PipelineSpec> ReadSpecFile(const std::string& path, Session& session);

}  // namespace penstock
