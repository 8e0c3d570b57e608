#pragma once

// The fields that every part of a specification has: texts and options, with their limits.

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/option_map.h"
#include "penstock/v1/pipeline.pb.h"

namespace penstock {

// INVALID_ARGUMENT / SPEC_INVALID "FIELD: PROBLEM, got VALUE".
absl::Status SpecInvalid(const std::string& field, std::string_view problem, const std::string& value);

// At most so many entries of a list or a map.
absl::Status CheckCount(int count, int most, const std::string& field, std::string_view what);

// A name: at most 256 bytes.
absl::Status CheckText(const std::string& text, const std::string& field);

// At most 64, each with a value.
absl::StatusOr<OptionMap> ReadOptions(const google::protobuf::Map<std::string, v1::Option>& options,
                                      const std::string& field);
void WriteOptions(const OptionMap& options, google::protobuf::Map<std::string, v1::Option>* map);

}  // namespace penstock
