#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/model/model_spec.h"
#include "engine/tensor/value.h"

namespace penstock {

// Puts values into the order of a signature and checks names, types, shapes and, where the signature leaves them open,
// equal rows; where the signature takes any value, only the names. A signature of one nameless `any` takes any number
// of values in their own order. Where the signature has no dimensions the value becomes a whole tensor: every
// micro-batch gets the number.
//
// `field` names the list in errors: inputs[2].shape. Returns the values in signature order.
// Fails:     INVALID_ARGUMENT / TENSOR_SIGNATURE naming field and value: unknown, missing or duplicate name; type;
//            rank; dimension; unequal rows. WRONG_TYPE for a value where a tensor belongs.
absl::StatusOr<NamedValues> MatchSignature(const std::vector<TensorSignature>& signature, const NamedValues& values,
                                           std::string_view field);

// Refuses tensors without rows for a training call or an evaluation: they give no loss and no gradient. Inference takes
// them. Fails: as above.
absl::Status CheckHasRows(const NamedValues& values, std::string_view field);

// Positions in `signature` of the wanted names; all of them if none is wanted. Fails: as above, for unknown and
// repeated.
absl::StatusOr<std::vector<int>> MatchNames(const std::vector<TensorSignature>& signature,
                                            const std::vector<std::string>& wanted, std::string_view field);

}  // namespace penstock
