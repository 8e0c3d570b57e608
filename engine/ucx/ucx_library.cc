#include "engine/ucx/ucx_library.h"

#include <dlfcn.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

absl::Status Unusable(const std::string& why) {
  return Error(
      absl::StatusCode::kFailedPrecondition, "FEATURE_DISABLED",
      absl::StrCat("UCX can't be loaded: ", why, "; install it (Debian's libucx0), or use --peer-transport grpc"));
}

absl::StatusOr<void*> Open(const std::string& name) {
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* const complaint = dlerror();
  return Unusable(complaint == nullptr ? absl::StrCat(name, " can't be opened") : complaint);
}

// Finds functions of one library, and remembers the first that is missing.
class Finder {
 public:
  Finder(void* library, std::string name) : library_(library), name_(std::move(name)) {}

  template <typename Function>
  void Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library_, name));
    if (*function == nullptr && status_.ok()) status_ = Unusable(absl::StrCat(name_, " has no ", name));
  }
  const absl::Status& status() const { return status_; }

 private:
  void* const library_;
  const std::string name_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<UcxLibrary> OpenUcxLibrary(const UcxLibraryNames& names) {
  PENSTOCK_ASSIGN_OR_RETURN(void* const ucp_library, Open(names.ucp));
  PENSTOCK_ASSIGN_OR_RETURN(void* const ucs_library, Open(names.ucs));
  UcxLibrary found;
  Finder ucp(ucp_library, names.ucp);
  ucp.Find("ucp_am_recv_data_nbx", &found.ucp_am_recv_data_nbx);
  ucp.Find("ucp_am_send_nbx", &found.ucp_am_send_nbx);
  ucp.Find("ucp_cleanup", &found.ucp_cleanup);
  ucp.Find("ucp_config_read", &found.ucp_config_read);
  ucp.Find("ucp_config_release", &found.ucp_config_release);
  ucp.Find("ucp_ep_close_nbx", &found.ucp_ep_close_nbx);
  ucp.Find("ucp_ep_create", &found.ucp_ep_create);
  ucp.Find("ucp_ep_flush_nbx", &found.ucp_ep_flush_nbx);
  ucp.Find("ucp_init_version", &found.ucp_init_version);
  ucp.Find("ucp_request_check_status", &found.ucp_request_check_status);
  ucp.Find("ucp_request_free", &found.ucp_request_free);
  ucp.Find("ucp_worker_arm", &found.ucp_worker_arm);
  ucp.Find("ucp_worker_create", &found.ucp_worker_create);
  ucp.Find("ucp_worker_destroy", &found.ucp_worker_destroy);
  ucp.Find("ucp_worker_get_efd", &found.ucp_worker_get_efd);
  ucp.Find("ucp_worker_progress", &found.ucp_worker_progress);
  ucp.Find("ucp_worker_query", &found.ucp_worker_query);
  ucp.Find("ucp_worker_release_address", &found.ucp_worker_release_address);
  ucp.Find("ucp_worker_set_am_recv_handler", &found.ucp_worker_set_am_recv_handler);
  PENSTOCK_RETURN_IF_ERROR(ucp.status());
  Finder ucs(ucs_library, names.ucs);
  ucs.Find("ucs_status_string", &found.ucs_status_string);
  PENSTOCK_RETURN_IF_ERROR(ucs.status());
  return found;
}

absl::StatusOr<const UcxLibrary*> LoadUcxLibrary() {
  static const absl::StatusOr<UcxLibrary> library = OpenUcxLibrary({});
  if (!library.ok()) return library.status();
  return &*library;
}

}  // namespace penstock
