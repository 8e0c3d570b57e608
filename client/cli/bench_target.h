#pragma once

// What `penstock bench` measures: a server that gets one request again and again.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock {

// A column of the report, from the server's own counters.
struct ServerFigure {
  std::string key;      // in JSON
  double value;         // in JSON
  std::string csv_key;  // of its column
  std::string csv;
  std::string title;  // of the table's column
  std::string text;
};

// One server, one kind of call.
//
// Threads:   Call() and After() from any thread; the others from one, while no call is under way.
class BenchTarget {
 public:
  virtual ~BenchTarget() = default;

  // The server's figures count from here on.
  virtual absl::Status Begin() = 0;
  // One call, which is timed; what After() gets.
  virtual absl::StatusOr<std::string> Call() = 0;
  virtual void After(const std::string& result) = 0;
  // Gives back what is left, when an interrupt has ended the calls of the session's clients.
  virtual void Interrupted() = 0;
  // The figures since Begin(), the same ones each time.
  virtual absl::StatusOr<std::vector<ServerFigure>> End() = 0;
};

}  // namespace penstock
