#pragma once

// Exported programs for people.

#include <string>
#include <vector>

#include "penstock/v1/model.pb.h"

namespace penstock {

// One line per model.
std::string ModelListText(const std::vector<v1::Model>& models, bool wide);

// A model: what it takes and gives, its size and layers. Wide: its operators, too.
std::string ModelDetailText(const v1::Model& model, bool wide);

}  // namespace penstock
