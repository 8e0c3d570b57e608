#include "engine/handles/handle_name.h"

#include <sys/random.h>

#include <cerrno>
#include <optional>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/resource_id.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

constexpr std::string_view kPipelines = "pipelines/";
constexpr std::string_view kHandles = "/handles/";
constexpr size_t kIdLength = 8 + 1 + 32;

// Lower-case hex digits only, so that each handle has one name.
std::optional<uint64_t> ParseHex(std::string_view digits) {
  uint64_t value = 0;
  for (char c : digits) {
    if (c >= '0' && c <= '9') {
      value = value * 16 + static_cast<uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      value = value * 16 + static_cast<uint64_t>(c - 'a' + 10);
    } else {
      return std::nullopt;
    }
  }
  return value;
}

}  // namespace

HandleId RandomHandleId(Epoch epoch) {
  HandleId id{.epoch = epoch};
  uint64_t words[2];
  char* bytes = reinterpret_cast<char*>(words);
  for (size_t done = 0; done < sizeof(words);) {
    const ssize_t got = ::getrandom(bytes + done, sizeof(words) - done, 0);
    PENSTOCK_CHECK(got > 0 || errno == EINTR);
    if (got > 0) done += static_cast<size_t>(got);
  }
  id.high = words[0];
  id.low = words[1];
  return id;
}

std::string ToString(const HandleId& id) {
  // Not StrFormat(), which ends the process where there is no memory.
  return absl::StrCat(absl::Hex(id.epoch.value(), absl::kZeroPad8), "-", absl::Hex(id.high, absl::kZeroPad16),
                      absl::Hex(id.low, absl::kZeroPad16));
}

std::string ToString(const HandleName& name) {
  return absl::StrCat("pipelines/", name.pipeline, "/handles/", ToString(name.id));
}

absl::StatusOr<HandleName> HandleName::Parse(std::string_view text, std::string_view field) {
  const auto invalid = [&] {
    return absl::Status(Error(absl::StatusCode::kInvalidArgument, "NAME_INVALID",
                              "a handle is named pipelines/{pipeline}/handles/{handle}, got " + Shortened(text))
                            .With("field", field)
                            .With("value", Shortened(text)));
  };
  if (!text.starts_with(kPipelines)) return invalid();
  const size_t middle = text.find(kHandles, kPipelines.size());
  if (middle == std::string_view::npos) return invalid();
  const std::string_view pipeline = text.substr(kPipelines.size(), middle - kPipelines.size());
  const std::string_view id = text.substr(middle + kHandles.size());
  if (!IsResourceId(pipeline) || id.size() != kIdLength || id[8] != '-') return invalid();
  const auto epoch = ParseHex(id.substr(0, 8));
  const auto high = ParseHex(id.substr(9, 16));
  const auto low = ParseHex(id.substr(25, 16));
  if (!epoch || !high || !low) return invalid();
  return HandleName{std::string(pipeline), HandleId{Epoch(static_cast<uint32_t>(*epoch)), *high, *low}};
}

}  // namespace penstock
