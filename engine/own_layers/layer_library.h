#pragma once

// A library of layer kinds: a shared object that penstockd loads by --layer-library. docs/own_layers.md shows a whole
// one.

#include <torch/headeronly/version.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/model/layer.h"

namespace penstock {

// Collects the kinds of one library while it registers them.
//
// Model:     kinds in the order in which they were added; nothing is checked before the daemon takes them.
// Threads:   one: the daemon's main thread, before it makes the first pipeline.
// Lifecycle: made by the daemon for one call of the library's function; a library must not keep it.
class LayerKindList {
 public:
  struct Kind {
    std::string name;
    LayerFactory factory;
  };

  // `name` is what a client's specification calls the kind: 1 to 64 lower-case letters, digits and _, a letter first,
  // and not the name of another kind. The daemon checks this after the registration.
  void Add(std::string name, LayerFactory factory) { kinds_.push_back({std::move(name), factory}); }

  const std::vector<Kind>& kinds() const { return kinds_; }

 private:
  std::vector<Kind> kinds_;
};

}  // namespace penstock

// The versions that a library was built with. PENSTOCK_BUILD comes with the CMake target penstock::layers.
#define PENSTOCK_LAYER_LIBRARY_BUILD "Penstock " PENSTOCK_BUILD " and LibTorch " TORCH_VERSION

// Stands before the versions in the bytes of a library, where the daemon reads them before it runs any of the library's
// code.
#define PENSTOCK_LAYER_LIBRARY_MARK "penstock-layer-library:"

// Defines what the daemon calls once, before it makes the first pipeline. A library has one of it. Exceptions are
// reported.
// Example:   PENSTOCK_LAYER_LIBRARY(kinds) { kinds.Add("gated_block", MakeGatedBlock); }
#define PENSTOCK_LAYER_LIBRARY(kinds)                                                                   \
  extern "C" {                                                                                          \
  extern __attribute__((visibility("default"))) const char penstock_layer_library_build[];              \
  const char penstock_layer_library_build[] = PENSTOCK_LAYER_LIBRARY_MARK PENSTOCK_LAYER_LIBRARY_BUILD; \
  __attribute__((visibility("default"))) void penstock_layer_library(penstock::LayerKindList&);         \
  }                                                                                                     \
  void penstock_layer_library(penstock::LayerKindList& kinds)
