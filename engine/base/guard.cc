#include "engine/base/guard.h"

#include <atomic>
#include <exception>
#include <new>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/error.h"
#include "engine/base/log.h"

namespace penstock {

std::string NextIncident() {
  static const uint32_t process = std::random_device{}();
  static std::atomic<uint32_t> count{0};
  return absl::StrFormat("%08x-%d", process, ++count);
}

absl::Status Bug(std::string_view work, std::string_view detail) {
  const std::string incident = NextIncident();
  LogError("unexpected failure", {{"work", std::string(work)}, {"incident", incident}, {"text", std::string(detail)}});
  return Error(absl::StatusCode::kInternal, "BUG",
               absl::StrCat(std::string(work), " failed unexpectedly; the server's log names the incident ", incident))
      .With("incident", incident);
}

absl::Status CaughtException(std::string_view work) {
  try {
    try {
      throw;
    } catch (const std::bad_alloc&) {
      LogWarning("out of host memory", {{"work", std::string(work)}});
      return Error(absl::StatusCode::kResourceExhausted, "HOST_MEMORY", std::string(work) + ": out of host memory");
    } catch (const std::exception& error) {
      return Bug(work, error.what());
    } catch (...) {
      return Bug(work, "an exception of unknown type");
    }
  } catch (...) {  // no memory even to say so: a code by itself takes none
    return absl::ResourceExhaustedError("");
  }
}

}  // namespace penstock
