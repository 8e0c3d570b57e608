#pragma once

// Makes a case that fails smaller, so that a person can see why: fewer steps, layers, rows, features, and less that is
// unusual.

#include <functional>
#include <string>
#include <string_view>

#include "tests/transparency/random_case.h"

namespace penstock::testing {

// Edits of a case, separated by spaces, in order:
//
//   step:I             without step I
//   part:I.J           step I without contribution J
//   calm:I.J           contribution J of step I without what is unusual: an attempt, halves, poison
//   common:I           step I as a TrainStep if it has one contribution, with nothing of its own
//   rows:I.J.N         that contribution has N rows
//   split:I.J.N        that contribution is asked to be in N micro-batches
//   layer:I            without layer I, and without the pop of what it stashes
//   width:A.B          every width of A becomes B
//   lanes:N            gpipe on N lanes, one stage each, without recomputation, in serial mode
//   stay               the state does not move
//   optimizer          plain gradient descent
//   dtype              float, without autocast
//   untied             without tied parameters
//
// Returns false, and leaves the case half-way, for an edit that does not apply to it.
bool ApplyEdits(std::string_view edits, RandomCase& one);

// What is left of a case, and the edits that make it from the whole one.
struct ShrunkCase {
  RandomCase one;
  std::string edits;
};

// Applies edits one by one, each that leaves a case that `fails`, until none is left or so many cases were tried.
ShrunkCase Shrink(const RandomCase& whole, const std::function<bool(const RandomCase&)>& fails, int max_tries);

}  // namespace penstock::testing
