// What gRPC itself costs: a server of the Open Inference Protocol that returns its input and computes nothing.
//
//   echo_server HOST:PORT [SLEEPS MILLISECONDS]
//
// With the last two, a request first sleeps so often and so long, as layers `delay` do; else it is answered at once.
// It has one model of whatever name, with the rows of `penstock bench --rows`: FP32 of 64 columns, or of as many as
// --sequence says.

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "engine/base/clock.h"
#include "inference/grpc_service.grpc.pb.h"

namespace penstock::bench {
namespace {

class Echo final : public inference::GRPCInferenceService::CallbackService {
 public:
  Echo(int sleeps, double milliseconds) : sleeps_(sleeps), nanos_(static_cast<int64_t>(milliseconds * 1e6)) {}

 private:
  grpc::ServerUnaryReactor* ModelMetadata(grpc::CallbackServerContext* context,
                                          const inference::ModelMetadataRequest* request,
                                          inference::ModelMetadataResponse* response) override {
    response->set_name(request->name());
    auto* input = response->add_inputs();
    input->set_name("input");
    input->set_datatype("FP32");
    for (int i = 0; i < 2; ++i) input->add_shape(-1);
    return Done(context);
  }
  grpc::ServerUnaryReactor* ModelInfer(grpc::CallbackServerContext* context,
                                       const inference::ModelInferRequest* request,
                                       inference::ModelInferResponse* response) override {
    for (int i = 0; i < sleeps_; ++i) SleepUntilNanos(RealClock()->NowNanos() + nanos_);
    response->set_model_name(request->model_name());
    auto* output = response->add_outputs();
    output->set_name("output");
    output->set_datatype(request->inputs(0).datatype());
    *output->mutable_shape() = request->inputs(0).shape();
    response->add_raw_output_contents(request->raw_input_contents(0));
    return Done(context);
  }
  grpc::ServerUnaryReactor* ModelStatistics(grpc::CallbackServerContext* context,
                                            const inference::ModelStatisticsRequest* request,
                                            inference::ModelStatisticsResponse* response) override {
    response->add_model_stats()->set_name(request->name());
    return Done(context);
  }

  static grpc::ServerUnaryReactor* Done(grpc::CallbackServerContext* context) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  const int sleeps_;
  const int64_t nanos_;
};

int Run(const std::string& address, int sleeps, double milliseconds) {
  Echo echo(sleeps, milliseconds);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterService(&echo);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  server->Wait();
  return 0;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  if (argc != 2 && argc != 4) {
    std::fprintf(stderr, "usage: echo_server HOST:PORT [SLEEPS MILLISECONDS]\n");
    return 2;
  }
  return argc == 2 ? penstock::bench::Run(argv[1], 0, 0)
                   : penstock::bench::Run(argv[1], std::atoi(argv[2]), std::atof(argv[3]));
}
