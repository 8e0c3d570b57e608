// One HTTP/1.1 POST per batch, over plain sockets: no library that is linked can bound and cut short every wait of a
// client.

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "server/tracing/span_sink.h"

namespace penstock {
namespace {

constexpr int kDefaultPort = 4318;
constexpr int64_t kNanosPerMilli = 1'000'000;
// A wait is cut into such pieces: a deadline that comes nearer is seen at the end of one.
constexpr int64_t kPieceMillis = 50;
constexpr size_t kMaxStatusBytes = 4096;

absl::Status Failed(std::string_view what, const std::string& why) {
  return absl::UnavailableError(absl::StrCat(absl::string_view(what.data(), what.size()), ": ", why));
}

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return descriptor_; }

 private:
  const int descriptor_;
};

class CollectorSink final : public SpanSink {
 public:
  CollectorSink(CollectorAddress address, Clock* clock, int64_t timeout_nanos)
      : address_(std::move(address)), clock_(clock), timeout_nanos_(timeout_nanos) {}

  absl::Status Send(std::string_view json, const std::atomic<int64_t>& give_up_nanos) override {
    const Wait wait{clock_, clock_->NowNanos() + timeout_nanos_, &give_up_nanos};
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int answer = ::getaddrinfo(address_.host.c_str(), absl::StrCat(address_.port).c_str(), &hints, &found);
    if (answer != 0) return Failed("look up", ::gai_strerror(answer));
    absl::Status status = Failed("look up", "no address");
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      const Socket socket(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (socket.get() < 0) {
        status = Failed("socket", std::strerror(errno));
        continue;
      }
      status = Connect(socket.get(), *one, wait);
      if (!status.ok()) continue;
      status = Post(socket.get(), json, wait);
      break;  // what may have arrived is not sent again
    }
    ::freeaddrinfo(found);
    return status;
  }

 private:
  // Waits for a socket, no longer than both deadlines allow.
  struct Wait {
    Clock* clock;
    int64_t deadline_nanos;
    const std::atomic<int64_t>* give_up_nanos;

    absl::Status For(int descriptor, int16_t events, const char* what) const {
      while (true) {
        const int64_t left = std::min(deadline_nanos, give_up_nanos->load()) - clock->NowNanos();
        if (left <= 0) return Failed(what, "no answer in time");
        pollfd one{.fd = descriptor, .events = events, .revents = 0};
        const int64_t piece = std::clamp<int64_t>(left / kNanosPerMilli, 1, kPieceMillis);
        if (::poll(&one, 1, static_cast<int>(piece)) > 0) return absl::OkStatus();
      }
    }
  };

  static absl::Status Connect(int descriptor, const addrinfo& to, const Wait& wait) {
    if (::connect(descriptor, to.ai_addr, to.ai_addrlen) == 0) return absl::OkStatus();
    if (errno != EINPROGRESS) return Failed("connect", std::strerror(errno));
    if (absl::Status ready = wait.For(descriptor, POLLOUT, "connect"); !ready.ok()) return ready;
    int problem = 0;
    socklen_t size = sizeof(problem);
    ::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &problem, &size);
    return problem == 0 ? absl::OkStatus() : Failed("connect", std::strerror(problem));
  }

  absl::Status Post(int descriptor, std::string_view json, const Wait& wait) const {
    const bool is_ipv6 = address_.host.find(':') != std::string::npos;
    std::string message = absl::StrCat("POST ", address_.path, " HTTP/1.1\r\nHost: ", is_ipv6 ? "[" : "", address_.host,
                                       is_ipv6 ? "]" : "", ":", address_.port,
                                       "\r\nContent-Type: application/json\r\nContent-Length: ", json.size(),
                                       "\r\nConnection: close\r\n\r\n");
    message += json;
    for (size_t done = 0; done < message.size();) {
      const ssize_t sent = ::send(descriptor, message.data() + done, message.size() - done, MSG_NOSIGNAL);
      if (sent > 0) {
        done += static_cast<size_t>(sent);
      } else if (errno == EAGAIN) {
        if (absl::Status ready = wait.For(descriptor, POLLOUT, "send"); !ready.ok()) return ready;
      } else if (errno != EINTR) {
        return Failed("send", std::strerror(errno));
      }
    }
    return ReadStatus(descriptor, wait);
  }

  static absl::Status ReadStatus(int descriptor, const Wait& wait) {
    std::string line;
    while (line.find('\n') == std::string::npos && line.size() < kMaxStatusBytes) {
      char bytes[512];
      const ssize_t got = ::recv(descriptor, bytes, sizeof(bytes), 0);
      if (got > 0) {
        line.append(bytes, static_cast<size_t>(got));
      } else if (got == 0) {
        break;
      } else if (errno == EAGAIN) {
        if (absl::Status ready = wait.For(descriptor, POLLIN, "answer"); !ready.ok()) return ready;
      } else if (errno != EINTR) {
        return Failed("answer", std::strerror(errno));
      }
    }
    line.resize(std::min(line.size(), line.find_first_of("\r\n")));
    const size_t blank = line.find(' ');
    const bool is_http = absl::StartsWith(line, "HTTP/1.") && blank != std::string::npos;
    if (is_http && absl::StartsWith(line.substr(blank + 1), "2")) return absl::OkStatus();
    return Failed("answer", line.empty() ? "none" : line.substr(0, 120));
  }

  const CollectorAddress address_;
  Clock* const clock_;
  const int64_t timeout_nanos_;
};

}  // namespace

absl::StatusOr<CollectorAddress> ParseCollectorAddress(std::string_view text, std::string_view field) {
  constexpr std::string_view kScheme = "http://";
  const auto wrong = [&](std::string_view problem) { return InvalidField(field, problem, text); };
  if (text.substr(0, 8) == "https://")
    return wrong("must be plain http://: spans go to a collector on this host or net");
  if (text.substr(0, kScheme.size()) != kScheme) return wrong("must be http://HOST[:PORT][/PATH]");
  for (const char c : text) {
    if (c <= ' ' || c == 0x7F || c == '@') return wrong("must be http://HOST[:PORT][/PATH], without blanks and users");
  }
  const std::string_view rest = text.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view host = rest.substr(0, slash);
  CollectorAddress address{.host = "", .port = kDefaultPort, .path = std::string(rest.substr(slash))};
  if (address.path.empty() || address.path == "/") address.path = "/v1/traces";
  std::string_view port;
  if (!host.empty() && host.front() == '[') {
    const size_t end = host.find(']');
    if (end == std::string_view::npos) return wrong("must close the bracket of its address");
    port = host.substr(end + 1);
    host = host.substr(1, end - 1);
  } else if (const size_t colon = host.find(':'); colon != std::string_view::npos) {
    port = host.substr(colon);
    host = host.substr(0, colon);
  }
  if (host.empty()) return wrong("must name a host");
  if (!port.empty()) {
    const bool number = port.front() == ':' && absl::SimpleAtoi(std::string(port.substr(1)), &address.port);
    if (!number || address.port < 1 || address.port > 65535) return wrong("must have a port from 1 to 65535");
  }
  address.host = std::string(host);
  return address;
}

std::unique_ptr<SpanSink> MakeCollectorSink(CollectorAddress address, Clock* clock, int64_t timeout_nanos) {
  return std::make_unique<CollectorSink>(std::move(address), clock, timeout_nanos);
}

}  // namespace penstock
