#include "client/cli/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>

namespace penstock {
namespace {

termios before_keys;                   // the terminal as it was found
std::atomic<bool> gives_keys = false;  // it is not so now

class ProcessTerminal : public Terminal {
 public:
  explicit ProcessTerminal(const termios& before) {
    before_keys = before;
    gives_keys = true;
    termios keys = before;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // signals stay: Ctrl-C is one
    tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  }
  ~ProcessTerminal() override { RestoreTerminal(); }

  int Columns() override {
    winsize size = {};
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
  }

  bool Pressed(char key) override {
    bool pressed = false;
    pollfd input = {STDIN_FILENO, POLLIN, 0};
    char letters[64];
    while (poll(&input, 1, 0) > 0 && (input.revents & POLLIN) != 0) {
      const ssize_t count = read(STDIN_FILENO, letters, sizeof(letters));
      if (count <= 0) break;
      pressed = pressed || std::string_view(letters, static_cast<size_t>(count)).find(key) != std::string_view::npos;
    }
    return pressed;
  }
};

}  // namespace

std::unique_ptr<Terminal> OpenProcessTerminal() {
  termios before = {};
  if (!isatty(STDOUT_FILENO) || tcgetattr(STDIN_FILENO, &before) != 0) return nullptr;
  return std::make_unique<ProcessTerminal>(before);
}

void RestoreTerminal() {
  if (gives_keys.exchange(false)) tcsetattr(STDIN_FILENO, TCSANOW, &before_keys);
}

std::string CutLines(std::string_view text, int columns) {
  std::string cut;
  int column = 0;
  bool coloured = false;  // what was cut off may have ended a colour
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\x1b') {
      const size_t end = text.find('m', i);
      if (end == std::string_view::npos) break;
      cut.append(text.substr(i, end + 1 - i));
      coloured = true;
      i = end;
    } else if (text[i] == '\n') {
      if (coloured && column > columns) cut += "\x1b[0m";
      cut += '\n';
      column = 0;
      coloured = false;
    } else {
      const bool continues = (text[i] & '\xc0') == '\x80';  // of a letter of several bytes
      if (!continues) ++column;
      if (column <= columns) cut += text[i];
    }
  }
  return cut;
}

}  // namespace penstock
