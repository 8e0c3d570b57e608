#pragma once

// Bytes as a gzip file, piece by piece.

#include <memory>
#include <string>
#include <string_view>

namespace penstock {

// Compresses what it is given.
//
// Lifecycle: Add() any number of times, then Finish() once; the answers in their order are the file.
class GzipStream {
 public:
  GzipStream();
  ~GzipStream();

  std::string Add(std::string_view bytes);
  std::string Finish();

 private:
  struct State;
  std::string Deflate(std::string_view bytes, bool last);

  const std::unique_ptr<State> state_;
};

}  // namespace penstock
