#pragma once

// Values of models as JSON, for `penstock infer` and `penstock handle fetch`.

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/message_json.h"
#include "client/cli/session.h"
#include "client/lib/host_tensor.h"
#include "client/lib/tensor_download.h"
#include "penstock/v1/tensor.pb.h"

namespace penstock {

// A value of JSON: null is None, a list a list, an object a dictionary; 3 is an integer and 3.0 is not.
//
// Fails:     INVALID_ARGUMENT / USAGE naming `argument`: no JSON, an integer that 64 bits with a sign do not hold, an
//            object that has a name twice, more than 16 deep.
absl::StatusOr<v1::Value> ValueFromJson(const std::string& text, const std::string& argument);

// The way back. A tuple is a list, a tensor {"tensor": its name}; a number that JSON has not is null.
Json ValueToJson(const v1::Value& value);

// The elements of a tensor, as lists in lists.
Json TensorToJson(const HostTensor& tensor);

// The results that are no tensors, by name, in their order.
Json ValuesToJson(const FetchedHandle& fetched);

// Names on stderr the results that are no tensors, which a file of tensors on stdout has no place for.
void SayLeftOut(const FetchedHandle& fetched, Session& session);

}  // namespace penstock
