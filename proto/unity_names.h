#pragma once
// What a unit of generated files needs to give their equal names an end of their own (proto/CMakeLists.txt). The header
// of protobuf that uses these names comes first, so that they mean there what they meant.

#include <google/protobuf/generated_message_reflection.h>

#define PENSTOCK_JOIN(name, file) name##_##file
#define PENSTOCK_OF_FILE(name, file) PENSTOCK_JOIN(name, file)
