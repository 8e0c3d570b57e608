#include "tests/bench/page_clients.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/clock.h"

namespace penstock::bench {
namespace {

std::string RequestFor(const std::string& target) {
  return absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
}

// A connection to this machine; -1 without one. `window_bytes` above 0 keeps what the kernel takes in for it small.
int Connect(int port, bool blocking, int window_bytes = 0) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | (blocking ? 0 : SOCK_NONBLOCK), 0);
  if (socket < 0) return -1;
  if (window_bytes > 0) ::setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &window_bytes, sizeof(window_bytes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int connected = ::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  if (connected == 0 || !blocking) return socket;
  ::close(socket);
  return -1;
}

void SendAll(int socket, const std::string& text) { (void)!::send(socket, text.data(), text.size(), MSG_NOSIGNAL); }

// Closes a connection that the other side has ended; returns whether it is still open.
bool StillOpen(int* socket, std::span<char> buffer) {
  const ssize_t got = ::recv(*socket, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got > 0 || (got < 0 && errno == EAGAIN)) return true;
  ::close(*socket);
  *socket = -1;
  return false;
}

void CloseAll(const std::vector<int>& sockets) {
  for (const int socket : sockets) {
    if (socket >= 0) ::close(socket);
  }
}

}  // namespace

void Repeater::Begin(double period_seconds, std::function<void()> body) {
  thread_ = std::make_unique<Thread>("client", [this, period_seconds, body = std::move(body)] {
    const auto period = static_cast<int64_t>(period_seconds * 1e9);
    int64_t next = RealClock()->NowNanos();
    while (true) {
      body();
      next = std::max(next + period, RealClock()->NowNanos());
      absl::MutexLock lock(&mu_);
      RealClock()->AwaitUntil(&mu_, absl::Condition(&stop_), next);
      if (stop_) return;
    }
  });
}

void Repeater::End() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.reset();
}

PageReader::PageReader(int port, std::string target, double period_seconds)
    : port_(port), request_(RequestFor(target)) {
  Begin(period_seconds, [this] {
    const int64_t begin = RealClock()->NowNanos();
    const int socket = Connect(port_, /*blocking=*/true);
    SendAll(socket, request_);
    std::array<char, 1 << 16> buffer;
    size_t bytes = 0;
    bool good = false;
    for (ssize_t got; socket >= 0 && (got = ::recv(socket, buffer.data(), buffer.size(), 0)) > 0;) {
      if (bytes == 0) good = std::string_view(buffer.data(), static_cast<size_t>(got)).starts_with("HTTP/1.1 200 ");
      bytes += static_cast<size_t>(got);
    }
    if (socket >= 0) ::close(socket);
    absl::MutexLock lock(&mu_);
    seconds_.push_back(static_cast<double>(RealClock()->NowNanos() - begin) * 1e-9);
    bytes_ = bytes;
    if (!good) ++failed_;
  });
}

std::vector<double> PageReader::seconds() const {
  absl::MutexLock lock(&mu_);
  return seconds_;
}

int64_t PageReader::failed() const {
  absl::MutexLock lock(&mu_);
  return failed_;
}

size_t PageReader::bytes() const {
  absl::MutexLock lock(&mu_);
  return bytes_;
}

SlowReaders::SlowReaders(int port, std::string target, int connections)
    : port_(port), request_(RequestFor(target)), sockets_(static_cast<size_t>(connections), -1) {
  Begin(0.1, [this] {
    std::array<char, 1> byte;
    for (int& socket : sockets_) {
      if (socket >= 0 && StillOpen(&socket, byte)) continue;
      constexpr int kSmallest = 1;
      socket = Connect(port_, /*blocking=*/true, kSmallest);
      if (socket >= 0) SendAll(socket, request_);
    }
  });
}

SlowReaders::~SlowReaders() {
  End();
  CloseAll(sockets_);
}

HalfOpenFlood::HalfOpenFlood(int port, int connections) : port_(port), sockets_(static_cast<size_t>(connections), -1) {
  Begin(1, [this] {
    std::array<char, 1024> buffer;
    for (size_t i = 0; i < sockets_.size(); ++i) {
      int& socket = sockets_[i];
      if (socket >= 0 && StillOpen(&socket, buffer)) continue;
      socket = Connect(port_, /*blocking=*/false);
      if (i % 2 == 0 && socket >= 0) SendAll(socket, "GET /sta");
    }
  });
}

HalfOpenFlood::~HalfOpenFlood() {
  End();
  CloseAll(sockets_);
}

}  // namespace penstock::bench
