#pragma once

#include "penstock/v1/model.pb.h"
#include "server/models/model_root.h"

namespace penstock {

inline constexpr char kModelPrefix[] = "models/";  // of a model's resource name

// A model on the wire.
v1::Model ToProto(const ModelDescription& model, const ModelRoot& root, bool layers);

}  // namespace penstock
