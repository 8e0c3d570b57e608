#pragma once

// The least role of each method.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/descriptor.h"
#include "server/identity/identity.h"

namespace penstock {

// Of a method of ours the option `role` of its .proto; of the services that others have defined a row of a table here.
// None for a method that has neither.
std::optional<Role> RoleOf(const google::protobuf::MethodDescriptor& method);

// Whether a call of the method may change something that others see or that stays: by the option `changes_state` of its
// .proto; of the services that others have defined, by a list here.
bool ChangesState(const google::protobuf::MethodDescriptor& method);

// Looks at every method of some services, by their full names.
//
// Fails:     FAILED_PRECONDITION / METHOD_WITHOUT_ROLE naming the first method that has none, or the service that is
//            not there: a daemon that has one does not start.
absl::Status CheckMethodRoles(
    const std::vector<std::string>& services,
    const google::protobuf::DescriptorPool& pool = *google::protobuf::DescriptorPool::generated_pool());

}  // namespace penstock
