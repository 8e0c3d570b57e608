#pragma once

#include <ucp/api/ucp.h>

#include <string>

#include "absl/status/statusor.h"

namespace penstock {

// The functions of UCX that this room calls, under their own names. They are found at run time, as a process that merely
// links UCX gets its signal handlers and memory hooks, and has its environment read, before main() begins.
struct UcxLibrary {
  decltype(&::ucp_am_recv_data_nbx) ucp_am_recv_data_nbx = nullptr;
  decltype(&::ucp_am_send_nbx) ucp_am_send_nbx = nullptr;
  decltype(&::ucp_cleanup) ucp_cleanup = nullptr;
  decltype(&::ucp_config_read) ucp_config_read = nullptr;
  decltype(&::ucp_config_release) ucp_config_release = nullptr;
  decltype(&::ucp_ep_close_nbx) ucp_ep_close_nbx = nullptr;
  decltype(&::ucp_ep_create) ucp_ep_create = nullptr;
  decltype(&::ucp_ep_flush_nbx) ucp_ep_flush_nbx = nullptr;
  decltype(&::ucp_init_version) ucp_init_version = nullptr;  // what ucp_init() of the header calls
  decltype(&::ucp_request_check_status) ucp_request_check_status = nullptr;
  decltype(&::ucp_request_free) ucp_request_free = nullptr;
  decltype(&::ucp_worker_arm) ucp_worker_arm = nullptr;
  decltype(&::ucp_worker_create) ucp_worker_create = nullptr;
  decltype(&::ucp_worker_destroy) ucp_worker_destroy = nullptr;
  decltype(&::ucp_worker_get_efd) ucp_worker_get_efd = nullptr;
  decltype(&::ucp_worker_progress) ucp_worker_progress = nullptr;
  decltype(&::ucp_worker_query) ucp_worker_query = nullptr;
  decltype(&::ucp_worker_release_address) ucp_worker_release_address = nullptr;
  decltype(&::ucp_worker_set_am_recv_handler) ucp_worker_set_am_recv_handler = nullptr;
  decltype(&::ucs_status_string) ucs_status_string = nullptr;
};

// Names for the dynamic linker.
struct UcxLibraryNames {
  std::string ucp = "libucp.so.0";
  std::string ucs = "libucs.so.0";
};

// Opens the libraries, for good: UCX can't be unloaded.
//
// Fails:     FAILED_PRECONDITION / FEATURE_DISABLED, saying what is missing and what to do.
absl::StatusOr<UcxLibrary> OpenUcxLibrary(const UcxLibraryNames& names);

// The UCX of this process, opened by the first call; what that one found is what all find. From any thread.
absl::StatusOr<const UcxLibrary*> LoadUcxLibrary();

}  // namespace penstock
