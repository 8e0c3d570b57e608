#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <limits>
#include <string>

#include "absl/strings/numbers.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/tracing/span_sink.h"

// Stands before the C library's: the host "twice" has two addresses, both of this one.
extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo* hints, addrinfo** found) {
  static const auto look_up = reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (std::string(host) != "twice") return look_up(host, port, hints, found);
  const int answer = look_up("127.0.0.1", port, hints, found);
  return answer != 0 ? answer : look_up("127.0.0.1", port, hints, &(*found)->ai_next);
}

namespace penstock {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kSecond = 1'000'000'000;

// A listener on loopback. It answers its one caller with fixed text once the whole request is there, or with nothing.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer) : answer_(std::move(answer)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener_, 1), 0);
    socklen_t size = sizeof(address);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    if (!answer_.empty()) thread_ = std::make_unique<Thread>("answers", [this] { Serve(); });
  }
  ~OneAnswer() {
    thread_.reset();
    ::close(listener_);
  }
  int port() const { return port_; }
  std::string Request() {
    thread_.reset();
    return request_;
  }

 private:
  void Serve() {
    const int one = ::accept(listener_, nullptr, nullptr);
    char bytes[4096];
    while (!Whole()) {
      const ssize_t got = ::recv(one, bytes, sizeof(bytes), 0);
      if (got <= 0) break;
      request_.append(bytes, static_cast<size_t>(got));
    }
    EXPECT_EQ(::send(one, answer_.data(), answer_.size(), MSG_NOSIGNAL), static_cast<ssize_t>(answer_.size()));
    ::close(one);
  }
  bool Whole() const {
    const size_t head = request_.find("\r\n\r\n");
    const size_t length = request_.find("Content-Length: ");
    size_t bytes = 0;
    if (head == std::string::npos || length == std::string::npos) return false;
    const size_t begin = length + 16;
    return absl::SimpleAtoi(request_.substr(begin, request_.find('\r', begin) - begin), &bytes) &&
           request_.size() >= head + 4 + bytes;
  }

  const std::string answer_;
  const int listener_;
  int port_ = 0;
  std::string request_;
  std::unique_ptr<Thread> thread_;
};

absl::Status Post(int port, std::string_view json, int64_t timeout = 60 * kSecond,
                  int64_t give_up = std::numeric_limits<int64_t>::max()) {
  const auto sink = MakeCollectorSink({.host = "127.0.0.1", .port = port, .path = "/v1/traces"}, RealClock(), timeout);
  const std::atomic<int64_t> give_up_nanos = give_up;
  return sink->Send(json, give_up_nanos);
}

TEST(CollectorSinkTest, PostsTheBatchAsJson) {
  OneAnswer collector("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
  const std::string json = "{\"a\":\"" + std::string(300'000, 'x') + "\"}";
  const absl::Status sent = Post(collector.port(), json);
  EXPECT_TRUE(sent.ok()) << sent;
  const std::string request = collector.Request();
  EXPECT_THAT(request, StartsWith("POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1:"));
  EXPECT_THAT(request, HasSubstr("\r\nContent-Type: application/json\r\n"));
  EXPECT_THAT(request, EndsWith("\r\n\r\n" + json));
}

TEST(CollectorSinkTest, ARefusalIsToldWithItsStatus) {
  OneAnswer collector("HTTP/1.1 503 Service Unavailable\r\n\r\n");
  EXPECT_THAT(std::string(Post(collector.port(), "{}").message()), HasSubstr("503 Service Unavailable"));
}

TEST(CollectorSinkTest, WhatMayHaveArrivedIsNotSentToAnotherAddress) {
  OneAnswer collector("HTTP/1.1 503 Service Unavailable\r\n\r\n");
  const auto sink =
      MakeCollectorSink({.host = "twice", .port = collector.port(), .path = "/v1/traces"}, RealClock(), 60 * kSecond);
  const std::atomic<int64_t> give_up_nanos = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(std::string(sink->Send("{}", give_up_nanos).message()), HasSubstr("503 Service Unavailable"));
}

TEST(CollectorSinkTest, SomethingElseThanHttpIsNoCollector) {
  OneAnswer collector("SSH-2.0-something\r\n");
  EXPECT_FALSE(Post(collector.port(), "{}").ok());
}

TEST(CollectorSinkTest, OneThatHangsIsLeftAtTheTimeout) {
  OneAnswer collector("");
  EXPECT_THAT(std::string(Post(collector.port(), "{}", kSecond / 50).message()), HasSubstr("in time"));
}

TEST(CollectorSinkTest, OneThatHangsIsLeftWhenItsUserGivesUp) {
  OneAnswer collector("");
  EXPECT_THAT(std::string(Post(collector.port(), "{}", 600 * kSecond, RealClock()->NowNanos()).message()),
              HasSubstr("in time"));
}

TEST(CollectorSinkTest, OneThatIsNotThereIsAnError) {
  int port = 0;
  {
    OneAnswer collector("");
    port = collector.port();
  }
  EXPECT_THAT(std::string(Post(port, "{}").message()), HasSubstr("connect"));
}

TEST(CollectorAddressTest, PortAndPathHaveDefaults) {
  const auto plain = ParseCollectorAddress("http://collector", "--otlp-endpoint");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->host, "collector");
  EXPECT_EQ(plain->port, 4318);
  EXPECT_EQ(plain->path, "/v1/traces");
  const auto whole = ParseCollectorAddress("http://[::1]:80/otlp/v1/traces", "--otlp-endpoint");
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->host, "::1");
  EXPECT_EQ(whole->port, 80);
  EXPECT_EQ(whole->path, "/otlp/v1/traces");
}

TEST(CollectorAddressTest, WhatCanNotBeReadIsNamed) {
  for (const char* text :
       {"", "collector:4318", "https://collector", "ftp://x", "http://", "http://:4318", "http://x:0", "http://x:65536",
        "http://x:y", "http://[::1", "http://x/a b", "http://me@x/", "http://x:1:2"}) {
    const auto address = ParseCollectorAddress(text, "--otlp-endpoint");
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_THAT(std::string(address.status().message()), StartsWith("--otlp-endpoint: ")) << text;
  }
}

}  // namespace
}  // namespace penstock
