#pragma once

// The listener of pages.

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/http/http_page.h"
#include "server/http/listen_address.h"

namespace penstock {

// Serves what a handler returns over plain HTTP until it is destroyed.
//
// Owns:      the listening socket and its worker threads (ps-http), which give each request a thread of its own
//            (ps-http-page).
// Threads:   the handler runs on the workers, several at once.
// Lifecycle: listens from Create() on; the destructor waits for requests in progress.
// Units:     a client has `request_timeout_ms` to send its request; a request above 8 KiB is refused. Each connection
//            serves one request, so that an idle client holds no worker, and as long for each part of the answer.
// Fails:     INVALID_ARGUMENT / FIELD_INVALID for an address that can't be read, FAILED_PRECONDITION / LISTEN_FAILED
//            for one that can't be bound; both name it.
class HttpServer {
 public:
  struct Options {
    int threads = 16;  // so that some clients that send nothing do not keep a probe waiting
    int request_timeout_ms = 2000;
  };

  // `field` is the name of the flag that holds the address, for errors.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Create(std::string_view address, std::string_view field,
                                                            HttpHandler handler, const Options& options);
  static absl::StatusOr<std::unique_ptr<HttpServer>> Create(std::string_view address, std::string_view field,
                                                            HttpHandler handler) {
    return Create(address, field, std::move(handler), Options{});
  }
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Where it listens, with the port that the kernel chose if 0 was asked for.
  const ListenAddress& address() const { return address_; }
  int port() const { return address_.port; }

 private:
  class Library;

  explicit HttpServer(std::unique_ptr<Library> library);

  const ListenAddress address_;
  std::unique_ptr<Library> library_;
};

}  // namespace penstock
