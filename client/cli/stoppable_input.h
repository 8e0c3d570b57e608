#pragma once

// The process's stdin, whose readers an interrupt can end.

#include <array>
#include <streambuf>

#include "client/cli/stop_signal.h"

namespace penstock {

// Reads a descriptor until its end or until `stop`. Owns neither.
//
// Lifecycle: once stopped, nothing is read any more: a reader that waits, and each later one, is at the end.
class StoppableInput : public std::streambuf {
 public:
  StoppableInput(int descriptor, const StopSignal& stop) : descriptor_(descriptor), stop_(stop) {}

 protected:
  int_type underflow() override;

 private:
  const int descriptor_;
  const StopSignal& stop_;
  std::array<char, 64 << 10> buffer_;
};

}  // namespace penstock
