#pragma once

// ModelStreamInfer: many inferences of one client on one stream.

#include <cstdint>
#include <functional>
#include <memory>

#include "server/rpc/streams/request_stream.h"
#include "server/rpc/streams/streamed_request.h"

namespace penstock {

// Serves one stream.
//
// Model:     Each message is a request, which is let in, admitted and run as a ModelInfer of its own; several run at
//            once. Answers, errors among them, leave in the order of the requests, one for each.
class InferStream final : public RequestStream {
 public:
  static constexpr size_t kMaxOpen = 16;
  static constexpr absl::Duration kPatience = absl::Minutes(10);

  // Answers the request now or later; what it throws is the request's error.
  using Handler = std::function<void(const std::shared_ptr<StreamedRequest>&, const grpc::ByteBuffer&)>;

  InferStream(RequestStreams* streams, const MethodGate& gate, const ServiceEnvironment& environment,
              grpc::CallbackServerContext* context, Handler handler);

  grpc::ByteBuffer AnswerOf(const StreamedRequest& request, const grpc::ByteBuffer& response) const override;
  grpc::ByteBuffer ErrorOf(const StreamedRequest& request, const grpc::Status& error) const override;

 private:
  absl::Status Opened(const Identity& identity) override;
  absl::Status Take(const grpc::ByteBuffer& message) override;

  const Handler handler_;
  uint64_t next_ = 1;
};

}  // namespace penstock
