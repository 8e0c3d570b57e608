#pragma once

// The one place where LibTorch's exceptions become a Status.

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace penstock {

// Leaves a `body` that runs under RunTorch with exactly this error. For layers and losses, whose signatures have no
// Status: it keeps the reason and the named values that a text could not carry.
[[noreturn]] void ThrowStatus(absl::Status status);

// Runs `body`, under which LibTorch, layers and autograd functions may throw.
//
// Fails:     RESOURCE_EXHAUSTED / HOST_MEMORY for std::bad_alloc and the allocator's own failure, RESOURCE_EXHAUSTED /
//            DEVICE_MEMORY for a full GPU; INVALID_ARGUMENT / TENSOR_SIGNATURE for index, type and value errors that
//            the caller's data causes; INVALID_ARGUMENT / WRONG_TYPE for a leaf that is changed in place; INTERNAL /
//            BUG for the rest, a GPU that fails included.
//            The message holds the first line of LibTorch's text, without paths, pointers and stacks, at most 300
//            bytes; the whole text goes to the log. A BUG carries an `incident` that the log repeats.
absl::Status RunTorch(const std::function<void()>& body);

// As RunTorch, for what comes with a model: its layers and their backwards. What would be INTERNAL / BUG is the model's
// fault, FAILED_PRECONDITION / LAYER_FAILED, unless a GPU fails.
absl::Status RunLayerCode(const std::function<void()>& body);

// The first line of a library's text, cleaned of paths, pointers and unprintable bytes, at most 300 bytes.
std::string CleanFirstLine(std::string_view text);

}  // namespace penstock
