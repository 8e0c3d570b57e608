#pragma once

// The gRPC server: its settings, its services, where it listens.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/base/clock.h"
#include "engine/observe/metrics.h"
#include "grpcpp/impl/codegen/service_type.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"

namespace penstock {

class AuditLog;
class Tracer;

// Checks an address for gRPC: HOST:PORT or unix:PATH, on this host unless `insecure`.
//
// Fails:     INVALID_ARGUMENT / FIELD_INVALID naming `field` and the address.
absl::Status CheckApiAddress(const std::string& listen, bool insecure, const std::string& field = "--listen");

// Listens for calls until it is closed.
//
// Model:     one port, or Unix socket (mode 0600), plaintext or with TLS; identity compression only; keepalive and
//            memory limits as the protocol says.
// Owns:      the server. Services, metrics and clock outlive it.
// Threads:   those of gRPC's callback API.
// Lifecycle: serves from Create() on; Shutdown() once, before destruction. Create() of a Unix socket changes the
//            process's umask while it runs: no other thread may create files or folders meanwhile.
// Fails:     as CheckApiAddress; FAILED_PRECONDITION / LISTEN_FAILED for one that can't be bound.
class ApiServer {
 public:
  struct Options {
    std::string listen;
    std::string field = "--listen";  // as errors name it
    bool insecure = false;
    std::shared_ptr<grpc::ServerCredentials> credentials = {};  // null: plaintext; for one server
    int64_t max_message_bytes = 0;
    int64_t memory_bytes = 0;
    const Tracer* tracer = nullptr;  // null: no call is traced; outlives the server
    AuditLog* audit = nullptr;       // null: none; outlives the server
  };

  static absl::StatusOr<std::unique_ptr<ApiServer>> Create(const Options& options,
                                                           const std::vector<grpc::Service*>& services,
                                                           ServerMetrics* metrics, Clock* clock);
  ~ApiServer();

  // Where it listens, with the port that the kernel chose if 0 was asked for.
  const std::string& address() const { return address_; }

  // Takes no new call, waits for open ones, then cancels them.
  void Shutdown(absl::Duration patience);

 private:
  ApiServer(std::shared_ptr<grpc::ServerCredentials> credentials, std::unique_ptr<grpc::Server> server,
            std::string address)
      : credentials_(std::move(credentials)), server_(std::move(server)), address_(std::move(address)) {}

  const std::shared_ptr<grpc::ServerCredentials> credentials_;  // new connections ask it
  std::unique_ptr<grpc::Server> server_;
  const std::string address_;
};

}  // namespace penstock
