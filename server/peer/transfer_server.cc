#include "server/peer/transfer_server.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "grpcpp/server_builder.h"
#include "penstock/peer/v1/transfer_service.grpc.pb.h"
#include "server/peer/transfer_messages.h"

namespace penstock {
namespace {

int Milliseconds(int64_t nanos) { return static_cast<int>(std::max<int64_t>(nanos / 1'000'000, 1)); }

}  // namespace

class TransferServer::Service final
    : public peer::v1::TransferService::WithRawCallbackMethod_Transfer<peer::v1::TransferService::Service> {
 public:
  explicit Service(OnStream on_stream) : on_stream_(std::move(on_stream)) {}
  Stream* Transfer(grpc::CallbackServerContext* context) override { return on_stream_(context); }

 private:
  const OnStream on_stream_;
};

TransferServer::TransferServer() = default;
TransferServer::~TransferServer() { Shutdown(); }

absl::StatusOr<std::unique_ptr<TransferServer>> TransferServer::Create(
    const std::string& listen, std::shared_ptr<grpc::ServerCredentials> credentials, int64_t keepalive_nanos,
    OnStream on_stream) {
  std::unique_ptr<TransferServer> made(new TransferServer());
  made->credentials_ = credentials == nullptr ? grpc::InsecureServerCredentials() : std::move(credentials);
  made->service_ = std::make_unique<Service>(std::move(on_stream));
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaximumTransferMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 4);  // a rank opens one
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8 << 10);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(keepalive_nanos));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(keepalive_nanos));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, Milliseconds(keepalive_nanos / 2));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A small compressed message can inflate to hundreds of megabytes before any size is checked.
  for (int algorithm = 1; algorithm < GRPC_COMPRESS_ALGORITHMS_COUNT; ++algorithm) {
    builder.SetCompressionAlgorithmSupportStatus(static_cast<grpc_compression_algorithm>(algorithm), false);
  }
  int port = 0;
  builder.AddListeningPort(listen, made->credentials_, &port);
  builder.RegisterService(made->service_.get());
  made->server_ = builder.BuildAndStart();
  if (made->server_ == nullptr || port == 0) {
    return Error(absl::StatusCode::kFailedPrecondition, "LISTEN_FAILED",
                 absl::StrCat("ranks: can't listen there, got ", listen))
        .With("value", listen);
  }
  made->address_ = absl::StrCat(listen.substr(0, listen.rfind(':')), ":", port);
  return made;
}

void TransferServer::Shutdown() {
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
}

grpc::ChannelArguments TransferChannelArguments(int64_t keepalive_nanos) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaximumTransferMessageBytes);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own, which ends with it
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_CHANNELZ, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(keepalive_nanos));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(keepalive_nanos));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return arguments;
}

}  // namespace penstock
