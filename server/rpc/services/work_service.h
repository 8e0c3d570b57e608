#pragma once

// WorkService: training and inference on a pipeline.

#include <functional>
#include <memory>

#include "penstock/v1/handle_service.grpc.pb.h"
#include "penstock/v1/work_service.grpc.pb.h"
#include "server/rpc/call_order.h"
#include "server/rpc/method_gate.h"
#include "server/rpc/service_environment.h"
#include "server/rpc/services/result_reply.h"
#include "server/rpc/streams/tensor_uploads.h"
#include "server/rpc/streams/work_stream.h"
#include "server/rpc/unary_call.h"

namespace penstock {

// Turns work messages into calls on a served pipeline. Every method: check ids and limits, find the
// pipeline, be admitted, wait for the call to follow, decode tensors, hand over, answer when the results have settled
// or at once.
//
// Threads:   gRPC's callback threads; no method blocks.
class WorkServiceImpl final
    : public v1::WorkService::WithRawCallbackMethod_Infer<
          v1::WorkService::WithRawCallbackMethod_Evaluate<v1::WorkService::WithRawCallbackMethod_Forward<
              v1::WorkService::WithRawCallbackMethod_Backward<v1::WorkService::WithRawCallbackMethod_ForwardBackward<
                  v1::WorkService::WithRawCallbackMethod_OptimizerStep<v1::WorkService::WithRawCallbackMethod_TrainStep<
                      v1::WorkService::WithRawCallbackMethod_StreamWork<v1::WorkService::Service>>>>>>>> {
 public:
  explicit WorkServiceImpl(const ServiceEnvironment& environment);

  // Ends the streams when what they were asked is answered, so that the server can end. Close() after it has ended.
  void Shutdown() { streams_.Shutdown(); }
  void Close() { uploads_->Close(); }

  grpc::ServerUnaryReactor* Infer(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Evaluate(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Forward(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Backward(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ForwardBackward(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* OptimizerStep(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* TrainStep(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StreamWork(
      grpc::CallbackServerContext* context) override;

 private:
  // What all methods have in common, after the checks.
  struct Work {
    std::shared_ptr<ServedPipeline> pipeline;
    CallContext context;
    ReplyPlan plan;
  };
  template <typename Call>
  absl::StatusOr<Work> Begin(const Call& call);

  // Runs `go` when the call that this one must follow has been accepted: at once if there is none. A call that comes
  // too early keeps its place among the caller's calls in flight.
  // Fails:     DEADLINE_EXCEEDED / PREDECESSOR_PENDING when the reply's wait_for has passed; then `go` never runs.
  template <typename Call>
  void InOrder(const Call& call, const Work& work, const std::function<void()>& go);

  // Of a call that its caller may rely on.
  template <typename Response, typename Call>
  void ReplyWhenSettled(const Call& call, const Accepted& accepted, const ReplyPlan& plan);

  // The shape of every method, however the call came.
  template <typename Response, typename Call>
  void Run(const Call& call);
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Serve(const char* method, grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request, grpc::ByteBuffer* response);
  template <typename Request, typename Response>
  absl::Status ServeStreamed(const char* method, WorkStream& stream, uint64_t tag, int field, const Pieces& message);
  // A request on a stream, by the field that it stands in.
  absl::Status TakeStreamed(WorkStream& stream, uint64_t tag, int field, const Pieces& message);

  const ServiceEnvironment environment_;
  const ServiceGate gate_{environment_.authenticator, v1::WorkService::service_full_name()};
  const ServiceGate handle_gate_{environment_.authenticator, v1::HandleService::service_full_name()};
  const std::shared_ptr<CallOrder> order_ = std::make_shared<CallOrder>();  // timers hold a share
  const std::shared_ptr<TensorUploads> uploads_;
  RequestStreams streams_{"work_streams"};
};

}  // namespace penstock
