#pragma once

// Who calls, in which role, and on which pipelines.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace penstock {

// What a caller may do; each role may all that those before it may.
enum class Role { kViewer, kInfer, kTrain, kAdmin };

// "viewer", "infer", "train", "admin".
std::string_view NameOf(Role role);
// Fails: INVALID_ARGUMENT / FIELD_INVALID naming `field` and the text.
absl::StatusOr<Role> ParseRole(std::string_view text, std::string_view field);

// Names of pipelines: `*` stands for any run of characters, all others for themselves.
//
// Threads:   a plain value.
// Fails:     Parse(): INVALID_ARGUMENT / FIELD_INVALID for what no name of a pipeline could match.
class PipelinePattern {
 public:
  static absl::StatusOr<PipelinePattern> Parse(std::string_view text, std::string_view field);
  // Matches every name.
  PipelinePattern() : text_("*") {}

  bool Matches(std::string_view pipeline) const;
  const std::string& text() const { return text_; }

 private:
  explicit PipelinePattern(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

// A caller as it was authenticated for one call.
struct Identity {
  std::string name = "local";  // owns handles, request ids and quotas
  Role role = Role::kAdmin;
  PipelinePattern pipelines;

  bool May(Role needed) const { return role >= needed; }
  // Whether the pipeline exists as far as the caller may know.
  bool Sees(std::string_view pipeline) const { return pipelines.Matches(pipeline); }
};

// Whether someone may be called so: 1 to 256 of a to z, A to Z, 0 to 9 and _ . @ : / -
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID naming `field` and the text.
absl::Status CheckIdentityName(std::string_view name, std::string_view field);

}  // namespace penstock
