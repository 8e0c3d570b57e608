#pragma once

// Loads libraries of layer kinds into this process.

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace penstock {

// Loads each file and registers its kinds, in this order. A loaded library stays for as long as the process lives.
//
// Threads:   once, before the first pipeline is made: the kinds that a pipeline finds never change.
// Fails:     INVALID_ARGUMENT / FIELD_INVALID of --layer-library with the file: it can't be read, is no shared object,
//            holds no PENSTOCK_LAYER_LIBRARY, was built for other versions (none of its code has run then), can't be
//            linked, throws while it registers, registers nothing or a kind that is misnamed or known already. Kinds of
//            the files before it stay registered.
absl::Status LoadLayerLibraries(const std::vector<std::string>& files);

}  // namespace penstock
