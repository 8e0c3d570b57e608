#pragma once

// Values that every line of one piece of work names, without handing them down to the code that writes the line.

#include <string>
#include <utility>
#include <vector>

namespace penstock {

// Adds values to every line that this thread writes while the scope is open: what the line names itself, and what a
// scope within says, comes first.
//
// Threads:   opened and closed on one thread, innermost first.
class LogScope {
 public:
  using Fields = std::vector<std::pair<std::string, std::string>>;

  explicit LogScope(Fields fields);
  ~LogScope();
  LogScope(const LogScope&) = delete;
  LogScope& operator=(const LogScope&) = delete;

  const Fields& fields() const { return fields_; }
  const LogScope* outer() const { return outer_; }
  // Of this thread; null: none is open.
  static const LogScope* Innermost();

 private:
  const Fields fields_;
  const LogScope* const outer_;
};

}  // namespace penstock
