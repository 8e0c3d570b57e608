#pragma once

// What stands before the elements of an array that numpy wrote.
//
// Source: numpy.lib.format, versions 1.0 and 2.0.

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "client/cli/input_file.h"
#include "engine/wire/tensor_header.h"

namespace penstock {

struct NpyHeader {
  TensorHeader tensor;
  int64_t data_begin = 0;  // bytes before the elements
};

// numpy's word for a type without the order of its bytes, "f4"; empty: it has none.
std::string_view NumpyType(DataType type);

// Of an array of that name.
//
// Fails: usage errors that name file and array, for what is no such array, and for those that can't be rows of tensors:
//        in Fortran order, big-endian, of objects, records, text, or another type that no tensor has.
absl::StatusOr<NpyHeader> ReadNpyHeader(const std::string& name, const ByteRange& bytes);

}  // namespace penstock
