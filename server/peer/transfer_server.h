#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/channel_arguments.h"
#include "grpcpp/support/server_callback.h"

namespace penstock {

// The listener of TransferService.
//
// Owns:      the server. What `on_stream` returns must have ended by itself before Shutdown() returns.
// Threads:   `on_stream` on gRPC's.
// Lifecycle: listens from Create() on; Shutdown() takes no new stream, cancels the others and waits until gRPC has done
//            with them.
// Fails:     FAILED_PRECONDITION / LISTEN_FAILED for an address that can't be bound.
class TransferServer {
 public:
  using Stream = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
  using OnStream = std::function<Stream*(grpc::CallbackServerContext* context)>;

  // `listen`: HOST:PORT, with port 0 for one that the kernel chooses.
  static absl::StatusOr<std::unique_ptr<TransferServer>> Create(const std::string& listen,
                                                                std::shared_ptr<grpc::ServerCredentials> credentials,
                                                                int64_t keepalive_nanos, OnStream on_stream);
  ~TransferServer();

  const std::string& address() const { return address_; }
  void Shutdown();

 private:
  class Service;
  TransferServer();

  std::shared_ptr<grpc::ServerCredentials> credentials_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// The settings of a connection to such a listener.
grpc::ChannelArguments TransferChannelArguments(int64_t keepalive_nanos);

}  // namespace penstock
