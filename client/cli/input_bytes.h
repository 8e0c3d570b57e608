#pragma once

// Files that are read from their beginning, in memory as far as somebody wants them.

#include <cstdint>
#include <istream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/stop_signal.h"

namespace penstock {

// The bytes of a file, a pipe, a device, or of stdin.
//
// Threads:   one.
// Fails:     usage errors that name the file; CANCELLED / WORK_CANCELLED once stopped.
class InputBytes {
 public:
  // "-" is `in`, which ends when it is stopped. Does not wait for a pipe's writer: Read() does.
  static absl::StatusOr<std::unique_ptr<InputBytes>> Open(const std::string& path, std::istream& in,
                                                          const StopSignal& stop);
  ~InputBytes();
  InputBytes(const InputBytes&) = delete;
  InputBytes& operator=(const InputBytes&) = delete;

  // As errors name it.
  const std::string& name() const { return name_; }

  // Appends to what was read before, until `bytes` has this size or the input ends.
  absl::Status Read(uint64_t size, std::string* bytes);

 private:
  InputBytes(std::string name, int descriptor, std::istream& in, const StopSignal& stop)
      : name_(std::move(name)), descriptor_(descriptor), in_(in), stop_(stop) {}

  absl::StatusOr<int64_t> ReadSome(char* into, int64_t most);

  const std::string name_;
  const int descriptor_;  // -1: `in_` is read
  std::istream& in_;
  const StopSignal& stop_;
};

}  // namespace penstock
