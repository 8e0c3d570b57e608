#pragma once

// The one entry of each method: who calls, and may it?

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "server/identity/identity.h"

namespace penstock {

class AuditNote;
class Authenticator;

// Lets calls of one method in.
//
// Model:     the caller is authenticated, told to the call's note for the audit log, then its role is compared with the
//            method's. Where nobody is asked who he is,
//            the caller has the name in the metadata `penstock-caller`, or `local`.
// Owns:      nothing; the Authenticator outlives it.
// Threads:   Enter() from any thread.
// Fails:     UNAUTHENTICATED as Authenticator; PERMISSION_DENIED / ROLE_MISSING naming role and method; INVALID_ARGUMENT
//            / NAME_INVALID as CallerOf(). A method without a role lets nobody in: INTERNAL / BUG.
class MethodGate {
 public:
  MethodGate(const Authenticator* authenticator, std::string method, std::optional<Role> role, bool changes = false)
      : authenticator_(authenticator), method_(std::move(method)), role_(role), changes_(changes) {}

  absl::StatusOr<Identity> Enter(grpc::ServerContextBase& context) const;
  // The same with another note than the call's, or none: null.
  absl::StatusOr<Identity> Enter(grpc::ServerContextBase& context, AuditNote* note) const;

  // PERMISSION_DENIED / ROLE_MISSING unless the caller's pattern names a pipeline that it wants to make.
  absl::Status CheckReach(const Identity& identity, const std::string& pipeline) const;
  const std::string& method() const { return method_; }

 private:
  const Authenticator* const authenticator_;
  const std::string method_;  // "penstock.v1.WorkService/Infer"
  const std::optional<Role> role_;
  const bool changes_;  // the audit log has every call of it
};

// The gates of a service's methods; their roles are looked up when it is made.
class ServiceGate {
 public:
  // `service`: its full name.
  ServiceGate(const Authenticator* authenticator, const std::string& service);

  // Of a method by its short name, which the service must have.
  const MethodGate& Of(std::string_view method) const;

 private:
  std::vector<std::string> names_;
  std::vector<MethodGate> gates_;  // in the same order
};

}  // namespace penstock
