#pragma once

// Reference models: a name and options become a list of layers, one source file each. Their options stand in that file.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/built_in_kinds.h"
#include "engine/model/model_spec.h"

namespace penstock {

// `path` is the field of the request that holds the options, for errors: spec.model.options.
absl::StatusOr<std::vector<LayerSpec>> ExpandAmoebanet(const OptionMap& options, const std::string& path);
absl::StatusOr<std::vector<LayerSpec>> ExpandGpt(const OptionMap& options, const std::string& path);
absl::StatusOr<std::vector<LayerSpec>> ExpandIdentity(const OptionMap& options, const std::string& path);
absl::StatusOr<std::vector<LayerSpec>> ExpandMlp(const OptionMap& options, const std::string& path);
absl::StatusOr<std::vector<LayerSpec>> ExpandResnet(const OptionMap& options, const std::string& path);
absl::StatusOr<std::vector<LayerSpec>> ExpandUnet(const OptionMap& options, const std::string& path);

}  // namespace penstock
