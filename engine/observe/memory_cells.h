#pragma once

// The bytes that a lane holds, by kind, and shares of them that end with their owner.

#include <cstdint>
#include <memory>
#include <utility>

#include "engine/observe/histogram.h"
#include "engine/observe/metric_labels.h"

namespace penstock {

using MemoryCells = CellsBy<MemoryKind, GaugeCell, kMemoryKindNames.size()>;

// Some bytes of one kind: counted from construction to destruction. Moves.
//
// Owns:      a share of the cells, so that what it counts may outlive the pipeline.
// Threads:   one at a time; the cells are anyone's.
// Units:     bytes.
class MemoryShare {
 public:
  MemoryShare() = default;
  MemoryShare(std::shared_ptr<MemoryCells> cells, MemoryKind kind, int64_t bytes)
      : cells_(std::move(cells)), kind_(kind), bytes_(bytes) {
    (*cells_)[kind_].Add(static_cast<double>(bytes_));
  }
  MemoryShare(MemoryShare&& other) noexcept
      : cells_(std::move(other.cells_)), kind_(other.kind_), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryShare& operator=(MemoryShare&& other) noexcept {
    if (this == &other) return *this;
    Release();
    cells_ = std::move(other.cells_);
    kind_ = other.kind_;
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  ~MemoryShare() { Release(); }

  int64_t bytes() const { return bytes_; }

 private:
  void Release() {
    if (cells_ != nullptr) (*cells_)[kind_].Add(-static_cast<double>(bytes_));
    cells_ = nullptr;
  }

  std::shared_ptr<MemoryCells> cells_;
  MemoryKind kind_ = MemoryKind::kStash;
  int64_t bytes_ = 0;
};

}  // namespace penstock
