#include "server/http/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A bare connection, so that the tests can say what no well-behaved client says.
class Connection {
 public:
  explicit Connection(int port) : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    // Only so that a failure ends the test; no test waits for it.
    const timeval patience{.tv_sec = 60, .tv_usec = 0};
    ::setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  ~Connection() { ::close(descriptor_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool connected() const { return connected_; }

  void Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;  // the server may have closed already
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
  }

  // Everything until the server closes.
  std::string ReadAll() {
    std::string all;
    char buffer[4096];
    for (ssize_t got; (got = ::recv(descriptor_, buffer, sizeof(buffer), 0)) > 0;) {
      all.append(buffer, static_cast<size_t>(got));
    }
    return all;
  }

 private:
  const int descriptor_;
  bool connected_ = false;
};

std::string Ask(int port, std::string_view request) {
  Connection connection(port);
  EXPECT_TRUE(connection.connected());
  connection.Send(request);
  return connection.ReadAll();
}

std::string BodyOf(const std::string& answer) {
  const size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}

class HttpServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    HttpPages pages;
    pages.metrics_content_type = "text/plain; version=0.0.4; charset=utf-8";
    pages.metrics = [this] {
      if (throws_) throw std::runtime_error("secret");
      absl::MutexLock lock(&mu_);
      return metrics_;
    };
    pages.healthy = [] { return std::vector<HealthCondition>{{"stages", true, ""}}; };
    pages.ready = [this] { return std::vector<HealthCondition>{{"model", ready_.load(), "loading"}}; };
    auto server =
        HttpServer::Create("127.0.0.1:0", "metrics-listen",
                           [pages = std::move(pages)](const HttpRequest& request) { return Respond(pages, request); },
                           {.request_timeout_ms = 1000});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::string Get(std::string_view target) {
    return Ask(server_->port(), "GET " + std::string(target) + " HTTP/1.1\r\nHost: x\r\n\r\n");
  }

  void ExpectStillServes() { EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 OK\r\n")); }

  void SetMetrics(std::string metrics) {
    absl::MutexLock lock(&mu_);
    metrics_ = std::move(metrics);
  }

  absl::Mutex mu_;
  std::string metrics_ ABSL_GUARDED_BY(mu_) = "a 1\n";
  std::atomic<bool> ready_ = false;
  std::atomic<bool> throws_ = false;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, ServesMetricsWithTheFormatVersion) {
  const std::string answer = Get("/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Length: 4\r\n"));
  EXPECT_EQ(BodyOf(answer), "a 1\n");
}

TEST_F(HttpServerTest, SendsLargePagesWhole) {
  const std::string large(3 << 20, 'x');
  SetMetrics(large);
  EXPECT_EQ(BodyOf(Get("/metrics")), large);
}

TEST_F(HttpServerTest, APageThatThrowsIsAnIncidentAndTheNextOneIsServed) {
  throws_ = true;
  const std::string answer = Get("/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 500 Internal Server Error\r\n"));
  EXPECT_THAT(BodyOf(answer), HasSubstr("incident"));
  EXPECT_THAT(BodyOf(answer), Not(HasSubstr("secret")));
  throws_ = false;
  EXPECT_EQ(BodyOf(Get("/metrics")), "a 1\n");
}

TEST_F(HttpServerTest, ReadinessFollowsItsConditions) {
  EXPECT_THAT(Get("/readyz"), StartsWith("HTTP/1.1 503 "));
  EXPECT_EQ(BodyOf(Get("/readyz?verbose")), "model not ok: loading\n");
  ready_ = true;
  EXPECT_THAT(Get("/readyz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(BodyOf(Get("/readyz")), "model ok\n");
}

TEST_F(HttpServerTest, HeadAnswersAsGetWithoutTheBody) {
  const std::string answer = Ask(server_->port(), "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Length: 4\r\n"));
  EXPECT_EQ(BodyOf(answer), "");
}

TEST_F(HttpServerTest, OtherMethodsAreNotAllowed) {
  for (const std::string method : {"POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND"}) {
    const std::string answer =
        Ask(server_->port(), method +
                                 " /metrics HTTP/1.1\r\nHost: x\r\nOrigin: http://a\r\n"
                                 "Access-Control-Request-Method: GET\r\nContent-Length: 0\r\n\r\n");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 405 Method Not Allowed\r\n")) << method;
    EXPECT_THAT(answer, HasSubstr("\r\nAllow: GET, HEAD\r\n")) << method;
  }
}

TEST_F(HttpServerTest, OtherPathsAreNotFoundAndShowNoFiles) {
  for (std::string_view target : {"/", "/index.html", "/etc/passwd", "/../../etc/passwd", "/%2e%2e/etc/passwd",
                                  "/metrics/x", "//metrics", "/metrics%00", "/cgi-bin/x.cgi", "/x.lua"}) {
    const std::string answer = Get(target);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 4")) << target;
    EXPECT_THAT(answer, Not(HasSubstr("root:"))) << target;
  }
  ExpectStillServes();
}

TEST_F(HttpServerTest, GarbageIsRefusedAndTheNextRequestServed) {
  const std::vector<std::string> garbage = {
      "\r\n\r\n",
      "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
      "GET\r\n\r\n",
      "GET /metrics\r\n\r\n",
      "GET /metrics HTTP/9.9\r\n\r\n",
      "GET /metrics HTTP/1.1\r\nno colon here\r\n\r\n",
      "GET /metrics HTTP/1.1\r\n: empty name\r\n\r\n",
      std::string("GET /met\0rics HTTP/1.1\r\n\r\n", 26),
      "GET http://elsewhere/metrics HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET /metrics HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
      "GET /metrics HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
      "GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
      "GET /metrics HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
      "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
      "GET /metrics HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n",
  };
  for (const std::string& request : garbage) {
    const std::string answer = Ask(server_->port(), request);
    EXPECT_TRUE(answer.empty() || answer.starts_with("HTTP/")) << answer;
    ExpectStillServes();
  }
}

TEST_F(HttpServerTest, LongRequestLinesAndHeadersAreRefused) {
  for (size_t size : {size_t{9'000}, size_t{1} << 20}) {
    const std::string long_text(size, 'a');
    EXPECT_THAT(Get("/" + long_text), Not(StartsWith("HTTP/1.1 200"))) << size;
    EXPECT_THAT(Ask(server_->port(), "GET /metrics HTTP/1.1\r\nX: " + long_text + "\r\n\r\n"),
                Not(StartsWith("HTTP/1.1 200")))
        << size;
    ExpectStillServes();
  }
}

TEST_F(HttpServerTest, ManyHeadersAreAnswered) {
  std::string many = "GET /metrics HTTP/1.1\r\n";
  for (int i = 0; i < 500; ++i) many += "A: b\r\n";
  EXPECT_THAT(Ask(server_->port(), many + "\r\n"), StartsWith("HTTP/1.1 "));
  ExpectStillServes();
}

// More silent clients than workers: each is dropped after the time that a request may take, and the others are served.
TEST_F(HttpServerTest, SilentConnectionsDoNotStopOthers) {
  std::vector<std::unique_ptr<Connection>> silent;
  for (int i = 0; i < 5; ++i) {
    silent.push_back(std::make_unique<Connection>(server_->port()));
    ASSERT_TRUE(silent.back()->connected());
    if (i % 2 == 0) silent.back()->Send("GET /metrics HTTP/1.1\r\nX: ");
  }
  ExpectStillServes();
  for (auto& connection : silent) EXPECT_THAT(connection->ReadAll(), Not(HasSubstr("a 1\n")));
}

// More clients that ask for much and take nothing than workers: each loses its connection, and the others are served.
TEST_F(HttpServerTest, SlowReadersDoNotStopOthers) {
  SetMetrics(std::string(64 << 20, 'x'));  // more than the kernel takes in for a reader
  std::vector<std::unique_ptr<Connection>> slow;
  for (int i = 0; i < 5; ++i) {
    slow.push_back(std::make_unique<Connection>(server_->port()));
    ASSERT_TRUE(slow.back()->connected());
    slow.back()->Send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  ExpectStillServes();
}

TEST_F(HttpServerTest, ClientsThatVanishLeaveNoTrace) {
  for (int i = 0; i < 50; ++i) {
    Connection connection(server_->port());
    connection.Send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  ExpectStillServes();
}

TEST_F(HttpServerTest, AnswersManyClientsAtOnce) {
  std::atomic<int> good = 0;
  std::vector<std::unique_ptr<Thread>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<Thread>("client", [&] {
      for (int k = 0; k < 20; ++k) good += BodyOf(Get("/metrics")) == "a 1\n";
    }));
  }
  clients.clear();
  EXPECT_EQ(good, 160);
}

TEST_F(HttpServerTest, AnAddressInUseIsNamed) {
  const std::string address = "127.0.0.1:" + std::to_string(server_->port());
  const absl::Status status = HttpServer::Create(address, "metrics-listen", HttpHandler{}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(status), "LISTEN_FAILED");
  EXPECT_EQ(ValuesOf(status)["address"], address);
  EXPECT_THAT(std::string(status.message()), StartsWith("metrics-listen: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(address));
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::strerror(EADDRINUSE)));
  ExpectStillServes();
}

TEST_F(HttpServerTest, AnAddressOfAnotherMachineIsNamed) {
  const absl::Status status = HttpServer::Create("192.0.2.1:0", "metrics-listen", HttpHandler{}).status();
  EXPECT_EQ(ReasonOf(status), "LISTEN_FAILED");
  EXPECT_EQ(ValuesOf(status)["address"], "192.0.2.1:0");
}

TEST_F(HttpServerTest, ABadAddressIsNamedWithItsFlag) {
  const absl::Status status = HttpServer::Create("127.0.0.1", "metrics-listen", HttpHandler{}).status();
  EXPECT_EQ(ReasonOf(status), "FIELD_INVALID");
  EXPECT_EQ(ValuesOf(status)["field"], "metrics-listen");
}

TEST_F(HttpServerTest, ThePortIsFreeAfterwards) {
  const std::string address = server_->address().ToString();
  server_.reset();
  EXPECT_TRUE(HttpServer::Create(address, "metrics-listen", HttpHandler{}).ok());
}

// Answers "one", "two" in pieces.
HttpHandler Pieces() {
  return [](const HttpRequest&) {
    HttpResponse response;
    response.next = [left = std::vector<std::string>{"two", "", "one"}]() mutable -> std::optional<std::string> {
      if (left.empty()) return std::nullopt;
      std::string piece = left.back();
      left.pop_back();
      return piece;
    };
    return response;
  };
}

TEST_F(HttpServerTest, ABodyInPiecesSaysWhenItIsWhole) {
  const auto server = HttpServer::Create("127.0.0.1:0", "--admin-listen", Pieces());
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string answer = Ask((*server)->port(), "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(answer, HasSubstr("Transfer-Encoding: chunked\r\n"));
  EXPECT_THAT(answer, Not(HasSubstr("Content-Length")));
  EXPECT_EQ(BodyOf(answer), "3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n");
}

TEST_F(HttpServerTest, ABodyInPiecesEndsWithTheConnectionOfAnOldClient) {
  const auto server = HttpServer::Create("127.0.0.1:0", "--admin-listen", Pieces());
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(BodyOf(Ask((*server)->port(), "GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")), "onetwo");
}

}  // namespace
}  // namespace penstock
