#include "server/tls_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>

#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/observe/metrics.h"
#include "server/identity/authenticator.h"
#include "server/identity/certificate_files.h"
#include "server/rpc/audit_note.h"
#include "server/rpc/call_metrics.h"

namespace penstock {
namespace {

std::string_view TextOf(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

// Hands the core the certificate for new connections, when it is another one than before.
class Fetcher {
 public:
  explicit Fetcher(std::shared_ptr<const CertificateFiles> files) : files_(std::move(files)) {}

  bool asks_clients() const { return !files_->current()->client_ca.empty(); }

  static grpc_ssl_certificate_config_reload_status Fetch(void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<Fetcher*>(self)->Fetch(config);
  }

 private:
  grpc_ssl_certificate_config_reload_status Fetch(grpc_ssl_server_certificate_config** config) {
    absl::MutexLock lock(&mu_);
    const std::shared_ptr<const ServerCertificate> now = files_->current();
    if (now == given_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {now->key.c_str(), now->chain.c_str()};
    // The core ends the process where there are no authorities, also if clients are not asked.
    const std::string& roots = now->client_ca.empty() ? now->chain : now->client_ca;
    *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
    given_ = now;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const std::shared_ptr<const CertificateFiles> files_;
  absl::Mutex mu_;
  std::shared_ptr<const ServerCertificate> given_ ABSL_GUARDED_BY(mu_);
};

// Looks at a call's headers before its message is read, on the thread that has read them.
class CoarseGate {
 public:
  CoarseGate(const Authenticator* authenticator, ServerMetrics* metrics, AuditLog* audit)
      : authenticator_(authenticator), metrics_(metrics), audit_(audit) {}

  static void Process(void* self, grpc_auth_context* peer, const grpc_metadata* headers, size_t count,
                      grpc_process_auth_metadata_done_cb done, void* data) {
    const absl::Status known =
        Guarded("a call's credential", [&] { return static_cast<CoarseGate*>(self)->Look(*peer, headers, count); });
    if (known.ok()) return done(data, nullptr, 0, nullptr, 0, GRPC_STATUS_OK, nullptr);
    const std::string told = absl::StrCat(ReasonOf(known), ": ", known.message());
    done(data, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(known.code()), told.c_str());
  }
  static void Destroy(void* self) { delete static_cast<CoarseGate*>(self); }

 private:
  absl::Status Look(const grpc_auth_context& peer, const grpc_metadata* headers, size_t count) {
    Authenticator::Shown shown;
    shown.tls = true;
    std::string_view path;
    for (size_t i = 0; i < count; ++i) {
      const std::string_view key = TextOf(headers[i].key);
      if (key == ":path") path = TextOf(headers[i].value);
      if (key == "authorization") shown.authorization = TextOf(headers[i].value);
    }
    grpc_auth_property_iterator found =
        grpc_auth_context_find_properties_by_name(&peer, GRPC_X509_PEM_CERT_PROPERTY_NAME);
    if (const grpc_auth_property* pem = grpc_auth_property_iterator_next(&found); pem != nullptr) {
      shown.certificate = {pem->value, pem->value_length};
    }
    const absl::Status known = authenticator_->Authenticate(shown).status();
    if (known.ok() || ReasonOf(known) == "CREDENTIAL_EXPIRED") return absl::OkStatus();
    // No interceptor sees the call, which would count it.
    MethodMetrics& method = metrics_->MethodOf(path);
    method.started.Add(1);
    method.Handled(static_cast<int>(known.code()), 0);
    CountDenial(ReasonOf(known), metrics_);
    if (audit_ != nullptr) {
      // The core does not say where the call comes from.
      AuditNote(audit_, RealClock(), path, "").Finish(static_cast<int>(known.code()), ReasonOf(known));
    }
    return known;
  }

  const Authenticator* const authenticator_;
  ServerMetrics* const metrics_;
  AuditLog* const audit_;  // null: none
};

class TlsCredentials final : public grpc::ServerCredentials {
 public:
  TlsCredentials(std::shared_ptr<const CertificateFiles> certificates, const Authenticator* authenticator,
                 ServerMetrics* metrics, AuditLog* audit)
      : fetcher_(std::move(certificates)) {
    grpc_ssl_server_credentials_options* options = grpc_ssl_server_credentials_create_options_using_config_fetcher(
        fetcher_.asks_clients() ? GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY
                                : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
        &Fetcher::Fetch, &fetcher_);
    credentials_ = grpc_ssl_server_credentials_create_with_options(options);
    grpc_server_credentials_set_auth_metadata_processor(
        credentials_, {&CoarseGate::Process, &CoarseGate::Destroy, new CoarseGate(authenticator, metrics, audit)});
  }
  ~TlsCredentials() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}  // it has its own

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  Fetcher fetcher_;
  grpc_server_credentials* credentials_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(std::shared_ptr<const CertificateFiles> certificates,
                                                            const Authenticator* authenticator, ServerMetrics* metrics,
                                                            AuditLog* audit) {
  return std::make_shared<TlsCredentials>(std::move(certificates), authenticator, metrics, audit);
}

}  // namespace penstock
