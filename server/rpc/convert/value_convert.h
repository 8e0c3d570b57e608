#pragma once

// Between v1::Value and the engine's values.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/serve/calls.h"
#include "engine/tensor/held_values.h"
#include "google/protobuf/repeated_field.h"
#include "penstock/v1/tensor.pb.h"

namespace penstock {

// A tensor of a handle. Fails: NAME_INVALID; FIELD_INVALID for a put that no stream has given a handle's name.
absl::StatusOr<HandleTensor> FromProto(const v1::HandleTensor& handle, const std::string& field);

// A value of an input. Its tensors of the message are decoded; those behind handles are undefined, and `inside` gets what stands
// for them, in the order of Value::MapTensors.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID naming the field and what it holds: more than 16 deep, a text of more than 64 KiB,
//            a key that comes twice, more than 1,024 handles, a tensor by itself; TENSOR_HEADER and others of DecodeTensor;
//            NAME_INVALID for a handle's name.
absl::StatusOr<Value> FromProto(const v1::Value& value, const std::string& field, std::vector<HandleTensor>* inside);

// The same of what was a value of an input, and was written down: without limits, tensors by themselves and handles.
absl::StatusOr<Value> FromRecord(const v1::Value& value);
// The other way round, with the elements of its tensors. Fails: as SendableTensor().
absl::StatusOr<v1::Value> ToRecord(const Value& value);

// What a value is, for error messages: True, 3, list.
std::string ValueText(const v1::Value& value);

// The values of a handle, whose tensors they name: all, or the one of a name, if there is one.
google::protobuf::RepeatedPtrField<v1::NamedValue> ToProto(const HeldValues& held, std::string_view name = {});

}  // namespace penstock
