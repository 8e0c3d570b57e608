#pragma once

// What reads of parameters get.

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "engine/serve/calls.h"
#include "engine/serve/parameter_snapshots.h"

namespace penstock {

class MemoryLedger;
class Pipeline;

// Takes what a read asks for out of a copy that all readers of the same share.
//
// Owns:      nothing; the pipeline outlives it, and the ledger (may be null) its copies.
// Threads:   Take() from the training thread, bytes() from any.
// Fails:     NOT_FOUND / PARAMETER_NOT_FOUND naming it; FIELD_INVALID for one that has been named already, by either of
//            its names; ACCUMULATION_EMPTY; PIPELINE_BROKEN; HOST_MEMORY where a copy finds no room; as
//            ParameterSnapshots.
class ParameterReader {
 public:
  ParameterReader(std::string name, const Pipeline* pipeline, MemoryLedger* memory)
      : name_(std::move(name)), pipeline_(pipeline), memory_(memory) {}

  // `version`: of what is read, as it is now. A copy is charged to the caller who reads it first.
  absl::StatusOr<std::shared_ptr<const ParameterSnapshot>> Take(const ReadCall& read, const std::string& caller,
                                                                int64_t version) const;
  int64_t bytes() const { return snapshots_.bytes(); }  // of copies that somebody reads

 private:
  absl::StatusOr<ParameterSnapshot> Copy(ReadContent content, const std::string& caller) const;
  using Index = std::unordered_map<std::string, const NamedTensor*>;
  absl::StatusOr<const Index::value_type*> Find(const Index& all, const std::string& name) const;

  const std::string name_;
  const Pipeline* const pipeline_;
  MemoryLedger* const memory_;
  ParameterSnapshots snapshots_;
};

}  // namespace penstock
