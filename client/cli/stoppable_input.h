#pragma once

// The process's stdin, whose readers an interrupt can end.

#include <array>
#include <streambuf>

namespace penstock {

// Reads a descriptor, which it does not own, until its end or until Stop().
//
// Threads:   Stop() from any thread; the rest from one.
// Lifecycle: after Stop() nothing is read any more: a reader that waits, and each later one, is at the end.
class StoppableInput : public std::streambuf {
 public:
  explicit StoppableInput(int descriptor);
  ~StoppableInput() override;

  void Stop();

 protected:
  int_type underflow() override;

 private:
  const int descriptor_;
  const int stop_;  // an eventfd, readable once stopped
  std::array<char, 64 << 10> buffer_;
};

}  // namespace penstock
