#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <civetweb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/log.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread.h"

namespace penstock {
namespace {

// Opens a connection and drops it.
void Knock(const ListenAddress& address) {
  const int descriptor = ::socket(address.is_ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) return;
  if (address.is_ipv6) {
    sockaddr_in6 to{};
    to.sin6_family = AF_INET6;
    to.sin6_port = htons(static_cast<uint16_t>(address.port));
    ::inet_pton(AF_INET6, address.host.c_str(), &to.sin6_addr);
    (void)::connect(descriptor, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  } else {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(address.port));
    ::inet_pton(AF_INET, address.host.c_str(), &to.sin_addr);
    (void)::connect(descriptor, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  }
  ::close(descriptor);
}

// Stops at the first piece that its client does not take in time.
void SendPieces(mg_connection* connection, const HttpResponse& response, bool chunked) {
  while (const std::optional<std::string> piece = response.next()) {
    if (piece->empty()) continue;  // an empty chunk is the end
    const int sent = chunked ? mg_send_chunk(connection, piece->data(), static_cast<unsigned>(piece->size()))
                             : mg_write(connection, piece->data(), piece->size());
    if (sent <= 0 || (!chunked && static_cast<size_t>(sent) != piece->size())) return;
  }
  if (chunked) mg_send_chunk(connection, "", 0);
}

}  // namespace

// The only code that names civetweb: one context of the library and the handler that it serves.
class HttpServer::Library {
 public:
  explicit Library(HttpHandler handler) : handler_(std::move(handler)) {}
  ~Library() {
    if (context_ != nullptr) Stop();
  }

  absl::Status Start(const ListenAddress& address, std::string_view field, const Options& options);

  // With the port that the kernel chose.
  const ListenAddress& address() const { return address_; }

 private:
  void Stop();

  static int OnRequest(mg_connection* connection);
  static int Serve(mg_connection* connection);  // the status
  static int OnMessage(const mg_connection* connection, const char* message);
  static void* OnThreadStart(const mg_context* context, int thread_type);

  const HttpHandler handler_;
  ListenAddress address_;          // set by Start()
  mg_context* context_ = nullptr;  // set by Start()

  absl::Mutex mu_;
  bool starting_ ABSL_GUARDED_BY(mu_) = true;
  std::string start_problem_ ABSL_GUARDED_BY(mu_);  // the library's first words while it started: why
};

absl::Status HttpServer::Library::Start(const ListenAddress& address, std::string_view field, const Options& options) {
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
      // Paths are compared as they are sent: none of ours needs decoding, and a decoded zero byte would end one early.
      "decode_url", "no",
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
                 absl::StrCat(std::string(field), ": can't listen there: ", problem, ", got ", port))
        .With("field", std::string(field))
        .With("address", port);
  }
  address_ = address;
  mg_server_port bound{};
  if (mg_get_server_ports(context_, 1, &bound) == 1) address_.port = bound.port;
  return absl::OkStatus();
}

void HttpServer::Library::Stop() {
  // The library sees that it shall stop when its wait for connections ends, up to two seconds later. A connection ends
  // the wait, so knock until it has stopped.
  absl::Mutex mu;
  bool stopped = false;
  Thread knocker("ps-http-stop", [&] {
    constexpr int64_t kPauseNanos = 5'000'000;
    absl::MutexLock lock(&mu);
    while (!stopped) {
      Knock(address_);
      RealClock()->AwaitUntil(&mu, absl::Condition(&stopped), RealClock()->NowNanos() + kPauseNanos);
    }
  });
  mg_stop(context_);
  absl::MutexLock lock(&mu);
  stopped = true;
}

// The library's threads have stacks of 100 KiB, of which pages take more than half: each request gets a thread of the
// usual size.
int HttpServer::Library::OnRequest(mg_connection* connection) {
  int status = 500;
  Guarded("a page", [&] { Thread("ps-http-page", [&] { status = Serve(connection); }); }).IgnoreError();
  return status;
}

int HttpServer::Library::Serve(mg_connection* connection) {
  const mg_request_info* info = mg_get_request_info(connection);
  const auto* library = static_cast<const Library*>(info->user_data);
  const auto view = [](const char* text) { return std::string_view(text == nullptr ? "" : text); };
  const HttpRequest request{.method = view(info->request_method),
                            .path = view(info->local_uri_raw),
                            .query = view(info->query_string),
                            .host = view(mg_get_header(connection, "Host")),
                            .accept = view(mg_get_header(connection, "Accept")),
                            .origin = view(mg_get_header(connection, "Origin")),
                            .fetch_site = view(mg_get_header(connection, "Sec-Fetch-Site")),
                            .change = view(mg_get_header(connection, "X-Penstock-Change"))};
  HttpResponse response;
  if (absl::Status failed = Guarded("a page", [&] { response = library->handler_(request); }); !failed.ok()) {
    response = PlainAnswer(500, std::string(failed.message()));
  }

  std::string head =
      absl::StrCat("HTTP/1.1 ", response.status, " ", std::string(StatusText(response.status)),
                   "\r\nContent-Type: ", response.content_type, "\r\nCache-Control: no-store\r\nConnection: close\r\n");
  // A body of unknown length ends with the connection; a client of HTTP/1.1 needs to see that it is complete.
  const bool chunked = response.next != nullptr && view(info->http_version) == "1.1";
  if (response.next == nullptr) absl::StrAppend(&head, "Content-Length: ", response.body.size(), "\r\n");
  if (chunked) head += "Transfer-Encoding: chunked\r\n";
  for (const auto& [name, value] : response.headers) absl::StrAppend(&head, name, ": ", value, "\r\n");
  head += "\r\n";
  mg_write(connection, head.data(), head.size());
  if (request.method == "HEAD") return response.status;
  if (response.next == nullptr) {
    mg_write(connection, response.body.data(), response.body.size());
  } else {
    // Without its last chunk the client knows that the page is not whole.
    Guarded("a page", [&] { SendPieces(connection, response, chunked); }).IgnoreError();
  }
  return response.status;
}

int HttpServer::Library::OnMessage(const mg_connection* connection, const char* message) {
  constexpr int kHandled = 1;  // the library need not write it anywhere
  if (connection == nullptr) return kHandled;
  auto* library = static_cast<Library*>(mg_get_user_data(mg_get_context(connection)));
  if (library == nullptr) return kHandled;
  {
    absl::MutexLock lock(&library->mu_);
    if (library->starting_ && library->start_problem_.empty()) library->start_problem_ = message;
  }
  // Clients cause most of these, so they are not warnings.
  Log(LogLevel::kDebug, "http listener", {{"problem", message}});
  return kHandled;
}

void* HttpServer::Library::OnThreadStart(const mg_context*, int) {
  pthread_setname_np(pthread_self(), "ps-http");
  return nullptr;
}

HttpServer::HttpServer(std::unique_ptr<Library> library) : address_(library->address()), library_(std::move(library)) {}

HttpServer::~HttpServer() = default;

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Create(std::string_view address, std::string_view field,
                                                               HttpHandler handler, const Options& options) {
  PENSTOCK_ASSIGN_OR_RETURN(const ListenAddress parsed, ParseListenAddress(address, field));
  auto library = std::make_unique<Library>(std::move(handler));
  PENSTOCK_RETURN_IF_ERROR(library->Start(parsed, field, options));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(library)));
}

}  // namespace penstock
