#pragma once

#include <string>

#include "absl/time/time.h"

namespace penstock {

// One call, as the audit log tells it. A text that is not known is empty. It holds no tensor, no token and no part of
// one.
struct AuditRecord {
  absl::Time time;         // when the call came
  std::string identity;    // empty: nobody was recognized
  std::string role;        // of the identity
  std::string peer;        // the address that it came from; empty of a stranger under TLS
  std::string method;      // "penstock.v1.WorkService/TrainStep"
  std::string pipeline;    // as the call names it, before anybody has looked whether there is one
  std::string target;      // the resource that the call names: a checkpoint, a model, a handle
  std::string request_id;  // as the call names it
  std::string code;        // of gRPC, as text
  std::string reason;      // of the error
  absl::Duration duration;
};

// A line of JSON with its end. What callers choose is escaped, so that it can't end the line or make a field, and is cut
// after 256 bytes.
std::string AuditLine(const AuditRecord& record);

}  // namespace penstock
