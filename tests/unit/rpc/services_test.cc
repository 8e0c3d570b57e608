// The services over an in-process channel, on fake pipelines: what a client sees of them.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/thread.h"
#include "engine/observe/trace_ring.h"
#include "engine/wire/checksum.h"
#include "server/rpc/convert/proto_convert.h"
#include "server/rpc/convert/status_to_grpc.h"
#include "server/rpc/streams/tensor_uploads.h"
#include "server/rpc/unary_call.h"
#include "tests/unit/rpc/services_fixture.h"

namespace penstock::testing {
namespace {

TEST_F(ServicesTest, AnswersInlineWhenAskedToWait) {
  v1::InferResponse response;
  const grpc::Status status = Infer(AskX({1, 2}, 30), &response);
  ASSERT_EQ(Reason(status), "OK") << status.error_message();
  EXPECT_EQ(response.outputs().handle().state(), v1::HANDLE_STATE_READY);
  ASSERT_EQ(response.outputs().tensors_size(), 1);
  EXPECT_EQ(response.outputs().tensors(0).header().name(), "y");
  EXPECT_EQ(response.outputs().tensors(0).data().size(), 8u);
}

TEST_F(ServicesTest, WholeTensorsReachThePipeline) {
  v1::InferRequest request = AskX({1, 2}, 30);
  request.mutable_inputs(0)->set_whole(true);
  v1::InferResponse response;
  const grpc::Status status = Infer(request, &response);
  ASSERT_EQ(Reason(status), "OK") << status.error_message();
  ASSERT_EQ(control_->inputs().size(), 1u);
  EXPECT_TRUE(control_->inputs()[0].value.is_whole());
  // So does one behind a handle.
  v1::InferRequest by_handle = AskX({}, 30);
  by_handle.mutable_inputs(0)->mutable_handle()->set_handle(response.outputs().handle().name());
  by_handle.mutable_inputs(0)->set_whole(true);
  v1::InferResponse again;
  ASSERT_EQ(Reason(Infer(by_handle, &again)), "OK");
  EXPECT_TRUE(control_->inputs()[0].value.is_whole());
  by_handle.mutable_inputs(0)->set_whole(false);
  ASSERT_EQ(Reason(Infer(by_handle, &again)), "OK");
  EXPECT_TRUE(control_->inputs()[0].value.is_tensor());
}

TEST_F(ServicesTest, PlainValuesReachThePipeline) {
  v1::InferRequest request = AskX({1, 2}, 30);
  const auto add = [&](const std::string& name) {
    request.add_inputs()->set_name(name);
    return request.mutable_inputs(request.inputs_size() - 1)->mutable_value();
  };
  add("flag")->set_bool_value(true);
  add("count")->set_int_value(-3);
  add("rate")->set_double_value(0.5);
  add("word")->set_string_value("yes");
  add("nothing");
  v1::InferResponse response;
  const grpc::Status status = Infer(request, &response);
  ASSERT_EQ(Reason(status), "OK") << status.error_message();
  const NamedValues inputs = control_->inputs();
  ASSERT_EQ(inputs.size(), 6u);
  EXPECT_TRUE(inputs[0].value.is_tensor());
  EXPECT_EQ(*inputs[1].value.boolean(), true);
  EXPECT_EQ(*inputs[2].value.integer(), -3);
  EXPECT_EQ(*inputs[3].value.number(), 0.5);
  EXPECT_EQ(*inputs[4].value.text(), "yes");
  EXPECT_TRUE(inputs[5].value.is_none());
  EXPECT_EQ(inputs[5].name, "nothing");
}

TEST_F(ServicesTest, OnlyTensorsAreWhole) {
  v1::InferRequest request = AskX({1, 2});
  request.add_inputs()->set_name("count");
  request.mutable_inputs(1)->mutable_value()->set_int_value(42);
  request.mutable_inputs(1)->set_whole(true);
  v1::InferResponse response;
  const grpc::Status status = Infer(request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Reason(status), "WRONG_TYPE");
  EXPECT_EQ(status.error_message(), "inputs[1].whole: NoChunk only supported for tensors, found: 42");
}

// The fake gives back what it gets.
TEST_F(ServicesTest, OutputsThatAreNoTensorsComeWithTheReplyAndByFetch) {
  v1::InferRequest request = AskX({1, 2}, 30);
  request.mutable_reply()->set_inline_bytes(1 << 20);
  request.add_inputs()->set_name("count");
  request.mutable_inputs(1)->mutable_value()->set_int_value(42);
  request.add_inputs()->set_name("state");
  v1::ValueDict* dict = request.mutable_inputs(2)->mutable_value()->mutable_dict();
  dict->add_entries()->set_name("none");
  v1::NamedValue* entry = dict->add_entries();
  entry->set_name("parts");
  *entry->mutable_value()->mutable_list()->add_items()->mutable_tensor() = request.inputs(0).tensor();
  v1::InferResponse response;
  ASSERT_EQ(Reason(Infer(request, &response)), "OK");
  const v1::Result& result = response.outputs();
  ASSERT_EQ(result.handle().state(), v1::HANDLE_STATE_READY) << result.handle().error().message();
  EXPECT_EQ(std::vector<std::string>(result.handle().values().begin(), result.handle().values().end()),
            (std::vector<std::string>{"count", "state"}));
  ASSERT_EQ(result.values_size(), 2);
  EXPECT_EQ(result.values(0).value().int_value(), 42);
  const v1::ValueDict& state = result.values(1).value().dict();
  EXPECT_EQ(state.entries(0).value().kind_case(), v1::Value::KIND_NOT_SET);
  EXPECT_EQ(state.entries(1).value().list().items(0).handle().tensor(), "state.0");
  ASSERT_EQ(result.tensors_size(), result.handle().tensors_size());
  EXPECT_EQ(result.handle().tensors(result.handle().tensors_size() - 1).name(), "state.0");

  // The same by a fetch, all or one; then as inputs.
  for (const std::string name : {"", "state", "state.0"}) {
    grpc::ClientContext context;
    As(&context);
    v1::FetchHandleRequest fetch;
    fetch.set_name(result.handle().name());
    fetch.set_tensor(name);
    auto stream = results_->FetchHandle(&context, fetch);
    v1::FetchHandleResponse answer;
    std::vector<std::string> values;
    int chunks = 0;
    while (stream->Read(&answer)) {
      if (answer.has_value()) {
        values.push_back(answer.value().name());
        EXPECT_EQ(chunks, 0) << "before the chunks";
      }
      chunks += answer.has_chunk() ? 1 : 0;
    }
    ASSERT_EQ(Reason(stream->Finish()), "OK");
    const std::vector<std::string> all = {"count", "state"};
    EXPECT_EQ(values, name.empty()      ? all
                      : name == "state" ? std::vector<std::string>{"state"}
                                        : std::vector<std::string>());
    EXPECT_EQ(chunks, name.empty() ? result.tensors_size() : name == "state" ? 0 : 1);
  }
  v1::InferRequest again = AskX({1, 2}, 30);
  again.add_inputs()->set_name("state");
  again.mutable_inputs(1)->mutable_handle()->set_handle(result.handle().name());
  again.mutable_inputs(1)->mutable_handle()->set_tensor("state");
  again.add_inputs()->set_name("inside");
  v1::HandleTensor* inside = again.mutable_inputs(2)->mutable_value()->mutable_tuple()->add_items()->mutable_handle();
  inside->set_handle(result.handle().name());
  inside->set_tensor("state.0");
  ASSERT_EQ(Reason(Infer(again, &response)), "OK");
  const NamedValues inputs = control_->inputs();
  EXPECT_EQ(inputs[1].value.dict()->at(1).second.list()->at(0).tensor()->numel(), 2);
  EXPECT_EQ(inputs[2].value.tuple()->at(0).tensor()->numel(), 2);
  // A value is no tensor: neither whole, nor inside of another.
  again.mutable_inputs(1)->set_whole(true);
  EXPECT_EQ(Reason(Infer(again, &response)), "WRONG_TYPE");
  again.mutable_inputs(1)->set_whole(false);
  inside->set_tensor("state");
  grpc::Status refused = Infer(again, &response);
  EXPECT_EQ(Reason(refused), "WRONG_TYPE");
  EXPECT_EQ(InfoOf(refused).metadata().at("field"), "inputs[2].value.tuple.items[0].handle");
  inside->set_tensor("nothing");
  refused = Infer(again, &response);
  EXPECT_EQ(Reason(refused), "TENSOR_SIGNATURE");
  EXPECT_EQ(InfoOf(refused).metadata().at("field"), "inputs[2].value.tuple.items[0].handle.tensor");
}

TEST_F(ServicesTest, ATargetAndItsWeightsMustBeTensors) {
  v1::TrainStepRequest request = Train(1);
  request.mutable_target()->set_whole(true);
  v1::TrainStepResponse response;
  grpc::Status status = TrainStep(request, &response);
  EXPECT_EQ(Reason(status), "WRONG_TYPE");
  EXPECT_EQ(status.error_message(), "target: expected Tensor, but got a whole one");
  request.mutable_target()->set_whole(false);
  request.mutable_target()->mutable_value()->set_string_value("x");
  status = TrainStep(request, &response);
  EXPECT_EQ(status.error_message(), "target: expected Tensor, but got str");
  request = Train(1);
  request.mutable_weights()->mutable_value()->set_string_value("x");
  status = TrainStep(request, &response);
  EXPECT_EQ(Reason(status), "WRONG_TYPE");
  EXPECT_EQ(status.error_message(), "weights: expected Tensor, but got str");
}

TEST_F(ServicesTest, BackwardAnswersTheGradientsOfInputsThatTheForwardAskedFor) {
  const auto forward = [&](int id, bool input_gradients) {
    grpc::ClientContext context;
    As(&context);
    v1::ForwardRequest request;
    request.set_pipeline("pipelines/gpt");
    request.set_request_id(Uuid(id));
    SetX(request.add_inputs(), {1, 1});
    request.set_input_gradients(input_gradients);
    request.mutable_reply()->mutable_wait_for()->set_seconds(30);
    v1::ForwardResponse response;
    EXPECT_EQ(Reason(work_->Forward(&context, request, &response)), "OK");
    return response.graph().handle().name();
  };
  const auto backward = [&](int id, const std::string& graph, bool input_gradients) {
    grpc::ClientContext context;
    As(&context);
    v1::BackwardRequest request;
    request.set_pipeline("pipelines/gpt");
    request.set_request_id(Uuid(id));
    request.set_graph(graph);
    SetX(request.add_gradients(), {3, 4}, "y");
    request.set_input_gradients(input_gradients);
    request.mutable_reply()->mutable_wait_for()->set_seconds(30);
    request.mutable_reply()->set_inline_bytes(1 << 20);
    v1::BackwardResponse response;
    EXPECT_EQ(Reason(work_->Backward(&context, request, &response)), "OK");
    return response;
  };
  v1::BackwardResponse response = backward(11, forward(10, true), true);
  EXPECT_EQ(response.outcome().handle().state(), v1::HANDLE_STATE_READY);
  ASSERT_EQ(response.input_gradients().tensors_size(), 1);  // the unused input has none
  EXPECT_EQ(response.input_gradients().tensors(0).header().name(), "x");
  EXPECT_EQ(response.input_gradients().tensors(0).data().size(), 8u);

  response = backward(13, forward(12, true), false);
  EXPECT_FALSE(response.has_input_gradients());

  const std::string without = forward(14, false);
  response = backward(15, without, true);
  EXPECT_EQ(response.outcome().handle().state(), v1::HANDLE_STATE_FAILED);
  EXPECT_EQ(response.input_gradients().handle().state(), v1::HANDLE_STATE_FAILED);
  EXPECT_EQ(response.outcome().handle().error().message(),
            "input_gradients: must have been asked of the forward too, got true");
  // The graph is still there.
  response = backward(16, without, false);
  EXPECT_EQ(response.outcome().handle().state(), v1::HANDLE_STATE_READY);
}

TEST_F(ServicesTest, AnswersAtOnceWithAPendingHandle) {
  control_->HoldInference();
  v1::InferResponse response;
  ASSERT_TRUE(Infer(AskX({1, 2}), &response).ok());
  EXPECT_EQ(response.outputs().handle().state(), v1::HANDLE_STATE_PENDING);
  control_->ResumeInference();
  grpc::ClientContext context;
  As(&context);
  v1::WaitHandlesRequest wait;
  wait.add_names(response.outputs().handle().name());
  wait.mutable_wait_for()->set_seconds(30);
  v1::WaitHandlesResponse answer;
  ASSERT_TRUE(results_->WaitHandles(&context, wait, &answer).ok());
  EXPECT_EQ(answer.handles(0).handle().state(), v1::HANDLE_STATE_READY);
}

TEST_F(ServicesTest, AnotherCallerSeesNothing) {
  v1::InferResponse response;
  ASSERT_TRUE(Infer(AskX({1, 2}, 30), &response).ok());
  grpc::ClientContext context;
  As(&context, "bob");
  v1::GetHandleRequest get;
  get.set_name(response.outputs().handle().name());
  v1::Handle handle;
  EXPECT_EQ(Reason(results_->GetHandle(&context, get, &handle)), "HANDLE_NOT_FOUND");
}

TEST_F(ServicesTest, ACallThatNobodyWaitsForIsCancelled) {
  control_->HoldInference();
  grpc::ClientContext context;
  As(&context);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  v1::InferResponse response;
  EXPECT_EQ(work_->Infer(&context, AskX({1, 2}, 60), &response).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  server_->Shutdown();  // waits for every call
  // The handle that nobody heard of has gone away by itself.
  EXPECT_EQ(handles_->TotalCounts().live(), 0);
}

TEST_F(ServicesTest, ACallWithARequestIdOutlivesItsClient) {
  control_->HoldInference();
  auto request = AskX({1, 2}, 60);
  request.set_request_id(Uuid(1));
  grpc::ClientContext context;
  As(&context);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  v1::InferResponse response;
  EXPECT_EQ(work_->Infer(&context, request, &response).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  const MethodMetrics& calls = registry_.server().MethodOf("/penstock.v1.WorkService/Infer");
  Await([&] { return calls.handled_by_code[1].value() + calls.handled_by_code[4].value() == 1; });
  // The server has heard that nobody waits.
  EXPECT_EQ(handles_->TotalCounts().live(), 1);
  control_->ResumeInference();
  ASSERT_EQ(Reason(Infer(request, &response)), "OK");
  EXPECT_EQ(response.outputs().handle().state(), v1::HANDLE_STATE_READY);
  EXPECT_EQ(response.outputs().tensors_size(), 1);
  EXPECT_EQ(handles_->TotalCounts().created, 1) << "the retry has the first one's result";
}

TEST_F(ServicesTest, AMethodThatThrowsFailsItsCallByAnIncident) {
  control_->ThrowIn("CheckInputs");
  v1::InferResponse response;
  const grpc::Status failed = Infer(AskX({1, 2}, 30), &response);
  EXPECT_EQ(failed.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(Reason(failed), "BUG");
  EXPECT_NE(failed.error_message().find("incident"), std::string::npos);
  control_->ThrowIn("CheckInputs");
  EXPECT_EQ(Reason(ModelInfer({1, 2})), "BUG") << "the open protocol too";
  EXPECT_EQ(admission_.in_flight(), 0);
  EXPECT_TRUE(Infer(AskX({1, 2}, 30), &response).ok());
}

TEST_F(ServicesTest, AMethodForWhichMemoryIsShortSaysSo) {
  control_->RunOutOfMemoryIn("CheckInputs");
  v1::InferResponse response;
  const grpc::Status failed = Infer(AskX({1, 2}, 30), &response);
  EXPECT_EQ(failed.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Reason(failed), "HOST_MEMORY");
  control_->RunOutOfMemoryIn("CheckInputs");
  EXPECT_EQ(Reason(ModelInfer({1, 2})), "HOST_MEMORY") << "the open protocol too";
  EXPECT_EQ(admission_.in_flight(), 0);
}

// A service whose one method does what a test says.
class OneMethod : public v1::WorkService::WithRawCallbackMethod_Infer<v1::WorkService::Service> {
 public:
  using Handler = std::function<void(const UnaryCallPtr<v1::InferRequest, v1::InferResponse>&)>;

  explicit OneMethod(Handler handler) : handler_(std::move(handler)) {}
  grpc::ServerUnaryReactor* Infer(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override {
    return ServeUnary<v1::InferRequest, v1::InferResponse>(gate_.Of("Infer"), context, request, response,
                                                           kWorkMessageBytes, handler_);
  }

 private:
  Authenticator authenticator_{Identity(), RealClock()};
  const ServiceGate gate_{&authenticator_, v1::WorkService::service_full_name()};
  const Handler handler_;
};

// A call whose callback is dropped, or ends by an exception, on a thread that knows nothing of calls.
TEST(UnaryCallTest, ACallThatNobodyCanAnswerAnyMoreFailsByAnIncident) {
  JobThread jobs("ps-test");
  OneMethod service([&](const auto& call) { jobs.Post([call] { throw std::runtime_error("x"); }); });
  const std::unique_ptr<grpc::Server> server = grpc::ServerBuilder().RegisterService(&service).BuildAndStart();
  const auto stub = v1::WorkService::NewStub(server->InProcessChannel({}));
  for (int i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    context.AddMetadata("penstock-caller", "ann");
    v1::InferResponse response;
    EXPECT_EQ(Reason(stub->Infer(&context, v1::InferRequest(), &response)), "BUG");
  }
}

TEST(UnaryCallTest, AnActionBehindACancelRunsAtOnce) {
  absl::Notification begun;
  absl::Notification cancelled;
  absl::Notification late;
  JobThread jobs("ps-test");
  OneMethod service([&](const auto& call) {
    call->OnCancelled([&] { cancelled.Notify(); });
    jobs.Post([&, call] {
      cancelled.WaitForNotification();
      call->OnCancelled([&] { late.Notify(); });
    });
    begun.Notify();
  });
  const std::unique_ptr<grpc::Server> server = grpc::ServerBuilder().RegisterService(&service).BuildAndStart();
  const auto stub = v1::WorkService::NewStub(server->InProcessChannel({}));
  grpc::ClientContext context;
  context.AddMetadata("penstock-caller", "ann");
  v1::InferResponse response;
  Thread sender("sender", [&] { stub->Infer(&context, v1::InferRequest(), &response).IgnoreError(); });
  begun.WaitForNotification();
  context.TryCancel();
  sender.Join();
  jobs.Close();
  EXPECT_TRUE(late.HasBeenNotified());
}

TEST_F(ServicesTest, ChecksBeforeItWorks) {
  v1::InferResponse response;
  auto request = AskX({1, 2});
  request.set_pipeline("gpt");
  EXPECT_EQ(Reason(Infer(request, &response)), "NAME_INVALID");
  request.set_pipeline("pipelines/nobody");
  EXPECT_EQ(Reason(Infer(request, &response)), "PIPELINE_NOT_FOUND");
  request = AskX({1, 2});
  request.mutable_inputs(0)->mutable_tensor()->mutable_header()->set_byte_size(9);
  EXPECT_EQ(Reason(Infer(request, &response)), "TENSOR_HEADER");
  request = AskX({1, 2});
  request.mutable_inputs(0)->mutable_tensor()->mutable_data()->pop_back();
  EXPECT_EQ(Reason(Infer(request, &response)), "TENSOR_HEADER");
  request = AskX({1, 2});
  request.add_inputs()->CopyFrom(request.inputs(0));
  EXPECT_EQ(Reason(Infer(request, &response)), "FIELD_INVALID");
  request = AskX({1, 2});
  request.mutable_reply()->set_inline_bytes((1 << 20) + 1);
  EXPECT_EQ(Reason(Infer(request, &response)), "FIELD_INVALID");
  request = AskX({1, 2});
  request.mutable_inputs(0)->mutable_tensor()->set_data(std::string(5 << 20, 'x'));
  EXPECT_EQ(Reason(Infer(request, &response)), "MESSAGE_TOO_LARGE");
  EXPECT_EQ(Reason(Infer(AskX({1, 2}), &response, "no spaces, please")), "NAME_INVALID");
  grpc::ClientContext two_callers;
  As(&two_callers, "ann");
  As(&two_callers, "bob");
  EXPECT_EQ(Reason(work_->Infer(&two_callers, AskX({1, 2}), &response)), "NAME_INVALID");
  v1::OptimizerStepRequest step;
  step.set_pipeline("pipelines/gpt");
  step.set_request_id(Uuid(1));
  step.set_force(true);
  v1::OptimizerStepResponse stepped;
  grpc::ClientContext forced;
  As(&forced);
  EXPECT_EQ(Reason(work_->OptimizerStep(&forced, step, &stepped)), "FIELD_INVALID") << "it goes with DISCARD";
  v1::TrainStepResponse trained;
  auto train = Train(1);
  train.clear_request_id();
  EXPECT_EQ(Reason(TrainStep(train, &trained)), "REQUEST_ID_MISSING");
  EXPECT_TRUE(Infer(AskX({1, 2}, 30), &response).ok());  // and goes on
}

TEST_F(ServicesTest, ARetryGetsTheFirstAnswer) {
  v1::TrainStepResponse first, again;
  const grpc::Status status = TrainStep(Train(1), &first);
  ASSERT_EQ(Reason(status), "OK") << status.error_message();
  EXPECT_EQ(first.outcome().handle().outcome().step(), 1);
  auto retry = Train(1);
  retry.mutable_reply()->set_inline_bytes(5);  // how to reply does not count
  ASSERT_EQ(Reason(TrainStep(retry, &again)), "OK");
  EXPECT_EQ(again.outcome().handle().name(), first.outcome().handle().name());
  auto other = Train(1);
  other.set_micro_batches(2);
  const grpc::Status refused = TrainStep(other, &again);
  EXPECT_EQ(Reason(refused), "REQUEST_ID_REUSED");
  EXPECT_EQ(InfoOf(refused).metadata().at("request_id"), Uuid(1));
}

TEST_F(ServicesTest, ACallThatComesTooEarlyIsAcceptedAfterTheOneThatItFollows) {
  auto second = Train(2);
  second.set_after_request_id(Uuid(1));
  v1::TrainStepResponse early, first, third;
  grpc::Status early_status;
  absl::Notification ended;
  Thread sender("second", [&] {
    early_status = TrainStep(second, &early);
    ended.Notify();
  });
  while (timers_.size() == 0 && !ended.HasBeenNotified()) std::this_thread::yield();  // it waits once it has a timer
  ASSERT_EQ(Reason(TrainStep(Train(1), &first)), "OK");
  ended.WaitForNotification();
  EXPECT_EQ(Reason(early_status), "OK") << early_status.error_message();
  EXPECT_EQ(first.outcome().handle().outcome().step(), 1);
  EXPECT_EQ(early.outcome().handle().outcome().step(), 2);
  EXPECT_EQ(timers_.size(), 2) << "the leases of both outcomes: no wait is left";
  auto late = Train(3);  // its predecessor has long been accepted
  late.set_after_request_id(Uuid(2));
  late.mutable_reply()->mutable_wait_for()->set_seconds(30);
  ASSERT_EQ(Reason(TrainStep(late, &third)), "OK");
  EXPECT_EQ(third.outcome().handle().outcome().step(), 3);
}

TEST_F(ServicesTest, ACallWhosePredecessorNeverComesHasNoEffect) {
  v1::TrainStepResponse response;
  auto orphan = Train(2);
  orphan.set_after_request_id(Uuid(1));
  orphan.mutable_reply()->clear_wait_for();
  EXPECT_EQ(Reason(TrainStep(orphan, &response)), "PREDECESSOR_PENDING");
  orphan.mutable_reply()->mutable_wait_for()->set_seconds(30);
  grpc::ClientContext context;
  As(&context);
  grpc::Status status;
  Thread sender("orphan", [&] { status = work_->TrainStep(&context, orphan, &response); });
  while (timers_.size() == 0) std::this_thread::yield();
  context.TryCancel();
  sender.Join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  while (admission_.in_flight() != 0) std::this_thread::yield();
  ASSERT_EQ(Reason(TrainStep(Train(1), &response)), "OK");
  EXPECT_EQ(response.outcome().handle().outcome().step(), 1);
  ASSERT_EQ(Reason(TrainStep(Train(3), &response)), "OK");
  EXPECT_EQ(response.outcome().handle().outcome().step(), 2);
  orphan.set_after_request_id("first");
  EXPECT_EQ(Reason(TrainStep(orphan, &response)), "FIELD_INVALID");
}

TEST_F(ServicesTest, OverloadIsRefusedWithATimeToComeBack) {
  control_->Hold();
  std::vector<std::shared_ptr<void>> tickets;
  for (int i = 0; i < 3; ++i) tickets.push_back(*admission_.Admit("ann", "gpt"));
  grpc::ClientContext context;
  As(&context);
  v1::InferResponse response;
  EXPECT_EQ(Reason(work_->Infer(&context, AskX({1, 2}), &response)), "CALLER_QUOTA");
  const auto& trailers = context.GetServerTrailingMetadata();
  ASSERT_EQ(trailers.count("grpc-retry-pushback-ms"), 1u);
  EXPECT_EQ(registry_.Find("gpt")->rejected[RejectReason::kQuota].value(), 1);
}

TEST_F(ServicesTest, ACallThatIsAnsweredKeepsItsPlaceUntilItsWorkHasEnded) {
  control_->HoldInference();
  v1::InferResponse response;
  for (int i = 0; i < 3; ++i) ASSERT_EQ(Reason(Infer(AskX({1, 2}), &response)), "OK");
  EXPECT_EQ(Reason(Infer(AskX({1, 2}), &response)), "CALLER_QUOTA");
  EXPECT_EQ(Reason(Infer(AskX({1, 2}), &response, "bob")), "OK");
  control_->AwaitInferences(4);
  control_->ResumeInference();
  EXPECT_EQ(Reason(Infer(AskX({1, 2}, 30), &response)), "OK");
  EXPECT_EQ(admission_.in_flight(), 0);
}

TEST_F(ServicesTest, AMessageOfManySmallPartsIsRefusedBeforeItGrows) {
  v1::InferRequest request = AskX({1, 2});
  for (int i = 0; i < 70'000; ++i) request.add_outputs();
  v1::InferResponse response;
  EXPECT_EQ(Reason(Infer(request, &response)), "FIELD_INVALID");
}

TEST_F(ServicesTest, ADrainingServerTakesNoWorkAndKeepsResults) {
  v1::InferResponse response;
  ASSERT_TRUE(Infer(AskX({1, 2}, 30), &response).ok());
  admission_.SetGate(Admission::Gate::kDraining);
  v1::InferResponse refused;
  const grpc::Status status = Infer(AskX({1, 2}), &refused);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Reason(status), "DRAINING");
  EXPECT_EQ(registry_.Find("gpt")->rejected[RejectReason::kDraining].value(), 1);
  grpc::ClientContext context;
  As(&context);
  v1::GetHandleRequest get;
  get.set_name(response.outputs().handle().name());
  v1::Handle handle;
  EXPECT_TRUE(results_->GetHandle(&context, get, &handle).ok());
}

// Fetches all messages of a handle.
struct Fetched {
  grpc::Status status;
  v1::Handle handle;
  std::string bytes;
  int chunks = 0;
};
Fetched Fetch(v1::HandleService::Stub* stub, const v1::FetchHandleRequest& request) {
  Fetched fetched;
  grpc::ClientContext context;
  context.AddMetadata("penstock-caller", "ann");
  auto reader = stub->FetchHandle(&context, request);
  v1::FetchHandleResponse message;
  while (reader->Read(&message)) {
    if (message.has_handle()) fetched.handle = message.handle();
    if (!message.has_chunk()) continue;
    EXPECT_EQ(message.chunk().crc32c(), Crc32c(message.chunk().data()));
    fetched.bytes += message.chunk().data();
    ++fetched.chunks;
  }
  fetched.status = reader->Finish();
  return fetched;
}

// Puts bytes as one FP32 tensor; stops after `max_chunks`.
grpc::Status Put(v1::HandleService::Stub* stub, const std::string& bytes, const std::string& request_id,
                 v1::Handle* handle, int max_chunks = 1000, int64_t chunk_bytes = 64 << 10,
                 int64_t* started_at = nullptr) {
  grpc::ClientContext context;
  context.AddMetadata("penstock-caller", "ann");
  auto stream = stub->PutTensors(&context);
  v1::PutTensorsRequest request;
  request.mutable_start()->set_pipeline("pipelines/gpt");
  request.mutable_start()->set_request_id(request_id);
  auto* header = request.mutable_start()->add_tensors();
  header->set_name("x");
  header->set_type(v1::DATA_TYPE_FP32);
  header->add_shape(static_cast<int64_t>(bytes.size()) / 4);
  header->set_byte_size(static_cast<int64_t>(bytes.size()));
  stream->Write(request);
  v1::PutTensorsResponse response;
  if (!stream->Read(&response)) return stream->Finish();
  int64_t offset = response.credit().next_offset();
  if (started_at != nullptr) *started_at = offset;
  for (int i = 0; i < max_chunks && offset < static_cast<int64_t>(bytes.size()); ++i) {
    v1::PutTensorsRequest message;
    message.mutable_chunk()->set_offset(offset);
    message.mutable_chunk()->set_data(bytes.substr(offset, chunk_bytes));
    message.mutable_chunk()->set_crc32c(Crc32c(message.chunk().data()));
    offset += static_cast<int64_t>(message.chunk().data().size());
    if (!stream->Write(message)) break;
  }
  stream->WritesDone();
  while (stream->Read(&response)) {
    if (response.has_handle()) *handle = response.handle();
  }
  return stream->Finish();
}

std::string Pattern(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 31 + i / 1000);
  return bytes;
}

TEST_F(ServicesTest, WhatWasPutCanBeFetchedFromAnyOffset) {
  const std::string bytes = Pattern(1'000'000);
  v1::Handle handle;
  const grpc::Status status = Put(results_.get(), bytes, "", &handle);
  ASSERT_EQ(Reason(status), "OK") << status.error_message();
  ASSERT_EQ(handle.state(), v1::HANDLE_STATE_READY);
  v1::FetchHandleRequest request;
  request.set_name(handle.name());
  request.set_chunk_size(64 << 10);
  Fetched all = Fetch(results_.get(), request);
  ASSERT_TRUE(all.status.ok());
  EXPECT_EQ(all.handle.name(), handle.name());
  EXPECT_EQ(all.chunks, 16);
  EXPECT_TRUE(all.bytes == bytes);
  request.set_tensor("x");
  request.set_offset(999'000);
  request.set_limit(500);
  EXPECT_TRUE(Fetch(results_.get(), request).bytes == bytes.substr(999'000, 500));
  request.set_offset(1'000'001);
  EXPECT_EQ(Reason(Fetch(results_.get(), request).status), "OFFSET_OUT_OF_RANGE");
  request.set_tensor("z");
  EXPECT_EQ(Reason(Fetch(results_.get(), request).status), "FIELD_INVALID");
}

TEST_F(ServicesTest, APartIsOfOneTensor) {
  const HandleName two = *handles_->Reserve({.owner = "ann", .pipeline = "gpt"});
  handles_->Fulfil(two.id, NamedTensors{{"x", at::full({2}, 1.0f)}, {"y", at::full({2}, 2.0f)}});
  v1::FetchHandleRequest request;
  request.set_name(ToString(two));
  EXPECT_EQ(Fetch(results_.get(), request).bytes.size(), 16u);
  request.set_limit(4);
  EXPECT_EQ(Reason(Fetch(results_.get(), request).status), "FIELD_INVALID");
  request.set_tensor("y");
  EXPECT_EQ(Fetch(results_.get(), request).bytes.size(), 4u);
}

// The start of an upload of one tensor.
v1::PutTensorsRequest StartOfPut(int64_t bytes) {
  v1::PutTensorsRequest start;
  start.mutable_start()->set_pipeline("pipelines/gpt");
  auto* header = start.mutable_start()->add_tensors();
  header->set_name("x");
  header->set_type(v1::DATA_TYPE_FP32);
  header->add_shape(bytes / 4);
  header->set_byte_size(bytes);
  return start;
}

// So that a client that has sent as much as it may goes on before all of it has come.
TEST_F(ServicesTest, APutGetsItsCreditBackInEighths) {
  constexpr int64_t kChunk = 512 << 10;
  constexpr int64_t kBytes = kPutCreditBytes / 4 + kChunk;
  grpc::ClientContext context;
  As(&context);
  auto stream = results_->PutTensors(&context);
  stream->Write(StartOfPut(kBytes));
  for (int64_t offset = 0; offset < kBytes; offset += kChunk) {
    v1::PutTensorsRequest message;
    message.mutable_chunk()->set_offset(offset);
    message.mutable_chunk()->set_data(std::string(kChunk, 'd'));
    message.mutable_chunk()->set_crc32c(Crc32c(message.chunk().data()));
    ASSERT_TRUE(stream->Write(message));
  }
  stream->WritesDone();
  std::vector<int64_t> credits;
  v1::PutTensorsResponse response;
  while (stream->Read(&response)) {
    if (response.has_credit()) credits.push_back(response.credit().bytes());
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(credits, (std::vector<int64_t>{kPutCreditBytes, kPutCreditBytes / 8, kPutCreditBytes / 8}));
}

TEST_F(ServicesTest, APutThatBreaksOffLeavesNothing) {
  v1::Handle handle;
  EXPECT_EQ(Reason(Put(results_.get(), Pattern(1'000'000), "", &handle, 3)), "CHUNK_SIZE");
  server_->Shutdown();  // waits for every stream
  EXPECT_EQ(handles_->TotalCounts().bytes, 0);
}

TEST_F(ServicesTest, APutGoesOnWhereItBrokeOff) {
  const std::string bytes = Pattern(1'000'000);
  v1::Handle handle;
  EXPECT_FALSE(Put(results_.get(), bytes, Uuid(1), &handle, 3).ok());
  int64_t started_at = 0;
  ASSERT_TRUE(Put(results_.get(), bytes, Uuid(1), &handle, 1000, 64 << 10, &started_at).ok());
  EXPECT_EQ(started_at, 3 * (64 << 10));
  v1::FetchHandleRequest request;
  request.set_name(handle.name());
  EXPECT_TRUE(Fetch(results_.get(), request).bytes == bytes);
  EXPECT_EQ(Reason(Put(results_.get(), Pattern(999'996), Uuid(1), &handle)), "REQUEST_ID_REUSED");
}

TEST_F(ServicesTest, PutsThatCantBeAreRefused) {
  v1::Handle handle;
  EXPECT_EQ(Reason(Put(results_.get(), Pattern(1'000'000), "", &handle, 1000, 1000)), "CHUNK_SIZE");
  EXPECT_EQ(Reason(Put(results_.get(), Pattern(4 << 20), "", &handle, 1000, 2 << 20)), "MESSAGE_TOO_LARGE");
  grpc::ClientContext context;
  As(&context);
  auto stream = results_->PutTensors(&context);
  v1::PutTensorsRequest chunk;
  chunk.mutable_chunk()->set_data("x");
  stream->Write(chunk);
  stream->WritesDone();
  EXPECT_EQ(Reason(stream->Finish()), "STREAM_PROTOCOL");
  grpc::ClientContext twice;
  As(&twice);
  stream = results_->PutTensors(&twice);
  v1::PutTensorsRequest start;
  start.mutable_start()->set_pipeline("pipelines/gpt");
  auto* header = start.mutable_start()->add_tensors();
  header->set_name("x");
  header->set_type(v1::DATA_TYPE_FP32);
  header->add_shape(1);
  header->set_byte_size(4);
  stream->Write(start);
  stream->Write(start);
  stream->WritesDone();
  v1::PutTensorsResponse response;
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(Reason(stream->Finish()), "STREAM_PROTOCOL");
}

TEST_F(ServicesTest, AnUploadThatOnlyTricklesIsEnded) {
  constexpr int64_t kBytes = int64_t{64} << 20;
  constexpr int64_t kChunk = 64 << 10;
  grpc::ClientContext context;
  As(&context);
  auto stream = results_->PutTensors(&context);
  stream->Write(StartOfPut(kBytes));
  v1::PutTensorsResponse response;
  ASSERT_TRUE(stream->Read(&response));
  int sent = 0;
  // Sends a chunk, which buys four seconds, and waits until it has come or the stream is over.
  const auto send = [&] {
    v1::PutTensorsRequest message;
    message.mutable_chunk()->set_offset(sent * kChunk);
    message.mutable_chunk()->set_data(std::string(kChunk, 'd'));
    message.mutable_chunk()->set_crc32c(Crc32c(message.chunk().data()));
    stream->Write(message);
    ++sent;
    Await([&] {
      const HandleStore::Counts counts = handles_->TotalCounts();
      return counts.live() == 0 || counts.bytes >= kPutCreditBytes + sent * kChunk;
    });
  };
  for (int i = 0; i < 20; ++i) {
    send();
    Advance(absl::Seconds(4));
  }
  EXPECT_EQ(handles_->TotalCounts().live(), 1) << "this is the least rate";
  for (int i = 0; i < 10; ++i) {
    send();
    Advance(absl::Seconds(20));
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server_->Shutdown();  // waits for every stream
  EXPECT_EQ(handles_->TotalCounts().live(), 0);
}

TEST_F(ServicesTest, AReaderThatStopsHoldsUpNobodyAndIsLetGo) {
  constexpr int64_t kBytes = int64_t{16} << 20;
  const HandleName name = *handles_->Reserve({.owner = "ann", .pipeline = "gpt", .bytes = kBytes});
  handles_->Fulfil(name.id, NamedTensors{{"large", at::full({kBytes / 4}, 0.0f)}});
  grpc::ClientContext context;
  As(&context);
  v1::FetchHandleRequest request;
  request.set_name(ToString(name));
  auto reader = results_->FetchHandle(&context, request);
  v1::FetchHandleResponse message;
  ASSERT_TRUE(reader->Read(&message));  // and nothing more for half a minute
  ASSERT_TRUE(handles_->Release("ann", name).ok());
  EXPECT_EQ(handles_->TotalCounts().bytes, kBytes) << "an open fetch keeps what it reads";
  EXPECT_EQ(ValueOf(*gpt_->Infer(Caller(), Ask(3))->outputs), 3);
  Advance(absl::Seconds(31));
  int64_t bytes = 0;
  while (reader->Read(&message)) bytes += static_cast<int64_t>(message.chunk().data().size());
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_LT(bytes, kBytes);
  Await([&] { return handles_->TotalCounts().bytes < kBytes; });
}

TEST_F(ServicesTest, RenewingAllTellsNamesAndTimesOnly) {
  NamedTensors many;
  for (int i = 0; i < 64; ++i) many.push_back({"t" + std::to_string(i), at::full({1}, 0.0f)});
  const HandleName ready = *handles_->Reserve({.owner = "ann", .pipeline = "gpt", .method = "PutTensors"});
  handles_->Fulfil(ready.id, std::move(many));
  const HandleName pending = *handles_->Reserve({.owner = "ann", .pipeline = "gpt"});
  ASSERT_TRUE(handles_->Reserve({.owner = "bob", .pipeline = "gpt"}).ok());
  grpc::ClientContext context;
  As(&context);
  v1::RenewHandlesRequest request;
  request.set_parent("pipelines/gpt");
  request.mutable_lease()->set_seconds(600);
  v1::RenewHandlesResponse response;
  ASSERT_EQ(Reason(results_->RenewHandles(&context, request, &response)), "OK");
  ASSERT_EQ(response.handles_size(), 2);
  v1::HandleAnswer expected;
  expected.set_name(ToString(ready));
  expected.mutable_handle()->set_name(ToString(ready));
  expected.mutable_handle()->set_state(v1::HANDLE_STATE_READY);
  *expected.mutable_handle()->mutable_expire_time() = ToTimestamp(clock_.WallNow() + absl::Minutes(10));
  EXPECT_EQ(response.handles(0).SerializeAsString(), expected.SerializeAsString()) << response.handles(0).DebugString();
  EXPECT_EQ(response.handles(1).name(), ToString(pending));
  EXPECT_FALSE(response.handles(1).handle().has_expire_time());
}

// 20 handles, each with 140 kB of headers, and behind them long errors.
TEST_F(ServicesTest, AReplyOfManyLongErrorsStaysBelowWhatClientsTake) {
  constexpr size_t kTaken = 4 << 20;  // gRPC's own limit
  constexpr int kHandles = 1000;
  constexpr int kFull = 20;
  NamedTensors many;
  for (int i = 0; i < 1'088; ++i) many.push_back({std::string(110, 'x') + std::to_string(i), at::full({1}, 0.0f)});
  Error error(absl::StatusCode::kFailedPrecondition, "LAYER_FAILED", std::string(600, 'x'));
  for (int i = 0; i < 16; ++i) error.With(absl::StrCat("value", i), std::string(256, 'y'));
  v1::WaitHandlesRequest wait;
  v1::ReleaseHandlesRequest release;
  for (int i = 0; i < kHandles; ++i) {
    const HandleName name = *handles_->Reserve({.owner = "ann", .pipeline = "gpt"});
    if (i < kFull) {
      handles_->Fulfil(name.id, many);
    } else {
      handles_->Fail(name.id, error);
    }
    wait.add_names(ToString(name));
    release.add_names(ToString(name));
  }
  v1::WaitHandlesResponse waited;
  {
    grpc::ClientContext context;
    As(&context);
    ASSERT_EQ(Reason(results_->WaitHandles(&context, wait, &waited)), "OK");
  }
  v1::ReleaseHandlesResponse released;
  {
    grpc::ClientContext context;
    As(&context);
    ASSERT_EQ(Reason(results_->ReleaseHandles(&context, release, &released)), "OK");
  }
  EXPECT_LT(waited.ByteSizeLong(), kTaken);
  EXPECT_LT(released.ByteSizeLong(), kTaken);
  ASSERT_EQ(waited.handles_size(), kHandles);
  for (int i = kFull; i < kHandles; ++i) {
    const google::rpc::Status& told = waited.handles(i).handle().error();
    EXPECT_EQ(told.code(), static_cast<int>(grpc::StatusCode::FAILED_PRECONDITION));
    google::rpc::ErrorInfo info;
    ASSERT_TRUE(told.details_size() > 0 && told.details(0).UnpackTo(&info));
    EXPECT_EQ(info.reason(), "LAYER_FAILED");
    EXPECT_EQ(info.domain(), "penstock.v1");
  }
  EXPECT_EQ(waited.handles(kFull).handle().error().message(), std::string(kMaxMessageBytes, 'x'))
      << "what finds room is whole";
  const google::rpc::Status& last = waited.handles(kHandles - 1).handle().error();
  EXPECT_LE(last.ByteSizeLong(), kShortErrorBytes);
  EXPECT_EQ(last.message(), std::string(128, 'x'));
}

// 40 handles, each with 140 kB of headers.
TEST_F(ServicesTest, RepliesOfManyHandlesStayBelowWhatClientsTake) {
  constexpr size_t kTaken = 4 << 20;  // gRPC's own limit
  constexpr int kHandles = 40;
  constexpr int kTensors = 1'088;
  NamedTensors many;
  for (int i = 0; i < kTensors; ++i) many.push_back({std::string(110, 'x') + std::to_string(i), at::full({1}, 0.0f)});
  v1::WaitHandlesRequest wait;
  v1::RenewHandlesRequest renew;
  for (int i = 0; i < kHandles; ++i) {
    const HandleName name = *handles_->Reserve({.owner = "ann", .pipeline = "gpt"});
    handles_->Fulfil(name.id, many);
    wait.add_names(ToString(name));
    renew.add_names(ToString(name));
  }
  v1::WaitHandlesResponse waited;
  v1::RenewHandlesResponse renewed;
  {
    grpc::ClientContext context;
    As(&context);
    ASSERT_EQ(Reason(results_->WaitHandles(&context, wait, &waited)), "OK");
  }
  {
    grpc::ClientContext context;
    As(&context);
    ASSERT_EQ(Reason(results_->RenewHandles(&context, renew, &renewed)), "OK");
  }
  EXPECT_LT(waited.ByteSizeLong(), kTaken);
  EXPECT_LT(renewed.ByteSizeLong(), kTaken);
  for (const auto& handles : {waited.handles(), renewed.handles()}) {
    ASSERT_EQ(handles.size(), kHandles);
    for (const v1::HandleAnswer& answer : handles) {
      EXPECT_EQ(answer.handle().tensors_size(), answer.handle().results_omitted() ? 0 : kTensors);
      EXPECT_EQ(answer.handle().state(), v1::HANDLE_STATE_READY);
    }
    EXPECT_FALSE(handles.at(0).handle().results_omitted());
    EXPECT_TRUE(handles.at(kHandles - 1).handle().results_omitted());
  }

  v1::ListHandlesRequest list;
  list.set_parent("pipelines/gpt");
  list.set_page_size(200);
  std::vector<std::string> listed;
  do {
    grpc::ClientContext context;
    As(&context);
    v1::ListHandlesResponse page;
    ASSERT_EQ(Reason(results_->ListHandles(&context, list, &page)), "OK");
    EXPECT_LT(page.ByteSizeLong(), kTaken);
    for (const v1::Handle& handle : page.handles()) {
      EXPECT_EQ(handle.tensors_size(), kTensors);
      listed.push_back(handle.name());
    }
    list.set_page_token(page.next_page_token());
  } while (!list.page_token().empty() && listed.size() <= kHandles);
  EXPECT_EQ(listed, std::vector<std::string>(wait.names().begin(), wait.names().end()));
}

TEST_F(ServicesTest, ListsGoOnFromTheirTokens) {
  std::vector<std::string> names;
  for (int i = 0; i < 5; ++i) {
    v1::InferResponse response;
    ASSERT_TRUE(Infer(AskX({1, 2}, 30), &response).ok());
    names.push_back(response.outputs().handle().name());
  }
  std::vector<std::string> listed;
  v1::ListHandlesRequest request;
  request.set_parent("pipelines/gpt");
  request.set_page_size(2);
  for (int page = 0; page < 3; ++page) {
    grpc::ClientContext context;
    As(&context);
    v1::ListHandlesResponse response;
    ASSERT_TRUE(results_->ListHandles(&context, request, &response).ok());
    for (const auto& handle : response.handles()) listed.push_back(handle.name());
    request.set_page_token(response.next_page_token());
  }
  EXPECT_EQ(listed, names);
  EXPECT_EQ(request.page_token(), "");
}

TEST_F(ServicesTest, AnUpdateGoesOverWhatThePipelineHasAndSaysWhatItCanNotChange) {
  v1::UpdatePipelineRequest request;
  request.set_name("pipelines/gpt");
  request.set_request_id(Uuid(7));
  const auto update = [&](v1::Pipeline* updated) {
    grpc::ClientContext context;
    As(&context);
    return pipelines_->UpdatePipeline(&context, request, updated);
  };
  v1::Pipeline pipeline;
  EXPECT_EQ(Reason(update(&pipeline)), "SPEC_INVALID") << "nothing is different";
  request.mutable_spec()->set_seed(3);
  EXPECT_EQ(Reason(update(&pipeline)), "SPEC_INVALID");
  request.mutable_spec()->clear_seed();
  request.mutable_spec()->mutable_cut();  // empty: it says nothing
  request.mutable_spec()->mutable_dynamic_batching()->set_max_rows(4);
  request.set_etag("0-0");
  EXPECT_EQ(Reason(update(&pipeline)), "ETAG_MISMATCH");
  request.clear_etag();
  ASSERT_TRUE(update(&pipeline).ok());
  EXPECT_EQ(pipeline.spec().dynamic_batching().max_rows(), 4);
  EXPECT_EQ(pipeline.spec().model().name(), "fake");
  EXPECT_FALSE(pipeline.etag().empty());

  v1::Pipeline again;  // a retry, though the pipeline has another etag by now
  ASSERT_TRUE(update(&again).ok());
  EXPECT_EQ(again.etag(), pipeline.etag());
  request.set_request_id(Uuid(8));
  request.set_etag(pipeline.etag());
  request.clear_spec();
  request.set_no_dynamic_batching(true);
  ASSERT_TRUE(update(&again).ok());
  EXPECT_FALSE(again.spec().has_dynamic_batching());
  EXPECT_NE(again.etag(), pipeline.etag());
  request.set_name("pipelines/nobody");
  EXPECT_EQ(Reason(update(&again)), "PIPELINE_NOT_FOUND");
}

TEST_F(ServicesTest, PipelinesComeAndGo) {
  v1::CreatePipelineRequest request;
  request.set_pipeline_id("second");
  request.set_request_id(Uuid(1));
  request.mutable_spec()->mutable_model()->set_name("fake");
  grpc::ClientContext creating;
  v1::Pipeline made;
  ASSERT_TRUE(pipelines_->CreatePipeline(&creating, request, &made).ok());
  EXPECT_EQ(made.name(), "pipelines/second");
  EXPECT_EQ(made.state(), v1::PIPELINE_STATE_READY);
  grpc::ClientContext listing;
  v1::ListPipelinesResponse list;
  ASSERT_TRUE(pipelines_->ListPipelines(&listing, {}, &list).ok());
  EXPECT_EQ(list.pipelines_size(), 2);
  grpc::ClientContext deleting;
  v1::DeletePipelineRequest remove;
  remove.set_name("pipelines/second");
  remove.set_request_id(Uuid(2));
  v1::DeletePipelineResponse removed;
  ASSERT_TRUE(pipelines_->DeletePipeline(&deleting, remove, &removed).ok());
  grpc::ClientContext getting;
  v1::GetPipelineRequest get;
  get.set_name("pipelines/second");
  EXPECT_EQ(Reason(pipelines_->GetPipeline(&getting, get, &made)), "PIPELINE_NOT_FOUND");
}

TEST_F(ServicesTest, PlansWithoutCreating) {
  v1::CreatePipelineRequest request;
  request.set_pipeline_id("third");
  request.set_validate_only(true);
  request.mutable_spec()->mutable_model()->set_name("fake");
  grpc::ClientContext context;
  v1::Pipeline planned;
  ASSERT_TRUE(pipelines_->CreatePipeline(&context, request, &planned).ok());
  EXPECT_EQ(planned.plan().predicted_bubble(), 0.25);
  EXPECT_FALSE(table_->Get("third").ok());
}

TEST_F(ServicesTest, PlanPipelineListsCandidatesAndWhatWasRefused) {
  v1::PlanPipelineRequest request;
  request.mutable_spec()->mutable_model()->set_name("fake");
  request.mutable_limits()->add_kinds("zb-h1");
  request.mutable_limits()->add_micro_batches(8);
  grpc::ClientContext context;
  v1::PlanPipelineResponse response;
  ASSERT_TRUE(pipelines_->PlanPipeline(&context, request, &response).ok());
  EXPECT_TRUE(searched_.limits.open.kind);
  EXPECT_EQ(searched_.limits.kinds, std::vector<std::string>{"zb-h1"});
  ASSERT_EQ(response.candidates_size(), 1);
  const v1::PlanCandidate& best = response.candidates(0);
  EXPECT_EQ(best.schedule().kind(), "zb-h1");
  EXPECT_EQ(best.schedule().micro_batches(), 8);
  EXPECT_EQ(best.balance_size(), 2);
  EXPECT_EQ(best.makespan_seconds(), 0.5);
  ASSERT_EQ(best.memory_size(), 1);
  EXPECT_EQ(best.memory(0).bytes(), 80);
  EXPECT_EQ(best.memory(0).limit_bytes(), 100);
  EXPECT_EQ(best.memory(0).lanes_size(), 2);
  EXPECT_EQ(best.memory(0).largest_class(), "activations");
  EXPECT_EQ(best.memory(0).largest_class_bytes(), 70);
  ASSERT_EQ(response.refused_size(), 1);
  EXPECT_EQ(response.refused(0).schedule().kind(), "gpipe");
  EXPECT_EQ(response.refused(0).why().message(), "too large");
  EXPECT_EQ(response.plan().predicted_bubble(), 0.125);
  EXPECT_EQ(response.considered(), 2);
  EXPECT_TRUE(response.complete());
}

TEST_F(ServicesTest, PlanPipelineSaysWhyThereIsNone) {
  v1::PlanPipelineRequest request;
  request.mutable_spec()->mutable_model()->set_name("huge");
  grpc::ClientContext context;
  v1::PlanPipelineResponse response;
  grpc::Status status = pipelines_->PlanPipeline(&context, request, &response);
  EXPECT_EQ(Reason(status), "NO_PLAN");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_message(), "there is no plan: too large");
  request.mutable_spec()->mutable_schedule()->set_micro_batches(0);
  grpc::ClientContext again;
  EXPECT_EQ(Reason(pipelines_->PlanPipeline(&again, request, &response)), "SPEC_INVALID");
}

TEST_F(ServicesTest, StatisticsComeAtOnceAndThenByTheClock) {
  grpc::ClientContext context;
  v1::WatchStatisticsRequest request;
  request.set_pipeline("pipelines/gpt");
  request.mutable_interval()->set_seconds(1);
  request.set_max_updates(2);
  auto reader = insight_->WatchStatistics(&context, request);
  v1::PipelineStatistics statistics;
  ASSERT_TRUE(reader->Read(&statistics));
  clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(reader->Read(&statistics));
  EXPECT_FALSE(reader->Read(&statistics));
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(ServicesTest, StatisticsRefuseAHastyInterval) {
  grpc::ClientContext context;
  v1::WatchStatisticsRequest request;
  request.set_pipeline("pipelines/gpt");
  request.mutable_interval()->set_nanos(99'000'000);
  auto reader = insight_->WatchStatistics(&context, request);
  EXPECT_EQ(Reason(reader->Finish()), "FIELD_INVALID");
}

TEST_F(ServicesTest, WatchesOfStatisticsAreLimited) {
  v1::WatchStatisticsRequest request;
  request.set_pipeline("pipelines/gpt");
  request.mutable_interval()->set_seconds(3600);
  v1::PipelineStatistics statistics;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::PipelineStatistics>>> readers;
  for (int i = 0; i < InsightServiceImpl::kMaxWatches; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    if (i >= InsightServiceImpl::kMaxWatches * 3 / 4) contexts.back()->AddMetadata("penstock-caller", "other");
    if (i == InsightServiceImpl::kMaxWatches * 3 / 4) {
      grpc::ClientContext more;
      EXPECT_EQ(Reason(insight_->WatchStatistics(&more, request)->Finish()), "CALLER_QUOTA");
    }
    readers.push_back(insight_->WatchStatistics(contexts.back().get(), request));
    ASSERT_TRUE(readers.back()->Read(&statistics));
  }
  grpc::ClientContext context;
  EXPECT_EQ(Reason(insight_->WatchStatistics(&context, request)->Finish()), "STREAM_LIMIT");
  EXPECT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1) << "when to come back";
  for (const auto& one : contexts) one->TryCancel();
}

TEST_F(ServicesTest, AWatcherOfStatisticsThatTakesNothingIsLetGo) {
  grpc::ClientContext context;
  v1::WatchStatisticsRequest request;
  request.set_pipeline("pipelines/gpt");
  request.mutable_interval()->set_seconds(1);
  auto reader = insight_->WatchStatistics(&context, request);
  v1::PipelineStatistics statistics;
  ASSERT_TRUE(reader->Read(&statistics));
  // Until the server has heard of that, its messages are taken; from then on nobody takes one.
  const MethodMetrics& calls = registry_.server().MethodOf("/penstock.v1.InsightService/WatchStatistics");
  Await([&] {
    Advance(absl::Seconds(1));
    return calls.handled_by_code[grpc::StatusCode::CANCELLED].value() == 1;
  });
  while (reader->Read(&statistics)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

// A lane's part of a training step that began at `begin`.
TraceRecord EndOfStep(int lane, int64_t begin, int64_t step) {
  return {.begin_nanos = begin,
          .end_nanos = begin + 1000,
          .kind = TraceKind::kRun,
          .detail = static_cast<uint8_t>(TraceRun::kTrainStep),
          .lane = static_cast<int16_t>(lane),
          .micro_batch = 2,
          .step = step,
          .run = step};
}

TEST_F(ServicesTest, ATraceOfTheNextStepsComesWhenTheyHaveEnded) {
  const auto metrics = registry_.Find("gpt");
  ASSERT_GT(metrics->lane_count(), 0);
  grpc::ClientContext context;
  v1::ExportTraceRequest request;
  request.set_pipeline("pipelines/gpt");
  request.set_steps(1);
  auto reader = insight_->ExportTrace(&context, request);
  v1::ExportTraceResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_FALSE(response.has_summary()) << "it has only begun";
  const int64_t begin = clock_.NowNanos();
  clock_.Advance(absl::Milliseconds(1));  // the step is over when its record comes
  for (int lane = 0; lane < metrics->lane_count(); ++lane) {
    metrics->lane(lane).trace.actions.Record(EndOfStep(lane, begin, 7));
  }
  {
    absl::Notification read;
    Thread time("time", [&] {
      // No faster than real time: a reader that takes nothing for too long would be given up.
      while (!read.WaitForNotificationWithTimeout(absl::Milliseconds(1))) Advance(absl::Milliseconds(1));
    });
    EXPECT_TRUE(reader->Read(&response));
    read.Notify();
  }
  EXPECT_EQ(response.summary().steps(), 1);
  EXPECT_FALSE(response.summary().incomplete());
  std::string file;
  while (reader->Read(&response)) file += response.data();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_NE(file.find("\"step 7\""), file.npos);
}

TEST_F(ServicesTest, TracesAreMadeOnTheirJobThreadAndTwoAtOnce) {
  const auto metrics = registry_.Find("gpt");
  v1::ExportTraceRequest request;
  request.set_pipeline("pipelines/gpt");
  request.set_steps(1);
  v1::ExportTraceResponse response;
  grpc::ClientContext contexts[4];
  auto first = insight_->ExportTrace(&contexts[0], request);
  auto second = insight_->ExportTrace(&contexts[1], request);
  ASSERT_TRUE(first->Read(&response) && second->Read(&response)) << "they have begun";
  absl::Notification go_on;
  trace_jobs_.Post([&] { go_on.WaitForNotification(); });
  const int64_t begin = clock_.NowNanos();
  clock_.Advance(absl::Milliseconds(1));
  for (int lane = 0; lane < metrics->lane_count(); ++lane) {
    metrics->lane(lane).trace.actions.Record(EndOfStep(lane, begin, 7));
  }
  Advance(absl::Seconds(1));  // returns: no timer waits for the job thread
  const grpc::Status refused = insight_->ExportTrace(&contexts[2], request)->Finish();
  EXPECT_EQ(Reason(refused), "STREAM_LIMIT");
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  go_on.Notify();
  for (const auto& reader : {first.get(), second.get()}) {
    while (reader->Read(&response)) {
    }
    EXPECT_EQ(Reason(reader->Finish()), "OK");
  }
  request.set_steps(0);
  auto next = insight_->ExportTrace(&contexts[3], request);
  while (next->Read(&response)) {
  }
  EXPECT_EQ(Reason(next->Finish()), "OK") << "a slot is free when its caller hears of the end";
}

TEST_F(ServicesTest, ATraceThatWasGivenUpKeepsItsSlotWhileItsWorkWaits) {
  absl::Notification go_on;
  trace_jobs_.Post([&] { go_on.WaitForNotification(); });
  v1::ExportTraceRequest request;
  request.set_pipeline("pipelines/gpt");
  for (int i = 0; i < 2; ++i) {
    grpc::ClientContext context;
    auto reader = insight_->ExportTrace(&context, request);
    Await([&] { return insight_service_->streams() == 1; });
    context.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
    Await([&] { return insight_service_->streams() == 0; });
  }
  grpc::ClientContext third;
  EXPECT_EQ(Reason(insight_->ExportTrace(&third, request)->Finish()), "STREAM_LIMIT");
  go_on.Notify();
  absl::Notification done;
  trace_jobs_.Post([&] { done.Notify(); });
  done.WaitForNotification();
  grpc::ClientContext fourth;
  auto next = insight_->ExportTrace(&fourth, request);
  v1::ExportTraceResponse response;
  while (next->Read(&response)) {
  }
  EXPECT_EQ(Reason(next->Finish()), "OK");
}

TEST_F(ServicesTest, ARecordingWithoutStepsEnds) {
  grpc::ClientContext context;
  v1::ExportTraceRequest request;
  request.set_pipeline("pipelines/gpt");
  request.set_steps(1);
  auto reader = insight_->ExportTrace(&context, request);
  v1::ExportTraceResponse response;
  ASSERT_TRUE(reader->Read(&response));
  absl::Notification ended;
  Thread time("time", [&] {
    while (!ended.WaitForNotificationWithTimeout(absl::Milliseconds(1))) Advance(absl::Seconds(1));
  });
  EXPECT_FALSE(reader->Read(&response));
  ended.Notify();
  EXPECT_EQ(Reason(reader->Finish()), "WORK_DEADLINE");
}

TEST_F(ServicesTest, GradientsAreReadByTheCallerThatHoldsThem) {
  const auto read = [&](const std::string& session, bool optimizer, v1::ReadParametersResponse* first,
                        const std::string& caller = "ann") {
    grpc::ClientContext context;
    As(&context, caller);
    context.AddMetadata("penstock-session", session);
    v1::ReadParametersRequest request;
    request.set_pipeline("pipelines/gpt");
    request.set_gradients(true);
    request.set_include_optimizer_state(optimizer);
    const auto reader = state_->ReadParameters(&context, request);
    v1::ReadParametersResponse dropped;
    if (reader->Read(first)) {
      while (reader->Read(&dropped)) {
      }
    }
    return Reason(reader->Finish());
  };
  v1::ReadParametersResponse first;
  EXPECT_EQ(read("one", false, &first), "ACCUMULATION_EMPTY");
  CallContext session = Caller();
  session.session = "one";
  Settled(*gpt_->ForwardBackward(session, Batch())->outcome);
  EXPECT_EQ(read("one", false, &first, "bob"), "ACCUMULATION_HELD");
  EXPECT_EQ(read("one", true, &first), "FIELD_INVALID");
  EXPECT_EQ(read("one", false, &first), "OK");
  ASSERT_EQ(first.start().tensors_size(), 1);
  EXPECT_EQ(first.start().tensors(0).name(), "scale.weight");
  Settled(*gpt_->OptimizerStep(Caller(), {.discard = true})->outcome);  // of no session
  EXPECT_EQ(read("one", false, &first), "ACCUMULATION_LOST");
}

TEST_F(ServicesTest, EvaluatesWithoutOutputs) {
  v1::EvaluateRequest request;
  request.set_pipeline("pipelines/gpt");
  SetX(request.add_inputs(), {3, 3});
  SetX(request.mutable_target(), {1, 1}, "target");
  request.add_metrics("rows");
  request.set_priority(4);
  request.mutable_reply()->mutable_wait_for()->set_seconds(30);
  const auto evaluate = [&](v1::EvaluateResponse* response) {
    grpc::ClientContext context;
    As(&context);
    return work_->Evaluate(&context, request, response);
  };
  v1::EvaluateResponse response;
  ASSERT_EQ(Reason(evaluate(&response)), "OK");
  const v1::Outcome& outcome = response.outcome().handle().outcome();
  EXPECT_EQ(response.outcome().handle().method(), "Evaluate");
  EXPECT_EQ(outcome.loss(), 2);
  EXPECT_EQ(outcome.counted_elements(), 2);
  EXPECT_EQ(outcome.metrics().at("rows"), 2);
  EXPECT_EQ(outcome.state_token(), gpt_->statistics().state_token);
  EXPECT_FALSE(outcome.has_measured_bubble());
  EXPECT_EQ(outcome.sequence(), 0);
  EXPECT_EQ(control_->inference_priorities().back(), 4);
  for (int i = 0; i < 64; ++i) request.add_metrics("rows");
  EXPECT_EQ(Reason(evaluate(&response)), "FIELD_INVALID");
}

TEST_F(ServicesTest, ReadersOfParametersHaveAPlaceInTheAdmission) {
  const auto read = [&](grpc::ClientContext* context) {
    As(context);
    v1::ReadParametersRequest request;
    request.set_pipeline("pipelines/gpt");
    return state_->ReadParameters(context, request);
  };
  control_->Hold();
  ASSERT_TRUE(gpt_->TrainStep(Caller(), Batch(), {}).ok());
  control_->AwaitHeld();  // the reads wait for its end
  v1::ReadParametersResponse response;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::ReadParametersResponse>>> readers;
  for (int i = 0; i < 3; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(read(contexts.back().get()));
  }
  Await([&] { return admission_.in_flight() == 3; });
  grpc::ClientContext fourth;
  EXPECT_EQ(Reason(read(&fourth)->Finish()), "CALLER_QUOTA");
  control_->Resume();
  for (const auto& reader : readers) {
    while (reader->Read(&response)) {
    }
    EXPECT_EQ(Reason(reader->Finish()), "OK");
  }
  EXPECT_EQ(admission_.in_flight(), 0) << "a place is free when its caller hears of the end";
}

TEST_F(ServicesTest, AReadThatWasGivenUpKeepsItsPlaceWhileItWaits) {
  control_->Hold();
  ASSERT_TRUE(gpt_->TrainStep(Caller(), Batch(), {}).ok());
  control_->AwaitHeld();
  v1::ReadParametersRequest request;
  request.set_pipeline("pipelines/gpt");
  for (int i = 1; i <= 3; ++i) {
    grpc::ClientContext context;
    As(&context);
    auto reader = state_->ReadParameters(&context, request);
    Await([&] { return admission_.in_flight() == i; });
    context.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  grpc::ClientContext fourth;
  As(&fourth);
  EXPECT_EQ(Reason(state_->ReadParameters(&fourth, request)->Finish()), "CALLER_QUOTA");
  EXPECT_EQ(admission_.in_flight(), 3);
  control_->Resume();
  Await([&] { return admission_.in_flight() == 0; });
}

TEST_F(ServicesTest, AFailureGivesThePlaceBackBeforeItIsTold) {
  for (const std::vector<std::string>& names : {std::vector<std::string>{"nobody"}, {"weight", "bias", "weight"}}) {
    grpc::ClientContext context;
    As(&context);
    v1::ReadParametersRequest request;
    request.set_pipeline("pipelines/gpt");
    for (const std::string& name : names) request.add_names(name);
    const grpc::Status failed = state_->ReadParameters(&context, request)->Finish();
    EXPECT_EQ(Reason(failed), names.size() == 1 ? "PARAMETER_NOT_FOUND" : "FIELD_INVALID");
    EXPECT_EQ(failed.error_message().find("names[2]") != std::string::npos, names.size() > 1);
    EXPECT_EQ(admission_.in_flight(), 0);
  }
  v1::Handle handle;
  EXPECT_EQ(Reason(Put(results_.get(), Pattern(1'000'000), "", &handle, 1000, 1000)), "CHUNK_SIZE");
  EXPECT_EQ(admission_.in_flight(), 0);
  EXPECT_TRUE(Put(results_.get(), Pattern(1'000'000), "", &handle).ok());
  EXPECT_EQ(admission_.in_flight(), 0);
}

TEST_F(ServicesTest, ARecordingWhoseCallerTakesNothingIsLetGo) {
  grpc::ClientContext context;
  v1::ExportTraceRequest request;
  request.set_pipeline("pipelines/gpt");
  request.set_steps(1);
  auto reader = insight_->ExportTrace(&context, request);
  Await([&] { return insight_service_->streams() == 1; });
  absl::Notification never;
  for (int second = 0; second < 1000 && insight_service_->streams() > 0; ++second) {
    Advance(absl::Seconds(1));
    never.WaitForNotificationWithTimeout(absl::Milliseconds(1));
  }
  EXPECT_EQ(insight_service_->streams(), 0);
  v1::ExportTraceResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(ServicesTest, ARecordingEndsWithTheService) {
  grpc::ClientContext context;
  v1::ExportTraceRequest request;
  request.set_pipeline("pipelines/gpt");
  request.set_steps(1);
  auto reader = insight_->ExportTrace(&context, request);
  v1::ExportTraceResponse response;
  ASSERT_TRUE(reader->Read(&response));
  insight_service_->Shutdown();
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(Reason(reader->Finish()), "DRAINING");
  grpc::ClientContext later;
  EXPECT_EQ(Reason(insight_->ExportTrace(&later, request)->Finish()), "DRAINING");
}

TEST_F(ServicesTest, WrittenParametersHaveTheStepThatCameWithThem) {
  const HandleName put = *handles_->Reserve({.owner = "ann", .pipeline = "gpt"});
  handles_->Fulfil(put.id, NamedTensors{{"scale.weight", at::full({1}, 5.0f)}});
  v1::WriteParametersRequest request;
  request.set_pipeline("pipelines/gpt");
  request.set_request_id(Uuid(1));
  request.add_handles(ToString(put));
  request.set_step(7);
  v1::WriteParametersResponse response;
  grpc::ClientContext context;
  As(&context);
  ASSERT_EQ(Reason(state_->WriteParameters(&context, request, &response)), "OK");
  EXPECT_EQ(response.step(), 7);
  EXPECT_EQ(gpt_->statistics().step, 7);
}

TEST_F(ServicesTest, TracesAndSchedulesOfNothingAreNamed) {
  const auto trace = [&](auto change) {
    grpc::ClientContext context;
    v1::ExportTraceRequest request;
    request.set_pipeline("pipelines/gpt");
    change(request);
    return Reason(insight_->ExportTrace(&context, request)->Finish());
  };
  EXPECT_EQ(trace([](auto& request) { request.set_first_step(1); }), "STEP_NOT_RETAINED");
  EXPECT_EQ(trace([](auto& request) { request.set_steps(-1); }), "FIELD_INVALID");
  const auto backwards = [](auto& request) {
    request.set_first_step(5);
    request.set_last_step(4);
  };
  EXPECT_EQ(trace(backwards), "FIELD_INVALID");
  EXPECT_EQ(trace([](auto& request) { request.set_pipeline("pipelines/none"); }), "PIPELINE_NOT_FOUND");
  EXPECT_EQ(trace([](auto& request) { request.set_pipeline("none"); }), "NAME_INVALID");
  const auto schedule = [&](auto change) {
    grpc::ClientContext context;
    v1::GetScheduleRequest request;
    v1::GetScheduleResponse response;
    request.set_pipeline("pipelines/gpt");
    request.set_source(v1::GetScheduleRequest::SOURCE_MEASURED);
    change(request);
    return Reason(insight_->GetSchedule(&context, request, &response));
  };
  EXPECT_EQ(schedule([](auto&) {}), "STEP_NOT_RETAINED");
  EXPECT_EQ(schedule([](auto& request) { request.set_step(-1); }), "FIELD_INVALID");
  EXPECT_EQ(schedule([](auto& request) { request.set_page_size(1001); }), "FIELD_INVALID");
  EXPECT_EQ(schedule([](auto& request) { request.set_page_token("x"); }), "PAGE_TOKEN_INVALID");
  EXPECT_EQ(schedule([](auto& request) { request.set_pipeline("pipelines/none"); }), "PIPELINE_NOT_FOUND");
}

TEST_F(ServicesTest, InfersByTheOpenProtocol) {
  inference::ModelInferResponse response;
  const grpc::Status status = ModelInfer({1, 2}, &response);
  ASSERT_EQ(Reason(status), "OK") << status.error_message();
  EXPECT_EQ(response.id(), "mine");
  ASSERT_EQ(response.outputs_size(), 1);
  EXPECT_EQ(response.outputs(0).datatype(), "FP32");
  ASSERT_EQ(response.raw_output_contents_size(), 1);
  EXPECT_EQ(response.raw_output_contents(0).size(), 8u);
  EXPECT_EQ(handles_->TotalCounts().live(), 0);  // nothing is left behind
}

TEST_F(ServicesTest, TypedContentsAreAsManyAsTheShapeSays) {
  inference::ModelInferRequest request;
  request.set_model_name("gpt");
  auto* input = request.add_inputs();
  input->set_name("x");
  input->set_datatype("FP32");
  input->add_shape(3);
  for (const float value : {1.0f, 2.0f}) input->mutable_contents()->add_fp32_contents(value);
  const auto infer = [&] {
    grpc::ClientContext context;
    inference::ModelInferResponse response;
    const grpc::Status status = inference_->ModelInfer(&context, request, &response);
    return Reason(status) + (status.ok() ? " " + std::to_string(response.raw_output_contents(0).size()) : "");
  };
  EXPECT_EQ(infer(), "TENSOR_HEADER");
  input->mutable_contents()->add_fp32_contents(3);
  EXPECT_EQ(infer(), "OK 12");
  input->set_shape(0, int64_t{1} << 28);  // a gibibyte
  EXPECT_EQ(infer(), "TENSOR_HEADER");
}

TEST_F(ServicesTest, TheOpenProtocolRefusesByName) {
  const auto infer = [&](auto change) {
    inference::ModelInferRequest request;
    request.set_model_name("gpt");
    auto* input = request.add_inputs();
    input->set_name("x");
    input->set_datatype("FP32");
    input->add_shape(2);
    request.add_raw_input_contents("12345678");
    change(&request);
    grpc::ClientContext context;
    inference::ModelInferResponse response;
    return Reason(inference_->ModelInfer(&context, request, &response));
  };
  using Request = inference::ModelInferRequest;
  EXPECT_EQ(infer([](Request* r) { r->set_model_name("none"); }), "PIPELINE_NOT_FOUND");
  EXPECT_EQ(infer([](Request* r) { r->set_model_version("2"); }), "MODEL_NOT_FOUND");
  EXPECT_EQ(infer([](Request* r) { (*r->mutable_parameters())["sequence_id"].set_int64_param(1); }), "FIELD_INVALID");
  EXPECT_EQ(infer([](Request* r) { (*r->mutable_parameters())["priority"].set_int64_param(-1); }), "FIELD_INVALID");
  EXPECT_EQ(infer([](Request* r) { (*r->mutable_parameters())["priority"].set_string_param("1"); }), "FIELD_INVALID");
  EXPECT_EQ(infer([](Request* r) { (*r->mutable_parameters())["timeout"].set_int64_param(-1); }), "FIELD_INVALID");
  EXPECT_EQ(infer([](Request* r) { (*r->mutable_parameters())["triton_x"].set_bool_param(true); }), "FIELD_INVALID");
  EXPECT_EQ(infer([](Request* r) {
              (*r->mutable_inputs(0)->mutable_parameters())["shared_memory_region"].set_string_param("a");
            }),
            "FEATURE_DISABLED");
  EXPECT_EQ(infer([](Request* r) { (*r->mutable_parameters())["timeout"].set_uint64_param(60'000'000); }), "OK");
}

// "ID: OK", "ID: message", or "end" behind the last answer.
template <typename Stream>
std::string NextOf(Stream& stream) {
  inference::ModelStreamInferResponse response;
  if (!stream->Read(&response)) return "end";
  const std::string& id = response.infer_response().id();
  if (!response.error_message().empty()) {
    EXPECT_EQ(response.infer_response().outputs_size(), 0);
    return id + ": " + response.error_message();
  }
  EXPECT_EQ(response.infer_response().model_name(), "gpt");
  EXPECT_EQ(response.infer_response().raw_output_contents_size(), 1);
  return id + ": OK " + std::to_string(response.infer_response().raw_output_contents(0).size());
}

TEST_F(ServicesTest, AStreamOfInferencesAnswersInTheOrderOfItsRequests) {
  control_->HoldInference();
  grpc::ClientContext context;
  const auto stream = inference_->ModelStreamInfer(&context);
  ASSERT_TRUE(stream->Write(AskModel({1, 2}, "a")));
  ASSERT_TRUE(stream->Write(AskModel({1, 2}, "b", "none")));  // fails at once
  ASSERT_TRUE(stream->Write(AskModel({1, 2, 3}, "c")));
  inference::ModelInferRequest without = AskModel({1, 2}, "d");
  without.clear_raw_input_contents();
  ASSERT_TRUE(stream->Write(without));
  const MethodMetrics& calls = registry_.server().MethodOf("/inference.GRPCInferenceService/ModelStreamInfer");
  Await([&] { return calls.messages_received.value() == 4; });
  EXPECT_EQ(calls.messages_sent.value(), 0);
  control_->ResumeInference();
  EXPECT_EQ(NextOf(stream), "a: OK 8");
  EXPECT_EQ(NextOf(stream), "b: there is no pipeline none");
  EXPECT_EQ(NextOf(stream), "c: OK 12");
  EXPECT_THAT(NextOf(stream), ::testing::StartsWith("d: inputs[0].contents: "));
  ASSERT_TRUE(stream->Write(AskModel({1}, "e"))) << "what fails does not end the stream";
  EXPECT_EQ(NextOf(stream), "e: OK 4");
  ASSERT_TRUE(stream->WritesDone());
  EXPECT_EQ(NextOf(stream), "end");
  EXPECT_EQ(Reason(stream->Finish()), "OK");
  EXPECT_EQ(handles_->TotalCounts().live(), 0);
  Await([&] { return admission_.in_flight() == 0; });
}

TEST_F(ServicesTest, AStreamReadsNoMoreThanItMayHaveOpen) {
  control_->HoldInference();
  grpc::ClientContext context;
  const auto stream = inference_->ModelStreamInfer(&context);
  constexpr int kRequests = InferStream::kMaxOpen + 4;
  Thread writer("writer", [&] {  // a write lasts until it is read
    for (int i = 0; i < kRequests; ++i) EXPECT_TRUE(stream->Write(AskModel({1, 2}, std::to_string(i))));
    EXPECT_TRUE(stream->WritesDone());
  });
  const MethodMetrics& calls = registry_.server().MethodOf("/inference.GRPCInferenceService/ModelStreamInfer");
  Await([&] { return calls.messages_received.value() >= InferStream::kMaxOpen; });
  grpc::ClientContext other;
  inference::ServerLiveResponse live;
  ASSERT_TRUE(inference_->ServerLive(&other, inference::ServerLiveRequest(), &live).ok());
  EXPECT_EQ(calls.messages_received.value(), InferStream::kMaxOpen);
  control_->ResumeInference();
  EXPECT_EQ(NextOf(stream), "0: OK 8");
  for (int i = 1; i < kRequests; ++i) EXPECT_THAT(NextOf(stream), ::testing::StartsWith(std::to_string(i) + ": "));
  writer.Join();
  EXPECT_EQ(NextOf(stream), "end");
  EXPECT_EQ(Reason(stream->Finish()), "OK");
}

TEST_F(ServicesTest, AnAnswerOnAStreamHasRoomInMemoryUntilTheClientTakesIt) {
  const std::vector<float> values(10'000, 1);
  constexpr int64_t kAnswer = 40'000;
  grpc::ClientContext context;
  const auto stream = inference_->ModelStreamInfer(&context);
  control_->HoldInference();
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(stream->Write(AskModel(values, id)));
  Await([&] { return admission_.in_flight() == 3; });
  control_->ResumeInference();
  // A request's room goes back after its place does: wait for both.
  const auto held = [&] { return memory_.BytesOf(MemoryClass::kMessages); };
  Await([&] { return admission_.in_flight() == 0 && held() < 4 * kAnswer; });
  EXPECT_GE(held(), 2 * kAnswer) << "the first may have gone out";
  for (const char* id : {"a", "b", "c"}) EXPECT_EQ(NextOf(stream), std::string(id) + ": OK 40000");
  ASSERT_TRUE(stream->WritesDone());
  EXPECT_EQ(NextOf(stream), "end");
  EXPECT_EQ(Reason(stream->Finish()), "OK");
  Await([&] { return memory_.BytesOf(MemoryClass::kMessages) == 0; });
}

TEST_F(ServicesTest, AStreamsRequestsAreAdmittedAsCallsAre) {
  control_->HoldInference();
  grpc::ClientContext context;
  const auto stream = inference_->ModelStreamInfer(&context);
  for (const char* id : {"1", "2", "3", "4"}) ASSERT_TRUE(stream->Write(AskModel({1, 2}, id)));
  const MethodMetrics& calls = registry_.server().MethodOf("/inference.GRPCInferenceService/ModelStreamInfer");
  Await([&] { return calls.messages_received.value() == 4 && admission_.in_flight() == 3; });
  EXPECT_EQ(Reason(ModelInfer({1, 2})), "CALLER_QUOTA") << "they are the caller's";
  control_->ResumeInference();
  for (const char* id : {"1", "2", "3"}) EXPECT_EQ(NextOf(stream), std::string(id) + ": OK 8");
  EXPECT_THAT(NextOf(stream), ::testing::HasSubstr("4: "));
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(ServicesTest, WhatRunsOnAStreamIsCancelledWithIt) {
  control_->HoldInference();
  {
    grpc::ClientContext context;
    const auto stream = inference_->ModelStreamInfer(&context);
    ASSERT_TRUE(stream->Write(AskModel({1, 2}, "a")));
    ASSERT_TRUE(stream->Write(AskModel({1, 2}, "b")));
    Await([&] { return admission_.in_flight() == 2; });
    context.TryCancel();
    EXPECT_EQ(NextOf(stream), "end");
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  control_->ResumeInference();
  Await([&] { return admission_.in_flight() == 0 && handles_->TotalCounts().live() == 0; });
}

TEST_F(ServicesTest, ARequestOfAStreamThatThrowsIsAnIncidentOfItsOwn) {
  grpc::ClientContext context;
  const auto stream = inference_->ModelStreamInfer(&context);
  control_->ThrowIn("CheckInputs");
  ASSERT_TRUE(stream->Write(AskModel({1, 2}, "a")));
  EXPECT_THAT(NextOf(stream), ::testing::HasSubstr("incident"));
  control_->RunOutOfMemoryIn("CheckInputs");
  ASSERT_TRUE(stream->Write(AskModel({1, 2}, "b")));
  EXPECT_THAT(NextOf(stream), ::testing::HasSubstr("memory"));
  ASSERT_TRUE(stream->Write(AskModel({1, 2}, "c")));
  EXPECT_EQ(NextOf(stream), "c: OK 8");
  ASSERT_TRUE(stream->WritesDone());
  EXPECT_EQ(Reason(stream->Finish()), "OK");
  Await([&] { return admission_.in_flight() == 0; });
}

TEST_F(ServicesTest, AStreamEndsWithTheServerOnceWhatWasAskedIsAnswered) {
  control_->HoldInference();
  grpc::ClientContext context;
  const auto stream = inference_->ModelStreamInfer(&context);
  ASSERT_TRUE(stream->Write(AskModel({1, 2}, "a")));
  Await([&] { return admission_.in_flight() == 1; });
  inference_service_->Shutdown();
  control_->ResumeInference();
  EXPECT_EQ(NextOf(stream), "a: OK 8");
  EXPECT_EQ(NextOf(stream), "end");
  EXPECT_EQ(Reason(stream->Finish()), "DRAINING");
  grpc::ClientContext late;
  EXPECT_EQ(Reason(inference_->ModelStreamInfer(&late)->Finish()), "DRAINING");
}

TEST_F(ServicesTest, StreamsOfInferencesAreLimited) {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<
      std::unique_ptr<grpc::ClientReaderWriter<inference::ModelInferRequest, inference::ModelStreamInferResponse>>>
      streams;
  for (int i = 0; i < RequestStreams::kMaxStreams; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    if (i >= RequestStreams::kMaxStreams * 3 / 4) contexts.back()->AddMetadata("penstock-caller", "other");
    if (i == RequestStreams::kMaxStreams * 3 / 4) {
      grpc::ClientContext more;
      EXPECT_EQ(Reason(inference_->ModelStreamInfer(&more)->Finish()), "CALLER_QUOTA");
    }
    streams.push_back(inference_->ModelStreamInfer(contexts.back().get()));
    ASSERT_TRUE(streams.back()->Write(AskModel({1}, "a", "none")));
    ASSERT_EQ(NextOf(streams.back()), "a: there is no pipeline none");
  }
  grpc::ClientContext context;
  EXPECT_EQ(Reason(inference_->ModelStreamInfer(&context)->Finish()), "STREAM_LIMIT");
  streams.back()->WritesDone();
  EXPECT_EQ(Reason(streams.back()->Finish()), "OK");
  grpc::ClientContext next;
  next.AddMetadata("penstock-caller", "other");
  const auto again = inference_->ModelStreamInfer(&next);
  if (!again->Write(AskModel({1, 2}, "b"))) FAIL() << Reason(again->Finish());
  EXPECT_EQ(NextOf(again), "b: OK 8");
  for (const auto& one : contexts) one->TryCancel();
}

TEST_F(ServicesTest, AnUnknownModelIsNotReady) {
  grpc::ClientContext context;
  inference::ModelReadyRequest request;
  request.set_name("none");
  inference::ModelReadyResponse response;
  ASSERT_TRUE(inference_->ModelReady(&context, request, &response).ok());
  EXPECT_FALSE(response.ready());
}

TEST_F(ServicesTest, CountsCallsByMethodAndCode) {
  v1::InferResponse response;
  ASSERT_TRUE(Infer(AskX({1, 2}, 30), &response).ok());
  auto request = AskX({1, 2});
  request.set_pipeline("gpt");
  Infer(request, &response).error_code();
  MethodMetrics& metrics = registry_.server().MethodOf("/penstock.v1.WorkService/Infer");
  EXPECT_EQ(metrics.started.value(), 2);
  EXPECT_EQ(metrics.handled_by_code[0].value(), 1);
  EXPECT_EQ(metrics.handled_by_code[3].value(), 1);
  EXPECT_EQ(metrics.messages_received.value(), 2);
  EXPECT_EQ(metrics.messages_sent.value(), 1);
}

// --- Checkpoints.

class CheckpointServicesTest : public ServicesTest {
 protected:
  struct Answer {
    std::string reason;
    v1::Checkpoint checkpoint;
  };
  Answer SaveAs(const std::string& id, bool replace = false, int keep = 0) {
    v1::SaveCheckpointRequest request;
    request.set_pipeline("pipelines/gpt");
    request.set_checkpoint_id(id);
    request.set_replace(replace);
    request.set_keep(keep);
    request.set_request_id(Uuid(++number_));
    grpc::ClientContext context;
    Answer answer;
    answer.reason = Reason(state_->SaveCheckpoint(&context, request, &answer.checkpoint));
    return answer;
  }
  // What a read of parameters ends with, and the names that came.
  std::string ReadOf(const v1::ReadParametersRequest& request, std::vector<std::string>* names) {
    grpc::ClientContext context;
    As(&context);
    auto reader = state_->ReadParameters(&context, request);
    v1::ReadParametersResponse response;
    names->clear();
    while (reader->Read(&response)) {
      for (const auto& header : response.start().tensors()) names->push_back(header.name());
    }
    return Reason(reader->Finish());
  }
  Answer CopyTo(const std::string& destination, const std::string& source, const std::string& id = "") {
    v1::CopyCheckpointRequest request;
    request.set_source(source);
    request.set_destination(destination);
    request.set_checkpoint_id(id);
    request.set_request_id(Uuid(++number_));
    grpc::ClientContext context;
    Answer answer;
    answer.reason = Reason(state_->CopyCheckpoint(&context, request, &answer.checkpoint));
    return answer;
  }
  std::string DeleteOne(const std::string& name) {
    v1::DeleteCheckpointRequest request;
    request.set_name(name);
    request.set_request_id(Uuid(++number_));
    grpc::ClientContext context;
    v1::DeleteCheckpointResponse response;
    return Reason(state_->DeleteCheckpoint(&context, request, &response));
  }
  // All pages.
  std::vector<v1::Checkpoint> ListOf(const std::string& parent, int size, std::string* reason = nullptr) {
    std::vector<v1::Checkpoint> all;
    v1::ListCheckpointsRequest request;
    request.set_parent(parent);
    request.set_page_size(size);
    while (true) {
      grpc::ClientContext context;
      v1::ListCheckpointsResponse response;
      const grpc::Status status = state_->ListCheckpoints(&context, request, &response);
      if (reason != nullptr) *reason = Reason(status);
      EXPECT_LE(response.checkpoints_size(), size);
      all.insert(all.end(), response.checkpoints().begin(), response.checkpoints().end());
      request.set_page_token(response.next_page_token());
      if (!status.ok() || request.page_token().empty()) return all;
    }
  }
  struct Made {
    grpc::Status status;
    v1::Pipeline pipeline;
    std::string reason() const { return Reason(status); }
  };
  Made CreateBy(v1::CreatePipelineRequest request) {
    request.set_request_id(Uuid(++number_));
    grpc::ClientContext context;
    As(&context);
    Made made;
    made.status = pipelines_->CreatePipeline(&context, request, &made.pipeline);
    return made;
  }
  static v1::CreatePipelineRequest Asked(const std::string& name) {
    v1::CreatePipelineRequest request;
    request.set_pipeline_id(name);
    request.mutable_spec()->mutable_model()->set_name("fake");
    request.mutable_spec()->set_seed(5);
    return request;
  }

  int number_ = 100;
};

TEST_F(CheckpointServicesTest, SavesTellHowLongTheyAreKept) {
  EXPECT_FALSE(SaveAs("a").checkpoint.rotating());
  EXPECT_TRUE(SaveAs("b", false, 1).checkpoint.rotating());
  EXPECT_EQ(SaveAs("a").reason, "CHECKPOINT_EXISTS");
  EXPECT_EQ(SaveAs("a", true).reason, "OK");
  EXPECT_EQ(SaveAs("c", false, 1).reason, "OK");
  EXPECT_EQ(ListOf("pipelines/gpt", 10).size(), 2u) << "b is gone";
  EXPECT_EQ(SaveAs("d", false, -1).reason, "FIELD_INVALID");
  EXPECT_EQ(SaveAs("d", false, 10'001).reason, "FIELD_INVALID");
}

TEST_F(CheckpointServicesTest, WhatACheckpointHoldsIsReadWithoutItsPipeline) {
  SaveAs("a");
  gpt_ = nullptr;
  ASSERT_TRUE(Delete("gpt").ok());
  v1::ReadParametersRequest request;
  request.set_checkpoint("pipelines/gpt/checkpoints/a");
  std::vector<std::string> names;
  EXPECT_EQ(ReadOf(request, &names), "OK");
  EXPECT_EQ(names, std::vector<std::string>{"scale.weight"});
  EXPECT_EQ(admission_.in_flight(), 0);
  request.set_include_optimizer_state(true);
  EXPECT_EQ(ReadOf(request, &names), "OK");
  EXPECT_EQ(names, (std::vector<std::string>{"scale.weight", "optimizer/scale.weight/momentum"}));
  request.set_include_optimizer_state(false);
  request.set_gradients(true);
  EXPECT_EQ(ReadOf(request, &names), "FIELD_INVALID");
  request.set_gradients(false);
  request.set_pipeline("pipelines/gpt");
  EXPECT_EQ(ReadOf(request, &names), "FIELD_INVALID") << "one or the other";
  request.clear_pipeline();
  request.set_checkpoint("pipelines/gpt/checkpoints/none");
  EXPECT_EQ(ReadOf(request, &names), "CHECKPOINT_NOT_FOUND");
  request.set_checkpoint("pipelines/none/checkpoints/a");
  EXPECT_EQ(ReadOf(request, &names), "CHECKPOINT_NOT_FOUND");
  request.set_checkpoint("gpt/a");
  EXPECT_EQ(ReadOf(request, &names), "NAME_INVALID");
}

TEST_F(CheckpointServicesTest, ThoseOfDeletedPipelinesAreListedInPages) {
  ASSERT_TRUE(Create("mlp").ok());
  SaveAs("a");
  SaveAs("b");
  for (const char* id : {"a", "b", "c"})
    EXPECT_EQ(CopyTo("pipelines/mlp", "pipelines/gpt/checkpoints/a", id).reason, "OK");
  gpt_ = nullptr;
  ASSERT_TRUE(Delete("gpt").ok());
  for (const int size : {1, 2, 3, 10}) {
    std::vector<std::string> names;
    for (const v1::Checkpoint& checkpoint : ListOf("pipelines/-", size)) {
      names.push_back(checkpoint.name() + (checkpoint.pipeline_exists() ? "" : " deleted"));
    }
    EXPECT_EQ(names, (std::vector<std::string>{"pipelines/gpt/checkpoints/a deleted",
                                               "pipelines/gpt/checkpoints/b deleted", "pipelines/mlp/checkpoints/a",
                                               "pipelines/mlp/checkpoints/b", "pipelines/mlp/checkpoints/c"}))
        << size;
    EXPECT_EQ(ListOf("pipelines/gpt", size).size(), 2u);
  }
  std::string reason;
  EXPECT_TRUE(ListOf("pipelines/none", 10, &reason).empty());
  EXPECT_EQ(reason, "PIPELINE_NOT_FOUND");
  ListOf("pipelines/-/checkpoints", 10, &reason);
  EXPECT_EQ(reason, "NAME_INVALID");
  EXPECT_EQ(DeleteOne("pipelines/gpt/checkpoints/a"), "OK");
  EXPECT_EQ(DeleteOne("pipelines/gpt/checkpoints/a"), "CHECKPOINT_NOT_FOUND");
  EXPECT_EQ(DeleteOne("pipelines/none/checkpoints/a"), "PIPELINE_NOT_FOUND");
  EXPECT_EQ(DeleteOne("pipelines/gpt/checkpoints/b"), "OK");
  ListOf("pipelines/gpt", 10, &reason);
  EXPECT_EQ(reason, "PIPELINE_NOT_FOUND") << "it has left nothing";
}

TEST_F(CheckpointServicesTest, CopiesAreCheckedByName) {
  SaveAs("a");
  const std::string a = "pipelines/gpt/checkpoints/a";
  EXPECT_EQ(CopyTo("pipelines/gpt", a).reason, "CHECKPOINT_EXISTS");
  EXPECT_EQ(CopyTo("pipelines/gpt", a, "x/y").reason, "NAME_INVALID");
  EXPECT_EQ(CopyTo("pipelines/gpt", "pipelines/gpt/checkpoints/../a").reason, "NAME_INVALID");
  EXPECT_EQ(CopyTo("pipelines/none", a).reason, "PIPELINE_NOT_FOUND");
  EXPECT_EQ(CopyTo("pipelines/gpt", "pipelines/none/checkpoints/a").reason, "CHECKPOINT_NOT_FOUND");
}

TEST_F(CheckpointServicesTest, APipelineIsMadeFromACheckpointAlone) {
  ASSERT_EQ(CreateBy(Asked("one")).reason(), "OK");
  gpt_ = *table_->Find("one");
  Settled(*gpt_->TrainStep(Caller(), Batch(), {})->outcome);
  ASSERT_TRUE(Save("mine").ok());
  const v1::Checkpoint listed = ListOf("pipelines/one", 10).at(0);
  EXPECT_EQ(listed.model(), "fake");
  EXPECT_TRUE(listed.has_specification());
  gpt_ = nullptr;
  ASSERT_TRUE(Delete("one").ok());

  v1::CreatePipelineRequest request;
  request.set_pipeline_id("two");
  request.set_from_checkpoint("pipelines/one/checkpoints/mine");
  const Made made = CreateBy(request);
  ASSERT_EQ(made.reason(), "OK") << made.status.error_message();
  EXPECT_EQ(made.pipeline.step(), 1);
  EXPECT_EQ(made.pipeline.spec().model().name(), "fake");
  EXPECT_EQ(made.pipeline.spec().seed(), 5);
  EXPECT_EQ(made.pipeline.spec().schedule().micro_batches(), 2) << "as it was planned";
  EXPECT_EQ(made.pipeline.spec().cut().balance_size(), 1);

  request.set_pipeline_id("three");
  request.mutable_spec()->mutable_optimizer()->set_name("sgd");
  request.mutable_spec()->mutable_cut()->set_stages(1);
  EXPECT_EQ(CreateBy(request).pipeline.spec().optimizer().name(), "sgd");

  request.set_from_checkpoint("pipelines/one/checkpoints/none");
  EXPECT_EQ(CreateBy(request).reason(), "CHECKPOINT_NOT_FOUND");
  request.set_from_checkpoint("one/mine");
  EXPECT_EQ(CreateBy(request).reason(), "NAME_INVALID");
}

TEST_F(CheckpointServicesTest, AnEqualPipelineMayExist) {
  v1::CreatePipelineRequest request = Asked("one");
  ASSERT_EQ(CreateBy(request).reason(), "OK");
  EXPECT_EQ(CreateBy(request).reason(), "PIPELINE_EXISTS");
  request.set_exist_ok(true);
  EXPECT_EQ(CreateBy(request).reason(), "OK");
  request.mutable_spec()->mutable_optimizer()->set_name("adamw");
  EXPECT_EQ(CreateBy(request).reason(), "OK") << "a default that is said";
  request.mutable_spec()->mutable_optimizer()->set_name("sgd");
  const Made made = CreateBy(request);
  EXPECT_EQ(made.reason(), "PIPELINE_EXISTS");
  EXPECT_NE(made.status.error_message().find("modified: optimizer.name: \"adamw\" -> \"sgd\""), std::string::npos)
      << made.status.error_message();
}

}  // namespace
}  // namespace penstock::testing
