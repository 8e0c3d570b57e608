#include "client/cli/spec_file.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/cli/exit_code.h"
#include "client/lib/large_inputs.h"
#include "engine/base/status_macros.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/json_util.h"

namespace penstock {
namespace {

constexpr uint64_t kMaxSpecBytes = kMaxUnaryBytes;  // as text; as a message it is shorter

// Keeps the first complaint of the text parser.
class FirstComplaint : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    if (text_.empty()) text_ = absl::StrCat("line ", line + 1, ", column ", column + 1, ": ", message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

absl::StatusOr<v1::PipelineSpec> ReadSpecFile(const std::string& path, Session& session) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string text, session.ReadFile(path, kMaxSpecBytes, "a specification"));
  v1::PipelineSpec spec;
  if (!text.empty() && absl::StripLeadingAsciiWhitespace(text).substr(0, 1) == "{") {
    const google::protobuf::util::Status parsed = google::protobuf::util::JsonStringToMessage(text, &spec);
    if (!parsed.ok()) return UsageError("--spec", std::string(parsed.message()));
    return spec;
  }
  FirstComplaint complaint;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&complaint);
  if (!parser.ParseFromString(text, &spec)) return UsageError("--spec", complaint.text());
  return spec;
}

}  // namespace penstock
