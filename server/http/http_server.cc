#include "server/http/http_server.h"

#include <civetweb.h>
#include <pthread.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"

namespace penstock {

// The only code that names civetweb: one context of the library and the pages that it serves.
class HttpServer::Library {
 public:
  explicit Library(HttpPages pages) : pages_(std::move(pages)) {}
  ~Library() {
    if (context_ != nullptr) mg_stop(context_);
  }

  absl::Status Start(const ListenAddress& address, const Options& options);

  // The port of the only socket.
  int port() const {
    mg_server_port port{};
    return mg_get_server_ports(context_, 1, &port) == 1 ? port.port : 0;
  }

 private:
  static int OnRequest(mg_connection* connection);
  static int OnMessage(const mg_connection* connection, const char* message);
  static void* OnThreadStart(const mg_context* context, int thread_type);

  const HttpPages pages_;
  mg_context* context_ = nullptr;  // set by Start()

  absl::Mutex mu_;
  bool starting_ ABSL_GUARDED_BY(mu_) = true;
  std::string start_problem_ ABSL_GUARDED_BY(mu_);  // the library's last words while it started
};

absl::Status HttpServer::Library::Start(const ListenAddress& address, const Options& options) {
  static const unsigned features = mg_init_library(MG_FEATURES_DEFAULT);
  (void)features;
  const std::string port = address.ToString();
  const std::string threads = absl::StrCat(options.threads);
  const std::string timeout = absl::StrCat(options.request_timeout_ms);
  const char* const settings[] = {
      "listening_ports", port.c_str(), "num_threads", threads.c_str(), "request_timeout_ms", timeout.c_str(),
      // One request per connection: an idle connection would hold a worker.
      "enable_keep_alive", "no",
      // Connections that wait for a worker; more wait in the kernel.
      "connection_queue", "64", "max_request_size", "8192", "enable_directory_listing", "no",
      // Without these the library answers preflight requests by itself.
      "access_control_allow_origin", "", "access_control_allow_methods", "", nullptr};
  mg_callbacks callbacks{};
  callbacks.begin_request = &Library::OnRequest;
  callbacks.log_message = &Library::OnMessage;
  callbacks.init_thread = &Library::OnThreadStart;

  context_ = mg_start(&callbacks, this, const_cast<const char**>(settings));
  absl::MutexLock lock(&mu_);
  starting_ = false;
  if (context_ == nullptr) {
    const std::string problem = start_problem_.empty() ? "the listener did not start" : start_problem_;
    return Error(absl::StatusCode::kFailedPrecondition, "LISTEN_FAILED",
                 absl::StrCat("can't listen on ", port, ": ", problem))
        .With("address", port);
  }
  return absl::OkStatus();
}

int HttpServer::Library::OnRequest(mg_connection* connection) {
  const mg_request_info* info = mg_get_request_info(connection);
  const auto* library = static_cast<const Library*>(info->user_data);
  const auto view = [](const char* text) { return std::string_view(text == nullptr ? "" : text); };
  const HttpRequest request{view(info->request_method), view(info->local_uri), view(info->query_string)};
  const HttpResponse response = Respond(library->pages_, request);

  std::string head =
      absl::StrCat("HTTP/1.1 ", response.status, " ", std::string(StatusText(response.status)),
                   "\r\nContent-Type: ", response.content_type, "\r\nContent-Length: ", response.body.size(),
                   "\r\nCache-Control: no-store\r\nConnection: close\r\n");
  if (response.status == 405) head += "Allow: GET, HEAD\r\n";
  head += "\r\n";
  mg_write(connection, head.data(), head.size());
  if (request.method != "HEAD") mg_write(connection, response.body.data(), response.body.size());
  return response.status;
}

int HttpServer::Library::OnMessage(const mg_connection* connection, const char* message) {
  constexpr int kHandled = 1;  // the library need not write it anywhere
  if (connection == nullptr) return kHandled;
  auto* library = static_cast<Library*>(mg_get_user_data(mg_get_context(connection)));
  if (library == nullptr) return kHandled;
  {
    absl::MutexLock lock(&library->mu_);
    if (library->starting_) library->start_problem_ = message;
  }
  // Clients cause most of these, so they are not warnings.
  Log(LogLevel::kDebug, "http listener", {{"problem", message}});
  return kHandled;
}

void* HttpServer::Library::OnThreadStart(const mg_context*, int) {
  pthread_setname_np(pthread_self(), "ps-http");
  return nullptr;
}

HttpServer::HttpServer(ListenAddress address, std::unique_ptr<Library> library)
    : address_(std::move(address)), library_(std::move(library)) {}

HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Create(std::string_view address, std::string_view field,
                                                               HttpPages pages, const Options& options) {
  PENSTOCK_ASSIGN_OR_RETURN(ListenAddress parsed, ParseListenAddress(address, field));
  auto library = std::make_unique<Library>(std::move(pages));
  PENSTOCK_RETURN_IF_ERROR(library->Start(parsed, options));
  parsed.port = library->port();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(parsed), std::move(library)));
}

}  // namespace penstock
