#pragma once

// gRPC's reflection, v1 and v1alpha: which services are on this port, and the files that describe
// them. Our own and not the library's, which turns itself on for every server of a process.

#include <memory>
#include <string>
#include <vector>

#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"

namespace penstock {

// Answers questions about services and their files from the descriptors that are linked in.
//
// Model:     The names of the services that the port serves. Files are found by name, by the symbol
//            they define, or by an extension; an answer holds the file and all that it imports.
// Threads:   Any; immutable.
// Fails:     An unknown name is an error response with NOT_FOUND inside the stream, which goes on.
template <typename Base, typename Request, typename Response>
class ReflectionService final : public Base {
 public:
  explicit ReflectionService(std::vector<std::string> services) : services_(std::move(services)) {}

  grpc::ServerBidiReactor<Request, Response>* ServerReflectionInfo(grpc::CallbackServerContext* context) override;

  // One answer; public for tests.
  Response Answer(const Request& request) const;

 private:
  class Stream;
  const std::vector<std::string> services_;
};

using ReflectionServiceV1 =
    ReflectionService<grpc::reflection::v1::ServerReflection::CallbackService,
                      grpc::reflection::v1::ServerReflectionRequest, grpc::reflection::v1::ServerReflectionResponse>;
using ReflectionServiceV1Alpha = ReflectionService<grpc::reflection::v1alpha::ServerReflection::CallbackService,
                                                   grpc::reflection::v1alpha::ServerReflectionRequest,
                                                   grpc::reflection::v1alpha::ServerReflectionResponse>;

}  // namespace penstock
