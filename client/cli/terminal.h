#pragma once

// The terminal that a command runs on: how wide it is, and the keys that are pressed.

#include <memory>
#include <string>
#include <string_view>

namespace penstock {

// A terminal that gives keys as they are pressed, without waiting for a line and without showing them.
//
// Threads:   one at a time.
// Lifecycle: the terminal is as it was before when the object ends.
class Terminal {
 public:
  virtual ~Terminal() = default;

  virtual int Columns() = 0;           // as it is now; 0: not known
  virtual bool Pressed(char key) = 0;  // since the last question; other keys are lost
};

// The terminal of this process's stdin and stdout; null if one of them is none. One at a time.
std::unique_ptr<Terminal> OpenProcessTerminal();

// Makes the terminal as it was before OpenProcessTerminal(), for a process that ends without its destructors. From any
// thread; nothing where none is open.
void RestoreTerminal();

// Each line cut to so many columns; escape sequences for colours take none.
std::string CutLines(std::string_view text, int columns);

}  // namespace penstock
