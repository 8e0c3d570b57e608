#include "server/api_server.h"

#include <sys/stat.h>

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"
#include "server/http/listen_address.h"
#include "server/rpc/call_followers.h"
#include "server/rpc/call_metrics.h"

namespace penstock {
namespace {

constexpr absl::string_view kUnix = "unix:";

// While it lives, what this process makes is for its owner alone: a socket must have its mode from the moment on in
// which it can be connected to. The mask is the whole process's, so no other thread may make files or folders
// meanwhile.
class OwnerOnly {
 public:
  OwnerOnly() : before_(::umask(0177)) {}
  ~OwnerOnly() { ::umask(before_); }
  OwnerOnly(const OwnerOnly&) = delete;
  OwnerOnly& operator=(const OwnerOnly&) = delete;

 private:
  const mode_t before_;
};

bool IsUnix(const std::string& listen) { return absl::StartsWith(listen, kUnix); }

void SetConnections(const ApiServer::Options& options, grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  grpc::ResourceQuota quota("penstock");
  quota.Resize(static_cast<size_t>(options.memory_bytes));
  builder->SetResourceQuota(quota);
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 0);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 128);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8 << 10);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A small compressed message can inflate to hundreds of megabytes before any size is checked.
  for (int algorithm = 1; algorithm < GRPC_COMPRESS_ALGORITHMS_COUNT; ++algorithm) {
    builder->SetCompressionAlgorithmSupportStatus(static_cast<grpc_compression_algorithm>(algorithm), false);
  }
}

}  // namespace

absl::Status CheckApiAddress(const std::string& listen, bool insecure, const std::string& field) {
  if (IsUnix(listen)) {
    if (listen.size() > kUnix.size()) return absl::OkStatus();
    return InvalidField(field, "must name a path after unix:", listen);
  }
  PENSTOCK_ASSIGN_OR_RETURN(const ListenAddress address, ParseListenAddress(listen, field));
  if (address.IsLoopback() || insecure) return absl::OkStatus();
  return InvalidField(field, "is plaintext beyond this host and needs --tls-cert or --insecure", listen);
}

absl::StatusOr<std::unique_ptr<ApiServer>> ApiServer::Create(const Options& options,
                                                             const std::vector<grpc::Service*>& services,
                                                             ServerMetrics* metrics, Clock* clock) {
  PENSTOCK_RETURN_IF_ERROR(
      CheckApiAddress(options.listen, options.insecure || options.credentials != nullptr, options.field));
  const bool is_unix = IsUnix(options.listen);
  ListenAddress address;
  if (!is_unix) {
    PENSTOCK_ASSIGN_OR_RETURN(address, ParseListenAddress(options.listen, options.field));
  }

  grpc::EnableDefaultHealthCheckService(false);
  grpc::ServerBuilder builder;
  SetConnections(options, &builder);
  int port = 0;
  builder.AddListeningPort(is_unix ? options.listen : address.ToString(),
                           options.credentials != nullptr ? options.credentials : grpc::InsecureServerCredentials(),
                           &port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(std::make_unique<CallMetricsFactory>(metrics, clock));
  if (options.tracer != nullptr || options.audit != nullptr) {
    interceptors.push_back(std::make_unique<CallFollowersFactory>(options.tracer, options.audit, clock));
  }
  builder.experimental().SetInterceptorCreators(std::move(interceptors));

  std::optional<OwnerOnly> owner_only;
  if (is_unix) owner_only.emplace();
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  owner_only.reset();
  if (server == nullptr || port == 0) {
    const std::string why = is_unix ? "" : WhyNotFree(address);  // gRPC keeps the reason to itself
    return Error(absl::StatusCode::kFailedPrecondition, "LISTEN_FAILED",
                 absl::StrCat(options.field, ": can't listen there", why.empty() ? "" : ": " + why, ", got ",
                              options.listen))
        .With("field", options.field)
        .With("value", options.listen);
  }
  if (!is_unix) address.port = port;
  return std::unique_ptr<ApiServer>(
      new ApiServer(options.credentials, std::move(server), is_unix ? options.listen : address.ToString()));
}

ApiServer::~ApiServer() { server_->Shutdown(); }

void ApiServer::Shutdown(absl::Duration patience) { server_->Shutdown(absl::ToChronoTime(absl::Now() + patience)); }

}  // namespace penstock
