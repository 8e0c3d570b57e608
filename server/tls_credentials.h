#pragma once

// What a TLS listener of gRPC needs: certificates that change, and a gate before messages are read.

#include <memory>

#include "grpcpp/security/server_credentials.h"

namespace penstock {

class AuditLog;
class Authenticator;
class CertificateFiles;
class ServerMetrics;

// Credentials of one listener.
//
// Model:     Each new connection gets the certificate that is published then; a connection keeps its own. Clients are
//            asked for a certificate if there are authorities for it, and may come without one. Calls that show no
//            credential, or one that nobody knows, end before their message is read: else strangers could fill the
//            memory. Their status has a code and a message only, which begins with the reason. All else is asked at the
//            method's gate, an expired credential too.
// Owns:      shares of the certificates. Authenticator, metrics and the audit log (or null) outlive it, and it the
//            server.
// Threads:   gRPC's.
std::shared_ptr<grpc::ServerCredentials> MakeTlsCredentials(std::shared_ptr<const CertificateFiles> certificates,
                                                            const Authenticator* authenticator, ServerMetrics* metrics,
                                                            AuditLog* audit = nullptr);

}  // namespace penstock
