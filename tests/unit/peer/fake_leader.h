#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "penstock/peer/v1/group_service.grpc.pb.h"

namespace penstock::testing {

// A leader that does what a test says.
class FakeLeader : public peer::v1::GroupService::Service {
 public:
  using Stream = grpc::ServerReaderWriter<peer::v1::LeaderMessage, peer::v1::RankMessage>;

  explicit FakeLeader(std::function<void(Stream*)> script, grpc::Status end = grpc::Status::OK)
      : script_(std::move(script)), end_(std::move(end)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeLeader() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  static peer::v1::RankMessage Hear(Stream* stream) {
    peer::v1::RankMessage message;
    if (!stream->Read(&message)) message.Clear();
    return message;
  }
  static void Welcome(Stream* stream, uint32_t epoch, int64_t timeout_micros = 5'000'000) {
    peer::v1::LeaderMessage message;
    message.mutable_welcome()->set_epoch(epoch);
    message.mutable_welcome()->set_peer_timeout_micros(timeout_micros);
    stream->Write(message);
  }

 private:
  grpc::Status Join(grpc::ServerContext*, Stream* stream) override {
    script_(stream);
    return end_;
  }

  const std::function<void(Stream*)> script_;
  const grpc::Status end_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace penstock::testing
