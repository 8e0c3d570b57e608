#pragma once

// gRPC's reflection, v1 and v1alpha: which services are on this port, and the files that describe
// them. Our own and not the library's, which turns itself on for every server of a process.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/streams/stream_slots.h"

namespace penstock {

class Clock;
class TimerQueue;

inline constexpr int64_t kMaxReflectionBytes = 4 << 10;
inline constexpr int kMaxReflectionStreams = 64;
inline constexpr absl::Duration kReflectionPatience = absl::Minutes(10);

// Answers questions about services and their files from the descriptors that are linked in.
//
// Model:     The names of the services that the port serves. Files are found by name, by the symbol
//            they define, or by an extension; an answer holds the file and all that it imports.
//            A stream without a question for kReflectionPatience ends.
// Owns:      nothing; TimerQueue and Clock outlive it.
// Threads:   Any.
// Fails:     An unknown name is an error response with NOT_FOUND inside the stream, which goes on.
//            RESOURCE_EXHAUSTED / MESSAGE_TOO_LARGE above kMaxReflectionBytes, STREAM_LIMIT, CALLER_QUOTA above a host's share of
//            kMaxReflectionStreams; FIELD_INVALID.
template <typename Base, typename Request, typename Response>
class ReflectionServiceImpl final : public Base {
 public:
  ReflectionServiceImpl(const Authenticator* authenticator, std::vector<std::string> services, TimerQueue* timers,
                        Clock* clock)
      : gate_(authenticator, Request::descriptor()->file()->service(0)->full_name()),
        services_(std::move(services)),
        timers_(timers),
        clock_(clock) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ServerReflectionInfo(
      grpc::CallbackServerContext* context) override;

  // One answer; public for tests.
  Response Answer(const Request& request) const;

 private:
  class Stream;
  const ServiceGate gate_;
  const std::vector<std::string> services_;
  TimerQueue* const timers_;
  Clock* const clock_;
  StreamSlots slots_{"reflection_streams", kMaxReflectionStreams};
};

using ReflectionServiceV1 =
    ReflectionServiceImpl<grpc::reflection::v1::ServerReflection::WithRawCallbackMethod_ServerReflectionInfo<
                              grpc::reflection::v1::ServerReflection::Service>,
                          grpc::reflection::v1::ServerReflectionRequest,
                          grpc::reflection::v1::ServerReflectionResponse>;
using ReflectionServiceV1Alpha =
    ReflectionServiceImpl<grpc::reflection::v1alpha::ServerReflection::WithRawCallbackMethod_ServerReflectionInfo<
                              grpc::reflection::v1alpha::ServerReflection::Service>,
                          grpc::reflection::v1alpha::ServerReflectionRequest,
                          grpc::reflection::v1alpha::ServerReflectionResponse>;

}  // namespace penstock
