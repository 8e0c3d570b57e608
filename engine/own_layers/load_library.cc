#include "engine/own_layers/load_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/read_to_end.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"
#include "engine/model/layer_registry.h"
#include "engine/own_layers/layer_library.h"

namespace penstock {
namespace {

constexpr char kEntry[] = "penstock_layer_library";
constexpr size_t kMaxKindBytes = 64;
constexpr size_t kMaxBuildBytes = 200;
constexpr int64_t kMaxFileBytes = int64_t{4} << 30;

using Registration = void (*)(LayerKindList&);

absl::Status Refused(const std::string& file, const std::string& problem) {
  return InvalidField("--layer-library", problem, file);
}

// The file's bytes tell what it was built for. To load it first would run its constructors, and the linker would report
// a symbol where the versions are what matters.
absl::Status CheckBuild(const std::string& file) {
  std::error_code none;
  if (std::filesystem::exists(file, none) && !std::filesystem::is_regular_file(file, none)) {
    return Refused(file, "must name a regular file");  // a pipe may have no writer
  }
  const absl::StatusOr<std::string> bytes = ReadToEnd(file, kMaxFileBytes);
  if (!bytes.ok()) {
    return Refused(file, absl::StrCat("must name a file that can be read (", bytes.status().message(), ")"));
  }
  if (!absl::StartsWith(*bytes,
                        "\x7f"
                        "ELF"))
    return Refused(file, "is not a shared object");
  const size_t mark = bytes->find(PENSTOCK_LAYER_LIBRARY_MARK);
  if (mark == std::string::npos) {
    return Refused(file, "is not a library of layers: it has no PENSTOCK_LAYER_LIBRARY");
  }
  const std::string_view rest = std::string_view(*bytes).substr(mark + sizeof(PENSTOCK_LAYER_LIBRARY_MARK) - 1);
  const std::string_view build = rest.substr(0, std::min(rest.find('\0'), kMaxBuildBytes));
  if (build == PENSTOCK_LAYER_LIBRARY_BUILD) return absl::OkStatus();
  return Refused(file, absl::StrCat("was built for ", CleanFirstLine(build),
                                    ", but this daemon is of " PENSTOCK_LAYER_LIBRARY_BUILD));
}

absl::StatusOr<Registration> Open(const std::string& file) {
  // The path has a slash, so that the linker looks nowhere else. Never closed: layers keep pointers into it.
  void* const library = dlopen(std::filesystem::absolute(file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Refused(file, absl::StrCat("can't be loaded (", CleanFirstLine(dlerror()), ")"));
  void* const entry = dlsym(library, kEntry);
  if (entry == nullptr) return Refused(file, absl::StrCat("is not a library of layers: it has no symbol ", kEntry));
  return reinterpret_cast<Registration>(entry);
}

bool IsKindName(const std::string& name) {
  const auto fits = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_'; };
  return !name.empty() && name.size() <= kMaxKindBytes && absl::ascii_islower(name[0]) &&
         std::all_of(name.begin(), name.end(), fits);
}

absl::Status Load(const std::string& file) {
  PENSTOCK_RETURN_IF_ERROR(CheckBuild(file));
  PENSTOCK_ASSIGN_OR_RETURN(const Registration registration, Open(file));
  LayerKindList list;
  if (const absl::Status ran = RunTorch([&] { registration(list); }); !ran.ok()) {
    return Refused(file, absl::StrCat("fails when it registers its kinds (", ran.message(), ")"));
  }
  if (list.kinds().empty()) return Refused(file, "registers no kind");
  std::vector<std::string> names;
  for (const LayerKindList::Kind& kind : list.kinds()) {
    if (!IsKindName(kind.name) || kind.factory == nullptr) {
      return Refused(file, absl::StrCat("registers kind '", CleanFirstLine(kind.name),
                                        "', which needs a factory and a name of 1 to ", kMaxKindBytes,
                                        " lower-case letters, digits and _, a letter first"));
    }
    const std::string library = std::filesystem::path(file).filename();
    if (!RegisterLayerKind(kind.name, kind.factory, library).ok()) {
      return Refused(file, absl::StrCat("registers kind ", kind.name, ", which is known already"));
    }
    names.push_back(kind.name);
  }
  LogInfo("loaded a library of layers", {{"path", file}, {"kinds", absl::StrJoin(names, ", ")}});
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadLayerLibraries(const std::vector<std::string>& files) {
  for (const std::string& file : files) PENSTOCK_RETURN_IF_ERROR(Load(file));
  return absl::OkStatus();
}

}  // namespace penstock
