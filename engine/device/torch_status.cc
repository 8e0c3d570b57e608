#include "engine/device/torch_status.h"

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"

namespace penstock {
namespace {

constexpr size_t kMaxMessageBytes = 300;
constexpr std::string_view kLayerFailed = "LAYER_FAILED";

// Carries a Status up to RunTorch.
class StatusException : public std::exception {
 public:
  explicit StatusException(absl::Status status) : status_(std::move(status)), text_(status_.ToString()) {}
  const char* what() const noexcept override { return text_.c_str(); }
  const absl::Status& status() const { return status_; }

 private:
  const absl::Status status_;
  const std::string text_;
};

absl::Status Failure(absl::StatusCode code, std::string_view reason, std::string_view text) {
  Error error(code, reason, CleanFirstLine(text));
  std::string incident;
  if (code == absl::StatusCode::kInternal) {
    incident = NextIncident();
    error.With("incident", incident);
  }
  LogWarning(reason == kLayerFailed ? "a layer failed" : "LibTorch failed",
             {{"reason", std::string(reason)}, {"incident", incident}, {"text", std::string(text)}});
  return error;
}

// Of an exception that says no more than its text.
absl::Status OtherFailure(std::string_view text, bool of_layer) {
  const absl::string_view said(text.data(), text.size());
  const bool of_gpu = absl::StrContains(said, "CUDA error") || absl::StrContains(said, "cuDNN") ||
                      absl::StrContains(said, "cuFFT error") || absl::StrContains(said, "cusolver error");
  if (of_layer && !of_gpu) return Failure(absl::StatusCode::kFailedPrecondition, kLayerFailed, text);
  return Failure(absl::StatusCode::kInternal, "BUG", text);
}

// The CPU allocator throws a plain error, so that only its words tell.
bool SaysOutOfMemory(absl::string_view text) {
  return absl::StrContains(text, "DefaultCPUAllocator") || absl::StrContains(text, "not enough memory") ||
         absl::StrContains(text, "can't allocate memory");
}

// Full GPUs. The libraries above CUDA tell it by the names of their codes only.
bool SaysOutOfDeviceMemory(absl::string_view text) {
  return absl::StrContains(text, "CUDA out of memory") || absl::StrContains(text, "CUDA error: out of memory") ||
         absl::StrContains(text, "CUBLAS_STATUS_ALLOC_FAILED") ||
         absl::StrContains(text, "CUDNN_STATUS_ALLOC_FAILED") || absl::StrContains(text, "DEVICE_ALLOCATION_FAILED");
}

// A layer that writes to what it was given: the caller's model, not ours.
bool SaysLeafChanged(absl::string_view text) { return absl::StrContains(text, "leaf Variable that requires grad"); }

bool EndsWord(char c) {
  return absl::ascii_isspace(c) || absl::StrContains("\"'`()<>[]{},;", absl::string_view(&c, 1));
}

// Whether a word names a file: it starts at a root or a home, or climbs folders.
bool IsPath(absl::string_view word) {
  const size_t slash = word.find('/');
  if (slash == absl::string_view::npos || word.size() == 1) return false;
  const bool rooted = slash == 0 || !absl::ascii_isalnum(word[slash - 1]);
  return rooted || word.find('/', slash + 1) != absl::string_view::npos ||
         word.find('.', slash) != absl::string_view::npos;
}

bool IsAddress(absl::string_view word) {
  if (word.size() < 6 || word[0] != '0' || (word[1] != 'x' && word[1] != 'X')) return false;
  for (char c : word.substr(2)) {
    if (!absl::ascii_isxdigit(c)) return false;
  }
  return true;
}

absl::Status Run(const std::function<void()>& body, bool of_layer) {
  using absl::StatusCode;
  try {
    body();
    return absl::OkStatus();
  } catch (const StatusException& error) {
    return error.status();
  } catch (const std::bad_alloc&) {
    return Failure(StatusCode::kResourceExhausted, "HOST_MEMORY", "out of host memory");
  } catch (const c10::OutOfMemoryError& error) {  // what accelerators' allocators throw
    return Failure(StatusCode::kResourceExhausted, "DEVICE_MEMORY", error.what_without_backtrace());
  } catch (const c10::AcceleratorError& error) {
    if (SaysOutOfDeviceMemory(error.what_without_backtrace())) {
      return Failure(StatusCode::kResourceExhausted, "DEVICE_MEMORY", error.what_without_backtrace());
    }
    return Failure(StatusCode::kInternal, "BUG", error.what_without_backtrace());
  } catch (const c10::IndexError& error) {
    return Failure(StatusCode::kInvalidArgument, "TENSOR_SIGNATURE", error.what_without_backtrace());
  } catch (const c10::TypeError& error) {
    return Failure(StatusCode::kInvalidArgument, "TENSOR_SIGNATURE", error.what_without_backtrace());
  } catch (const c10::ValueError& error) {
    return Failure(StatusCode::kInvalidArgument, "TENSOR_SIGNATURE", error.what_without_backtrace());
  } catch (const c10::Error& error) {
    if (SaysOutOfMemory(error.what_without_backtrace())) {
      return Failure(StatusCode::kResourceExhausted, "HOST_MEMORY", error.what_without_backtrace());
    }
    if (SaysOutOfDeviceMemory(error.what_without_backtrace())) {
      return Failure(StatusCode::kResourceExhausted, "DEVICE_MEMORY", error.what_without_backtrace());
    }
    if (SaysLeafChanged(error.what_without_backtrace())) {
      return Failure(StatusCode::kInvalidArgument, "WRONG_TYPE", error.what_without_backtrace());
    }
    return OtherFailure(error.what_without_backtrace(), of_layer);
  } catch (const std::exception& error) {
    return OtherFailure(error.what(), of_layer);
  } catch (...) {
    return OtherFailure("an exception of unknown type", of_layer);
  }
}

}  // namespace

std::string CleanFirstLine(std::string_view text) {
  text = text.substr(0, text.find_first_of("\n\r"));
  std::string clean;
  size_t i = 0;
  while (i < text.size() && clean.size() < kMaxMessageBytes) {
    if (EndsWord(text[i]) || !absl::ascii_isprint(text[i])) {
      clean += absl::ascii_isprint(text[i]) ? text[i] : (absl::ascii_isspace(text[i]) ? ' ' : '?');
      ++i;
      continue;
    }
    size_t end = i;
    while (end < text.size() && !EndsWord(text[end]) && absl::ascii_isprint(text[end])) ++end;
    const absl::string_view word(text.data() + i, end - i);
    if (IsPath(word)) {
      clean += "PATH";
    } else if (IsAddress(word)) {
      clean += "ADDRESS";
    } else {
      absl::StrAppend(&clean, word);
    }
    i = end;
  }
  clean.resize(std::min(clean.size(), kMaxMessageBytes));
  absl::StripAsciiWhitespace(&clean);
  return clean;
}

void ThrowStatus(absl::Status status) {
  PENSTOCK_CHECK(!status.ok());
  throw StatusException(std::move(status));
}

absl::Status RunTorch(const std::function<void()>& body) { return Run(body, /*of_layer=*/false); }

absl::Status RunLayerCode(const std::function<void()>& body) { return Run(body, /*of_layer=*/true); }

}  // namespace penstock
