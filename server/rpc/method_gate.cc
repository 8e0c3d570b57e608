#include "server/rpc/method_gate.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/auth_context.h"
#include "server/identity/authenticator.h"
#include "server/rpc/call_context.h"
#include "server/rpc/call_followers.h"
#include "server/rpc/method_roles.h"

namespace penstock {
namespace {

std::string_view FirstOf(const grpc::AuthContext& peer, const char* property) {
  const std::vector<grpc::string_ref> values = peer.FindPropertyValues(property);
  return values.empty() ? std::string_view() : std::string_view(values[0].data(), values[0].size());
}

absl::StatusOr<Identity> InPlaintext(const Authenticator& authenticator, const grpc::ServerContextBase& context) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string name, CallerOf(context));
  return authenticator.Authenticate({.name = name});
}

absl::StatusOr<Identity> IdentityOf(const Authenticator& authenticator, const grpc::ServerContextBase& context) {
  if (!authenticator.knows_callers()) return InPlaintext(authenticator, context);
  const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
  if (FirstOf(*peer, GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME) != GRPC_SSL_TRANSPORT_SECURITY_TYPE) {
    return InPlaintext(authenticator, context);
  }
  Authenticator::Shown shown;
  shown.tls = true;
  shown.certificate = FirstOf(*peer, GRPC_X509_PEM_CERT_PROPERTY_NAME);
  const auto [begin, end] = context.client_metadata().equal_range("authorization");
  if (begin != end) {
    // Of two nobody could say which one counts.
    const bool one = std::next(begin) == end;
    shown.authorization = one ? std::string_view(begin->second.data(), begin->second.size()) : std::string_view();
  }
  return authenticator.Authenticate(shown);
}

}  // namespace

absl::StatusOr<Identity> MethodGate::Enter(grpc::ServerContextBase& context) const {
  return Enter(context, AuditNoteOf(context).get());
}

absl::StatusOr<Identity> MethodGate::Enter(grpc::ServerContextBase& context, AuditNote* note) const {
  if (!role_.has_value()) return Bug("the call", absl::StrCat(method_, " has no role"));
  PENSTOCK_ASSIGN_OR_RETURN(Identity identity, IdentityOf(*authenticator_, context));
  if (note != nullptr) note->SetCaller(identity, changes_);
  if (identity.May(*role_)) return identity;
  const std::string needed(NameOf(*role_));
  return Error(
             absl::StatusCode::kPermissionDenied, "ROLE_MISSING",
             absl::StrCat(method_, " needs the role ", needed, ", the caller has ", std::string(NameOf(identity.role))))
      .With("role", needed)
      .With("method", method_);
}

absl::Status MethodGate::CheckReach(const Identity& identity, const std::string& pipeline) const {
  if (identity.Sees(pipeline)) return absl::OkStatus();
  const std::string role(NameOf(identity.role));
  return Error(absl::StatusCode::kPermissionDenied, "ROLE_MISSING",
               absl::StrCat(method_, ": the caller has the role ", role, " on other pipelines only, not on ", pipeline))
      .With("role", role)
      .With("method", method_)
      .With("pipeline", pipeline);
}

ServiceGate::ServiceGate(const Authenticator* authenticator, const std::string& service) {
  PENSTOCK_CHECK(authenticator != nullptr);
  const auto* descriptor = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(service);
  PENSTOCK_CHECK(descriptor != nullptr);
  for (int i = 0; i < descriptor->method_count(); ++i) {
    const google::protobuf::MethodDescriptor& method = *descriptor->method(i);
    names_.push_back(method.name());
    gates_.emplace_back(authenticator, absl::StrCat(service, "/", method.name()), RoleOf(method), ChangesState(method));
  }
}

const MethodGate& ServiceGate::Of(std::string_view method) const {
  size_t i = 0;
  while (i < names_.size() && names_[i] != method) ++i;
  PENSTOCK_CHECK(i < names_.size());
  return gates_[i];
}

}  // namespace penstock
