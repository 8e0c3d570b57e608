#include "engine/base/file_pieces.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;

absl::Status PieceError(const char* operation, const std::string& path) {
  const absl::StatusCode code = errno == ENOENT ? absl::StatusCode::kNotFound : absl::StatusCode::kInternal;
  return WithValue(absl::Status(code, absl::StrCat(operation, ": ", std::strerror(errno))), "path", path);
}

}  // namespace

absl::Status ReadInPieces(const std::string& path, const std::function<absl::Status(std::string_view)>& visit) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return PieceError("open", path);
  const absl::Cleanup close = [descriptor] { ::close(descriptor); };
  std::string piece(kPieceBytes, '\0');
  while (true) {
    const ssize_t got = ::read(descriptor, piece.data(), piece.size());
    if (got == 0) return absl::OkStatus();
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return PieceError("read", path);
    PENSTOCK_RETURN_IF_ERROR(visit(std::string_view(piece).substr(0, static_cast<size_t>(got))));
  }
}

}  // namespace penstock
