#pragma once

// Layer kinds that cost what a test says: in fake time, in memory, in parameters.

#include <cstdint>
#include <vector>

#include "engine/model/model_spec.h"
#include "tests/support/fake_clock.h"

namespace penstock::testing {

// The clock that these layers move. One layer at a time, so one device at a time.
FakeClock& ProfileClock();

// How often test layers were built, run in training, and how many live now.
struct LayerCounts {
  int built = 0;
  int alive = 0;
  int trained = 0;
};
LayerCounts& Counts();

// Forgets the counts; registers the kinds, once per process.
void UseProfileLayers();

// Hands its input on after so many milliseconds; `first_ms` instead in the first forward of an object.
LayerSpec SleepLayer(int64_t ms, int64_t first_ms = -1);
// Adds so many random tensors that learn to what it gets: they stay until the backward. Takes 100x100 per row.
LayerSpec ExpandLayer(int64_t times);
// The same on rows of one element, with a linear layer beside it that has size * (size + 1) parameters.
LayerSpec TradeoffLayer(int64_t size, int64_t times);
// A convolution 3 -> 2 with kernel 1 on 8x8 images, and the row-wise flattening behind it; they move no clock.
LayerSpec ConvLayer(int64_t ms);
LayerSpec FlattenLayer();
// x to (2x, x > 0, 3x): of the last nobody learns.
LayerSpec PairLayer();
// Takes what PairLayer gives, adds the numbers where the flags are set. Throws unless exactly the first may learn.
LayerSpec JoinLayer();
// Stashes the square of its input under the name `x` and hands on twice the input; one that forgets to.
LayerSpec StashLayer(bool forget = false);
// Pops `x` and adds it.
LayerSpec PopLayer();
// Squares its input in place, in fake time.
LayerSpec InPlaceLayer(int64_t ms);
// As a layer that says nothing about what it takes.
LayerSpec AnythingLayer();
LayerSpec LinearLayer(int64_t in, int64_t out);

}  // namespace penstock::testing
