#pragma once

// What the readers of an exported program's JSON share: text to a checked document, and fields of known form.

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/program/exported_program.h"

namespace penstock {

// Parses a record. Depth, the number of values and repeated keys are checked: the parser itself takes any depth and
// number, and the last of equal keys.
//
// Fails:     as ReadExportedProgram, naming the record.
absl::StatusOr<nlohmann::json> ParseProgramJson(std::string_view text, const std::string& record,
                                                const ProgramLimits& limits);

// Reads fields and keeps the first fault; after one, what it returns is empty and means nothing.
//
// Threads:   one at a time.
class ProgramFields {
 public:
  // Where in the document the reader is, for errors: nodes[12].
  void Enter(std::string where) { where_ = std::move(where); }

  // An object with all of `needed` and nothing else but `optional`.
  void Object(const nlohmann::json& value, std::initializer_list<const char*> needed,
              std::initializer_list<const char*> optional = {});
  // One of a union: an object with one key, which is returned; its content goes to `content`.
  std::string Union(const nlohmann::json& value, const nlohmann::json*& content);

  // A field of an object; JSON's null if it is not there.
  const nlohmann::json& At(const nlohmann::json& object, const char* key) const;
  const nlohmann::json& List(const nlohmann::json& object, const char* key);
  // The same with at most `most` items; empty if it has more.
  const nlohmann::json& List(const nlohmann::json& object, const char* key, int64_t most);
  const nlohmann::json& Map(const nlohmann::json& object, const char* key);
  std::string Text(const nlohmann::json& value);
  int64_t Int(const nlohmann::json& value);
  double Double(const nlohmann::json& value);  // infinities are texts
  bool Bool(const nlohmann::json& value);

  void Fail(std::string_view problem, std::string_view value);
  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }

 private:
  std::string where_ = "record";
  absl::Status status_;
};

// The serializer's numbers for types, as LibTorch's; fails through `fields` for unknown ones.
at::ScalarType ProgramScalarType(const nlohmann::json& value, ProgramFields& fields);

// Reads a graph record. `tensors` are the program's.
absl::StatusOr<ProgramGraph> ParseProgramGraph(const nlohmann::json& document, const std::string& record,
                                               const std::vector<ProgramTensor>& tensors, const ProgramLimits& limits);

// What the model's own code calls its outputs, so many: the keys of a dictionary, positions in a tuple. Each once, of
// letters, digits, _ . and -; where the file does not say, output0, output1.
std::vector<std::string> ProgramOutputNames(const nlohmann::json& module, size_t count, const ProgramLimits& limits,
                                            ProgramFields& fields);

}  // namespace penstock
