// Streams of those who are no carrier, and what a carrier makes of them.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/server_builder.h"
#include "penstock/peer/v1/transfer_service.grpc.pb.h"
#include "tests/contract/carrier/carrier_end.h"
#include "tests/contract/carrier/grpc_carrier_factory.h"
#include "tests/support/fake_clock.h"

namespace penstock::testing {
namespace {

using Request = peer::v1::TransferRequest;

Request Hello(int rank, const std::string& key = kGroupKey) {
  Request request;
  request.mutable_hello()->set_rank(rank);
  request.mutable_hello()->set_key(key);
  return request;
}
Request FrameOf(int64_t payload_bytes, const std::string& header = "x") {
  Request request;
  request.mutable_frame()->set_header(header);
  request.mutable_frame()->set_payload_bytes(payload_bytes);
  return request;
}
Request ChunkOf(int64_t bytes) {
  Request request;
  request.set_chunk(std::string(bytes, 'c'));
  return request;
}

// A stream that is written by hand.
class Stranger {
 public:
  explicit Stranger(const std::string& address)
      : stub_(peer::v1::TransferService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {
    context_.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));  // which only a failure reaches
    stream_ = stub_->Transfer(&context_);
  }

  Stranger& Write(const Request& request) {
    stream_->Write(request);
    return *this;
  }
  int64_t ReadTaken() {
    peer::v1::TransferResponse answer;
    return stream_->Read(&answer) ? answer.taken_frames() : -1;
  }
  grpc::Status Finish() {
    while (ReadTaken() >= 0) {  // no status comes before all answers are read
    }
    return stream_->Finish();
  }
  grpc::Status Close() {
    stream_->WritesDone();
    return Finish();
  }

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<peer::v1::TransferService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<Request, peer::v1::TransferResponse>> stream_;
};

class Strangers : public ::testing::Test {
 protected:
  Strangers() : a_(factory_.Make(Rank(0))), b_(factory_.Make(Rank(1))) {}
  void Start() {
    ASSERT_TRUE(a_.Start({{Rank(1), b_.carrier->address()}}).ok());
    ASSERT_TRUE(b_.Start({{Rank(0), a_.carrier->address()}}).ok());
  }
  std::string address() const { return a_.carrier->address(); }
  void ExpectUndisturbed() {
    b_.carrier->Send(Rank(0), {.header = "good", .payload = {OwnedPiece(Pattern(100'000, 1))}});
    ASSERT_TRUE(a_.AwaitArrivals(1));
    absl::MutexLock lock(&a_.mu);
    EXPECT_EQ(a_.headers, std::vector<std::string>{"good"});
    EXPECT_TRUE(a_.arrivals[0].ended.ok() && *a_.arrivals[0].payload == Pattern(100'000, 1));
    EXPECT_TRUE(a_.lost.empty());
  }

  GrpcCarrierFactory factory_;
  CarrierEnd a_, b_;
};

TEST_F(Strangers, AreRefusedAndDisturbNobody) {
  Start();
  b_.carrier->Send(Rank(0), {.header = "good"});  // now its stream is there
  ASSERT_TRUE(a_.AwaitArrivals(1));
  EXPECT_EQ(Stranger(address()).Write(Hello(1, "a guess")).Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Stranger(address()).Write(Hello(1, "")).Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Stranger(address()).Write(Hello(7)).Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Stranger(address()).Write(Hello(1)).Finish().error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(Stranger(address()).Write(FrameOf(0)).Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Stranger(address()).Write(ChunkOf(1)).Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  {
    absl::MutexLock lock(&a_.mu);
    a_.headers.clear();
    a_.arrivals.clear();
  }
  ExpectUndisturbed();
}

TEST_F(Strangers, AreRefusedBeforeTheStartAndAtIt) {
  EXPECT_EQ(Stranger(address()).Write(Hello(1, "a guess")).Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  Stranger other(address());
  other.Write(Hello(7));
  Start();
  EXPECT_EQ(other.Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  ExpectUndisturbed();
}

// Rank 1 by hand: each lie ends its stream, with what it says, and costs rank 1.
TEST(PeersThatLie, AreRefusedAndLost) {
  const struct {
    std::vector<Request> messages;
    std::string message;
  } lies[] = {
      {{Hello(1)}, "message: must be a frame or a chunk, got a second hello"},
      {{ChunkOf(1)}, "message: must be a hello or a frame, got a chunk"},
      {{FrameOf(0), ChunkOf(1)}, "message: must be a hello or a frame, got a chunk"},
      {{FrameOf(3), FrameOf(0)}, "message: must be a chunk, got a frame while 3 bytes are to come"},
      {{FrameOf(3), ChunkOf(4)}, "message: chunk must have 1 to 3 bytes, got 4"},
      {{FrameOf(3), ChunkOf(0)}, "message: chunk must have 1 to 3 bytes, got 0"},
      {{FrameOf(3), ChunkOf(2)}, "message: must be a chunk, got the end of the stream"},
      {{FrameOf(3, "bad"), ChunkOf(4)}, "message: chunk must have 1 to 3 bytes, got 4"},
      {{FrameOf(-1)}, "message: payload_bytes must be at least 0, got -1"},
      {{FrameOf(0, std::string(8001, 'h'))}, "message: header must have at most 8000 bytes, got 8001"},
      {{Request()}, "message: must hold a hello, a frame or a chunk"},
  };
  for (const auto& lie : lies) {
    GrpcCarrierFactory factory;
    CarrierEnd end(factory.Make(Rank(0)));
    CarrierEnd peer(factory.Make(Rank(1)));  // never starts, so that its stream is written here
    ASSERT_TRUE(end.Start({{Rank(1), peer.carrier->address()}}).ok());
    Stranger stream(end.carrier->address());
    stream.Write(Hello(1)).Write(FrameOf(0));
    EXPECT_EQ(stream.ReadTaken(), 1);
    for (const Request& message : lie.messages) stream.Write(message);
    const grpc::Status status = stream.Close();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << lie.message;
    EXPECT_EQ(status.error_message(), lie.message);
    ASSERT_TRUE(end.AwaitLosses(1)) << lie.message;
    end.carrier->Close();
    absl::MutexLock lock(&end.mu);
    EXPECT_EQ(ReasonOf(end.lost[0].second), "RANK_LOST");
    const auto turned_away = std::count(end.headers.begin(), end.headers.end(), "bad");
    EXPECT_EQ(end.arrivals.size(), end.headers.size() - turned_away) << lie.message;  // each has ended
    for (const auto& arrival : end.arrivals) EXPECT_EQ(arrival.ended.ok(), arrival.payload->empty()) << lie.message;
  }
}

TEST(SilentStreams, EndWhenNoHelloComesInTime) {
  FakeClock clock;
  TimerQueue timers(&clock);
  auto carrier = GrpcCarrier::Create({.key = kGroupKey, .timers = &timers, .clock = &clock});
  ASSERT_TRUE(carrier.ok()) << carrier.status();
  Stranger stream((*carrier)->address());
  while (timers.size() == 0) std::this_thread::yield();  // until the stream has come
  clock.Advance(absl::Seconds(10));
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(SilentStreams, MayBeSilentOnceTheyHaveSaidHello) {
  FakeClock clock;
  TimerQueue timers(&clock);
  CarrierEnd end(*GrpcCarrier::Create({.key = kGroupKey, .timers = &timers, .clock = &clock}));
  GrpcCarrierFactory factory;
  CarrierEnd peer(factory.Make(Rank(1)));
  ASSERT_TRUE(end.Start({{Rank(1), peer.carrier->address()}}).ok());
  ASSERT_TRUE(peer.Start({{Rank(0), end.carrier->address()}}).ok());
  peer.carrier->Send(Rank(0), {.header = "x"});
  ASSERT_TRUE(end.AwaitArrivals(1));
  clock.Advance(absl::Seconds(10));
  timers.SettleForTest();
  peer.carrier->Send(Rank(0), {.header = "y"});
  ASSERT_TRUE(end.AwaitArrivals(2));
  absl::MutexLock lock(&end.mu);
  EXPECT_TRUE(end.lost.empty());
}

// It lives, and answers whatever gRPC asks by itself.
TEST(LateFrames, CostAPeerThatTakesNothing) {
  FakeClock clock;
  TimerQueue timers(&clock);
  CarrierEnd end(*GrpcCarrier::Create({.key = kGroupKey, .timers = &timers, .clock = &clock}));
  GrpcCarrierFactory factory;              // the clock is not the peer's, which waits for a hello
  CarrierEnd peer(factory.Make(Rank(1)));  // never starts
  ASSERT_TRUE(end.Start({{Rank(1), peer.carrier->address()}}).ok());
  end.carrier->Send(Rank(1), {.header = "small"});
  clock.Advance(absl::Seconds(59));
  end.carrier->Send(Rank(1), {.header = "later"});
  timers.SettleForTest();
  {
    absl::MutexLock lock(&end.mu);
    EXPECT_TRUE(end.lost.empty());
  }
  clock.Advance(absl::Seconds(1));
  ASSERT_TRUE(end.AwaitLosses(1));
  end.carrier->Close();
  absl::MutexLock lock(&end.mu);
  ASSERT_EQ(end.lost.size(), 1);
  EXPECT_EQ(end.lost[0].second.message(), "it has not taken a frame in time");
}

TEST(LateFrames, AreWaitedForByAClose) {
  FakeClock clock;
  TimerQueue timers(&clock);
  CarrierEnd end(*GrpcCarrier::Create({.key = kGroupKey, .timers = &timers, .clock = &clock}));
  GrpcCarrierFactory factory;  // the clock is not the peer's, which waits for a hello
  CarrierEnd peer(factory.Make(Rank(1)));
  ASSERT_TRUE(end.Start({{Rank(1), peer.carrier->address()}}).ok());
  end.carrier->Send(Rank(1), {.header = "x"});
  Thread closer("closer", [&] { end.carrier->Close(); });
  // What is sent after the close has begun is dropped.
  Piece probe;
  do {
    probe = OwnedPiece("probe");
    end.carrier->Send(Rank(1), {.header = "probe", .payload = {probe}});
  } while (probe.owner.use_count() > 1);
  clock.Advance(absl::Seconds(59));
  timers.SettleForTest();
  ASSERT_TRUE(peer.Start({{Rank(0), end.carrier->address()}}).ok());
  closer.Join();
  {
    absl::MutexLock lock(&peer.mu);
    ASSERT_FALSE(peer.headers.empty());
    EXPECT_EQ(peer.headers.front(), "x");
    for (const auto& arrival : peer.arrivals) EXPECT_TRUE(arrival.ended.ok()) << arrival.ended;
  }
  absl::MutexLock lock(&end.mu);
  EXPECT_TRUE(end.lost.empty());
}

// Its host takes connections, and nobody there speaks.
TEST(LateFrames, AreNoneWhereThereWasNoConnectionYet) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(listener, any, length) + listen(listener, 1) + getsockname(listener, any, &length), 0);
  FakeClock clock;
  TimerQueue timers(&clock);
  CarrierEnd end(*GrpcCarrier::Create({.key = kGroupKey, .timers = &timers, .clock = &clock}));
  ASSERT_TRUE(end.Start({{Rank(1), absl::StrCat("127.0.0.1:", ntohs(address.sin_port))}}).ok());
  absl::Notification closed;
  const Thread closer("closer", [&] {
    end.carrier->Close();
    closed.Notify();
  });
  while (timers.size() == 0 && !closed.HasBeenNotified()) std::this_thread::yield();  // until it waits
  EXPECT_FALSE(closed.HasBeenNotified());
  clock.Advance(absl::Seconds(1));
  closed.WaitForNotification();
  close(listener);
}

// A receiver that is no carrier; it has read the hello and a frame when it lies.
class Liar final : public peer::v1::TransferService::Service {
 public:
  using Stream = grpc::ServerReaderWriter<peer::v1::TransferResponse, Request>;
  explicit Liar(std::function<void(Stream*)> lie) : lie_(std::move(lie)) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }

  const std::string& address() const { return address_; }
  grpc::Status Transfer(grpc::ServerContext*, Stream* stream) override {
    Request request;
    stream->Read(&request);
    stream->Read(&request);
    lie_(stream);
    return grpc::Status::OK;
  }

 private:
  const std::function<void(Stream*)> lie_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

// Says that it has taken so many frames, and reads on until the sender closes its side.
void Take(int64_t frames, Liar::Stream* stream) {
  peer::v1::TransferResponse answer;
  answer.set_taken_frames(frames);
  stream->Write(answer);
  Request request;
  while (stream->Read(&request)) {
  }
}

TEST(ReceiversThatLie, AreLost) {
  const auto lost_to = [](std::function<void(Liar::Stream*)> lie) {
    const Liar liar(std::move(lie));
    GrpcCarrierFactory factory;
    CarrierEnd end(factory.Make(Rank(0)));
    EXPECT_TRUE(end.Start({{Rank(1), liar.address()}}).ok());
    end.carrier->Send(Rank(1), {.header = "x"});
    EXPECT_TRUE(end.AwaitLosses(1));
    end.carrier->Close();
    absl::MutexLock lock(&end.mu);
    return end.lost.empty() ? "" : std::string(end.lost[0].second.message());
  };
  const std::string lie = "it says that it has taken more frames than were sent, or fewer than before";
  EXPECT_EQ(lost_to([](auto* stream) { Take(2, stream); }), lie);
  EXPECT_EQ(lost_to([](auto* stream) { Take(-1, stream); }), lie);
  EXPECT_EQ(lost_to([](auto*) {}), "its edge has failed: the peer has ended the stream");
}

TEST(ReceiversThatLie, AreWaitedForOneSecondWhenAllIsTaken) {
  FakeClock clock;
  TimerQueue timers(&clock);
  absl::Notification asked, closed;
  const Liar liar([&](auto* stream) {
    Take(1, stream);
    asked.Notify();
    closed.WaitForNotification();  // it owes the end of the stream
  });
  CarrierEnd end(*GrpcCarrier::Create({.key = kGroupKey, .timers = &timers, .clock = &clock}));
  ASSERT_TRUE(end.Start({{Rank(1), liar.address()}}).ok());
  end.carrier->Send(Rank(1), {.header = "x"});
  Thread closer("closer", [&] {
    end.carrier->Close();
    closed.Notify();
  });
  asked.WaitForNotification();
  clock.Advance(absl::Seconds(1));
  EXPECT_TRUE(closed.WaitForNotificationWithTimeout(absl::Minutes(1)));
  clock.Advance(absl::Minutes(1));
  closer.Join();
  absl::MutexLock lock(&end.mu);
  EXPECT_TRUE(end.lost.empty());
}

TEST(Listeners, SayWhereTheyCannotListen) {
  GrpcCarrierFactory factory;
  const auto first = factory.Make(Rank(0));
  auto second = GrpcCarrier::Create({.key = kGroupKey, .listen = first->address(), .timers = &factory.timers});
  EXPECT_EQ(ReasonOf(second.status()), "LISTEN_FAILED");
  EXPECT_EQ(ValuesOf(second.status())["value"], first->address());
}

}  // namespace
}  // namespace penstock::testing
