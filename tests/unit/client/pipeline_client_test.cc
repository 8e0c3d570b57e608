#include "client/lib/pipeline_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "tests/unit/client/fake_daemon.h"
#include "tests/unit/client/jumping_clock.h"

namespace penstock {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::FakeDaemon;
using ::testing::Pair;
using testing::RichStatus;
using ::testing::SizeIs;

constexpr char kTraceparent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

class PipelineClientTest : public ::testing::Test {
 protected:
  PipelineClientTest() {
    ClientOptions options;
    options.channel = daemon_.Channel();
    options.caller = "tester";
    options.traceparent = kTraceparent;
    options.clock = &clock_;
    client_ = *PipelineClient::Create(options);
  }

  static HostTensor Tensor(const std::string& name, size_t bytes, char first = 'a') {
    std::string data(bytes, '\0');
    for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(first + i * 7 % 251);
    return *HostTensor::FromBytes({name, DataType::kUint8, {static_cast<int64_t>(bytes)}, 0}, data);
  }

  static v1::TrainStepRequest Step(size_t bytes) {
    v1::TrainStepRequest request;
    request.set_pipeline("pipelines/gpt");
    request.add_inputs()->set_name("tokens");
    *request.mutable_inputs(0)->mutable_tensor() = Tensor("tokens", bytes).ToMessage();
    request.mutable_target()->set_name("targets");
    *request.mutable_target()->mutable_tensor() = Tensor("tokens", bytes).ToMessage();
    return request;
  }

  FakeDaemon daemon_;
  testing::JumpingClock clock_;
  std::unique_ptr<PipelineClient> client_;
};

TEST_F(PipelineClientTest, ARetryCarriesTheSameRequestId) {
  daemon_.Fail("TrainStep", RichStatus(grpc::StatusCode::UNAVAILABLE, "DRAINING", "later"));
  daemon_.Fail("TrainStep", grpc::Status(grpc::StatusCode::UNAVAILABLE, "connection reset"));
  const auto response = client_->TrainStep(Step(8));
  ASSERT_TRUE(response.ok()) << response.status();
  const std::vector<std::string> ids = daemon_.RequestIds("TrainStep");
  ASSERT_THAT(ids, SizeIs(3));
  EXPECT_THAT(ids, Each(ids[0]));
  EXPECT_EQ(ids[0].size(), 36);
  EXPECT_EQ(response->request_id(), ids[0]);
  EXPECT_EQ(daemon_.Steps(), 1);
}

TEST_F(PipelineClientTest, DifferentCallsHaveDifferentRequestIds) {
  ASSERT_TRUE(client_->TrainStep(Step(8)).ok());
  ASSERT_TRUE(client_->TrainStep(Step(8)).ok());
  const std::vector<std::string> ids = daemon_.RequestIds("TrainStep");
  EXPECT_NE(ids[0], ids[1]);
}

TEST_F(PipelineClientTest, WaitsAsLongAsTheServerAsks) {
  daemon_.Fail("TrainStep", RichStatus(grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL", "full", {}, 3));
  ASSERT_TRUE(client_->TrainStep(Step(8)).ok());
  EXPECT_THAT(clock_.waits(), ElementsAre(absl::Seconds(3)));
}

TEST_F(PipelineClientTest, PushbackInTrailersReplacesTheBackoff) {
  daemon_.PushBack("250");
  daemon_.Fail("TrainStep", RichStatus(grpc::StatusCode::UNAVAILABLE, "STARTING", "later"));
  ASSERT_TRUE(client_->TrainStep(Step(8)).ok());
  EXPECT_THAT(clock_.waits(), ElementsAre(absl::Milliseconds(250)));
}

TEST_F(PipelineClientTest, NegativePushbackForbidsARetry) {
  daemon_.PushBack("-1");
  daemon_.Fail("TrainStep", RichStatus(grpc::StatusCode::UNAVAILABLE, "STARTING", "later"));
  EXPECT_EQ(client_->TrainStep(Step(8)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(daemon_.RequestIds("TrainStep"), SizeIs(1));
}

TEST_F(PipelineClientTest, ErrorsHaveReasonValuesAndRequestId) {
  daemon_.Fail("CreatePipeline", RichStatus(grpc::StatusCode::INVALID_ARGUMENT, "SPEC_INVALID", "blocks: must be > 0",
                                            {{"field", "model.options.blocks"}, {"value", "0"}}));
  const absl::Status status = client_->CreatePipeline({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()), "blocks: must be > 0");
  EXPECT_EQ(ReasonOf(status), "SPEC_INVALID");
  EXPECT_THAT(ValuesOf(status),
              ElementsAre(Pair("field", "model.options.blocks"),
                          Pair("request_id", daemon_.RequestIds("CreatePipeline")[0]), Pair("value", "0")));
  EXPECT_THAT(daemon_.RequestIds("CreatePipeline"), SizeIs(1));
}

TEST_F(PipelineClientTest, NobodyAnsweringIsATransportFailure) {
  daemon_.Fail("GetServerInfo", grpc::Status(grpc::StatusCode::UNKNOWN, "Stream removed"));
  EXPECT_TRUE(client_->GetServerInfo().ok());
  EXPECT_TRUE(IsTransportFailure(absl::UnavailableError("connection refused")));
  EXPECT_TRUE(IsTransportFailure(absl::CancelledError("CANCELLED")));
  EXPECT_FALSE(IsTransportFailure(Error(absl::StatusCode::kCancelled, "WORK_CANCELLED", "asked for")));
  EXPECT_FALSE(IsTransportFailure(Error(absl::StatusCode::kUnavailable, "DRAINING", "later")));
}

TEST_F(PipelineClientTest, EveryCallNamesItsCaller) {
  ASSERT_TRUE(client_->GetServerInfo().ok());
  ASSERT_TRUE(client_->TrainStep(Step(8)).ok());
  EXPECT_THAT(daemon_.Callers(), Each(std::string("tester")));
  EXPECT_THAT(daemon_.Traceparents(), Each(std::string(kTraceparent)));
}

TEST_F(PipelineClientTest, ListsTurnEveryPage) {
  const auto pipelines = client_->ListPipelines();
  ASSERT_TRUE(pipelines.ok());
  ASSERT_THAT(*pipelines, SizeIs(2));
  EXPECT_EQ((*pipelines)[1].name(), "pipelines/other");
}

TEST_F(PipelineClientTest, PutThenFetchGivesTheSameBytes) {
  std::vector<HostTensor> tensors;
  tensors.push_back(Tensor("large", 1'300'000));
  tensors.push_back(Tensor("empty", 0));
  tensors.push_back(Tensor("small", 5, 'q'));
  // Less credit than there are bytes: the sender must wait for more.
  daemon_.SetFaults({.upload_credit = 300 << 10});
  const auto handle = client_->PutTensors("gpt", tensors);
  ASSERT_TRUE(handle.ok()) << handle.status();
  EXPECT_EQ(handle->byte_size(), 1'300'005);
  EXPECT_THAT(daemon_.UploadedOffsets(), ElementsAre(0, 262144, 524288, 786432, 1048576, 0));
  const auto fetched = client_->FetchHandle(handle->name());
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  ASSERT_THAT(fetched->tensors, SizeIs(3));
  for (size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(fetched->tensors[i].bytes(), tensors[i].bytes());
}

TEST_F(PipelineClientTest, ABrokenUploadGoesOnWhereItWas) {
  daemon_.SetFaults({.break_upload_after_chunks = 3});
  std::vector<HostTensor> tensors;
  tensors.push_back(Tensor("large", 1'300'000));
  const auto handle = client_->PutTensors("gpt", tensors);
  ASSERT_TRUE(handle.ok()) << handle.status();
  EXPECT_THAT(daemon_.UploadedOffsets(), ElementsAre(0, 262144, 524288, 786432, 1048576));
  const std::vector<std::string> ids = daemon_.RequestIds("PutTensors");
  ASSERT_THAT(ids, SizeIs(2));
  EXPECT_EQ(ids[0], ids[1]);
  EXPECT_EQ(client_->FetchHandle(handle->name())->tensors[0].bytes(), tensors[0].bytes());
}

TEST_F(PipelineClientTest, ABrokenFetchGoesOnAtItsOffset) {
  std::vector<HostTensor> tensors;
  tensors.push_back(Tensor("first", 600'000));
  tensors.push_back(Tensor("second", 300'000, 'x'));
  const auto handle = client_->PutTensors("gpt", tensors);
  ASSERT_TRUE(handle.ok());
  daemon_.SetFaults({.break_fetch_after_chunks = 2});
  const auto fetched = client_->FetchHandle(handle->name());
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_THAT(daemon_.FetchedTensors(), ElementsAre("@0", "first@524288", "second@0"));
  EXPECT_EQ(fetched->tensors[0].bytes(), tensors[0].bytes());
  EXPECT_EQ(fetched->tensors[1].bytes(), tensors[1].bytes());
}

v1::NamedValue Named(const std::string& name, int64_t value) {
  v1::NamedValue named;
  named.set_name(name);
  named.mutable_value()->set_int_value(value);
  return named;
}

TEST_F(PipelineClientTest, ValuesComeWithTheTensorsAndAfterABreak) {
  const std::vector<v1::Tensor> tensors = {Tensor("x", 5).ToMessage()};
  const std::string handle = daemon_.AddHandle(tensors, v1::HANDLE_STATE_READY, {Named("count", 3), Named("rows", 4)});
  for (const int breaks_after : {-1, 0, 1}) {
    daemon_.SetFaults({.break_fetch_after_values = breaks_after});
    const auto fetched = client_->FetchHandle(handle);
    ASSERT_TRUE(fetched.ok()) << fetched.status();
    ASSERT_THAT(fetched->values, SizeIs(2));
    EXPECT_EQ(fetched->values[0].value().int_value(), 3);
    EXPECT_EQ(fetched->values[1].value().int_value(), 4);
    ASSERT_THAT(fetched->tensors, SizeIs(1));
    EXPECT_EQ(fetched->tensors[0].bytes(), tensors[0].data());
  }
  const auto one = client_->FetchHandle(handle, {.tensor = "rows"});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_THAT(one->tensors, SizeIs(0));
  ASSERT_THAT(one->values, SizeIs(1));
  EXPECT_EQ(one->values[0].name(), "rows");

  // With the reply, values alone need no fetch.
  const size_t fetches = daemon_.FetchedTensors().size();
  v1::Result result;
  result.mutable_handle()->set_name(handle);
  *result.add_values() = Named("count", 7);
  const auto with_reply = client_->FetchResult(result);
  ASSERT_TRUE(with_reply.ok()) << with_reply.status();
  EXPECT_EQ(with_reply->values.at(0).value().int_value(), 7);
  EXPECT_EQ(daemon_.FetchedTensors().size(), fetches);
}

TEST_F(PipelineClientTest, LargeTensorsInsideOfValuesTravelByHandle) {
  v1::TrainStepRequest request = Step(1 << 20);
  v1::Input* input = request.add_inputs();
  input->set_name("cache");
  v1::NamedValue* entry = input->mutable_value()->mutable_dict()->add_entries();
  entry->set_name("keys");
  *entry->mutable_value()->mutable_list()->add_items()->mutable_tensor() = Tensor("k", 2 << 20).ToMessage();
  entry->mutable_value()->mutable_list()->add_items()->mutable_tuple()->add_items()->set_int_value(5);
  *entry->mutable_value()->mutable_list()->add_items()->mutable_tensor() = Tensor("v", 2 << 20).ToMessage();
  ASSERT_TRUE(client_->TrainStep(request).ok());
  const v1::TrainStepRequest seen = daemon_.LastTrainStep();
  const v1::ValueList& keys = seen.inputs(seen.inputs_size() - 1).value().dict().entries(0).value().list();
  EXPECT_EQ(keys.items(0).handle().handle(), seen.inputs(0).handle().handle());
  EXPECT_NE(keys.items(0).handle().tensor(), keys.items(2).handle().tensor());
  EXPECT_EQ(keys.items(1).tuple().items(0).int_value(), 5);
}

// 66 tensors of 70 kB in a list, and the two of a step.
v1::TrainStepRequest WithCache(v1::TrainStepRequest request) {
  v1::Input* input = request.add_inputs();
  input->set_name("cache");
  for (int i = 0; i < 66; ++i) {
    const std::string data(70'000, static_cast<char>(i));
    *input->mutable_value()->mutable_list()->add_items()->mutable_tensor() =
        HostTensor::FromBytes({"", DataType::kUint8, {70'000}, 0}, data)->ToMessage();
  }
  return request;
}

TEST_F(PipelineClientTest, MoreTensorsThanAPutTakesTravelBySeveralHandles) {
  const auto done = client_->TrainStep(WithCache(Step(8)));
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_THAT(daemon_.RequestIds("PutTensors"), SizeIs(2));
  const v1::TrainStepRequest seen = daemon_.LastTrainStep();
  const v1::ValueList& cache = seen.inputs(1).value().list();
  const std::string first = seen.inputs(0).handle().handle();
  EXPECT_EQ(cache.items(62).handle().handle(), first);
  const std::string second = cache.items(63).handle().handle();
  EXPECT_NE(second, first);
  EXPECT_EQ(cache.items(65).handle().handle(), second);
  EXPECT_EQ(seen.target().handle().handle(), second);
  std::set<std::string> tensors;
  for (const v1::Value& item : cache.items()) tensors.insert(item.handle().tensor());
  EXPECT_THAT(tensors, SizeIs(66));
  EXPECT_EQ(daemon_.LiveHandles(), 1) << "the outcome alone";
}

TEST_F(PipelineClientTest, APutThatFailsGivesThoseBeforeItBack) {
  daemon_.Fail("PutTensors", grpc::Status::OK);
  daemon_.Fail("PutTensors", RichStatus(grpc::StatusCode::RESOURCE_EXHAUSTED, "HANDLE_BUDGET", "full"));
  EXPECT_EQ(ReasonOf(client_->TrainStep(WithCache(Step(8))).status()), "HANDLE_BUDGET");
  EXPECT_THAT(daemon_.RequestIds("PutTensors"), SizeIs(2));
  EXPECT_THAT(daemon_.RequestIds("TrainStep"), SizeIs(0));
  EXPECT_EQ(daemon_.LiveHandles(), 0);
}

TEST_F(PipelineClientTest, ADamagedChunkIsFetchedAgain) {
  std::vector<HostTensor> tensors;
  tensors.push_back(Tensor("first", 600'000));
  const auto handle = client_->PutTensors("gpt", tensors);
  ASSERT_TRUE(handle.ok());
  daemon_.SetFaults({.damage_fetch_chunk = 1});
  const auto fetched = client_->FetchHandle(handle->name());
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  EXPECT_THAT(daemon_.FetchedTensors(), ElementsAre("@0", "first@262144"));
  EXPECT_EQ(fetched->tensors[0].bytes(), tensors[0].bytes());
}

TEST_F(PipelineClientTest, LargeInputsTravelByHandle) {
  ASSERT_TRUE(client_->TrainStep(Step(3 << 20)).ok());
  const v1::TrainStepRequest seen = daemon_.LastTrainStep();
  EXPECT_TRUE(seen.inputs(0).has_handle());
  EXPECT_TRUE(seen.target().has_handle());
  EXPECT_EQ(seen.inputs(0).name(), "tokens");
  EXPECT_NE(seen.inputs(0).handle().tensor(), seen.target().handle().tensor());
  // The outcome alone is left: the inputs were given back.
  EXPECT_EQ(daemon_.LiveHandles(), 1);
}

// Cancels a client's calls as soon as one of them waits to be tried again.
class CancellingClock : public testing::JumpingClock {
 public:
  bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition,
                  int64_t) override ABSL_NO_THREAD_SAFETY_ANALYSIS {
    mutex->Unlock();
    client->CancelCalls();
    mutex->Lock();
    return condition.Eval();
  }

  PipelineClient* client = nullptr;
};

TEST_F(PipelineClientTest, LargeInputsOfACancelledCallAreGivenBack) {
  CancellingClock clock;
  ClientOptions options;
  options.channel = daemon_.Channel();
  options.clock = &clock;
  client_ = *PipelineClient::Create(options);
  clock.client = client_.get();
  daemon_.Fail("TrainStep", RichStatus(grpc::StatusCode::UNAVAILABLE, "DRAINING", "later"));
  EXPECT_EQ(ReasonOf(client_->TrainStep(Step(3 << 20)).status()), "WORK_CANCELLED");
  EXPECT_THAT(daemon_.RequestIds("PutTensors"), SizeIs(1));
  EXPECT_EQ(daemon_.LiveHandles(), 0);
}

TEST_F(PipelineClientTest, AnEndlessDeadlineIsNoneAtAll) {
  for (const absl::Duration time : {absl::InfiniteDuration(), absl::Hours(24 * 365 * 300)}) {
    ClientOptions options;
    options.channel = daemon_.Channel();
    options.clock = &clock_;
    options.call_deadline = time;
    options.total_deadline = time;
    client_ = *PipelineClient::Create(options);
    EXPECT_TRUE(client_->GetServerInfo().ok());
    const auto step = client_->TrainStep(Step(8));
    ASSERT_TRUE(step.ok()) << step.status();
    EXPECT_TRUE(client_->AwaitHandle(step->outcome().handle().name(), time).ok());
  }
}

TEST_F(PipelineClientTest, SmallInputsTravelInline) {
  ASSERT_TRUE(client_->TrainStep(Step(1 << 20)).ok());
  EXPECT_TRUE(daemon_.LastTrainStep().inputs(0).has_tensor());
  EXPECT_THAT(daemon_.RequestIds("PutTensors"), SizeIs(0));
}

TEST_F(PipelineClientTest, AwaitHandleAnswersOutcomesAndErrors) {
  const auto step = client_->TrainStep(Step(8));
  const auto handle = client_->AwaitHandle(step->outcome().handle().name(), absl::Seconds(5));
  ASSERT_TRUE(handle.ok());
  EXPECT_DOUBLE_EQ(handle->outcome().loss(), 5.5);
  EXPECT_EQ(ReasonOf(client_->AwaitHandle("pipelines/gpt/handles/none", absl::Seconds(5)).status()),
            "HANDLE_NOT_FOUND");
}

TEST_F(PipelineClientTest, ReadsParameters) {
  const auto snapshot = client_->ReadParameters({});
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ(snapshot->step, 7);
  EXPECT_EQ((*snapshot->tensors[0].Values<float>())[1], 2.0f);
}

// The bytes that arrived are of a snapshot that is gone.
TEST_F(PipelineClientTest, ABrokenReadOfParametersStartsAgain) {
  daemon_.SetFaults({.break_read = true});
  const auto snapshot = client_->ReadParameters({});
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_THAT(daemon_.RequestIds("ReadParameters"), SizeIs(2));
  EXPECT_EQ((*snapshot->tensors[0].Values<float>())[0], 1.0f);
  EXPECT_EQ((*snapshot->tensors[0].Values<float>())[1], 2.0f);
}

TEST_F(PipelineClientTest, HealthTellsUnknownServicesApart) {
  EXPECT_EQ(*client_->CheckHealth("readiness"), Health::kServing);
  EXPECT_EQ(*client_->CheckHealth("nonsense"), Health::kServiceUnknown);
}

TEST_F(PipelineClientTest, AfterCancelCallsNothingIsAsked) {
  client_->CancelCalls();
  EXPECT_EQ(client_->GetServerInfo().status().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(daemon_.RequestIds("GetServerInfo"), SizeIs(0));
}

TEST_F(PipelineClientTest, AllCallsAndStreamsShareTheTimeOfTheClient) {
  ClientOptions options;
  options.channel = daemon_.Channel();
  options.clock = &clock_;
  options.total_deadline = absl::Seconds(10);
  client_ = *PipelineClient::Create(options);
  const auto later = [] { return RichStatus(grpc::StatusCode::UNAVAILABLE, "DRAINING", "later", {}, 4); };
  daemon_.Fail("TrainStep", later());
  ASSERT_TRUE(client_->TrainStep(Step(8)).ok());  // 4 s
  daemon_.Fail("PutTensors", later());
  std::vector<HostTensor> tensors;
  tensors.push_back(Tensor("x", 8));
  ASSERT_TRUE(client_->PutTensors("pipelines/gpt", tensors).ok());  // 8 s
  daemon_.Fail("TrainStep", later());
  EXPECT_EQ(client_->TrainStep(Step(8)).status().code(), absl::StatusCode::kUnavailable);  // it would be 12
  daemon_.Fail("PutTensors", later());
  EXPECT_EQ(client_->PutTensors("pipelines/gpt", tensors).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(clock_.waits(), ElementsAre(absl::Seconds(4), absl::Seconds(4)));
}

class StreamedClientTest : public PipelineClientTest {
 protected:
  StreamedClientTest() {
    ClientOptions options;
    options.channel = daemon_.Channel();
    options.caller = "tester";
    options.work_stream = true;
    options.clock = &clock_;
    client_ = *PipelineClient::Create(options);
  }
};

TEST_F(StreamedClientTest, CallsOfManyThreadsShareAStream) {
  constexpr int kThreads = 6, kCalls = 20;  // of which the daemon takes two at a time
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.push_back(std::make_unique<Thread>("caller", [this] {
        for (int call = 0; call < kCalls; ++call) {
          const auto response = client_->TrainStep(Step(8));
          EXPECT_TRUE(response.ok()) << response.status();
          if (response.ok()) EXPECT_EQ(response->request_id().size(), 36);
        }
      }));
    }
    for (const auto& thread : threads) thread->Join();
  }
  EXPECT_EQ(daemon_.Steps(), kThreads * kCalls);
  const std::vector<std::string> ids = daemon_.RequestIds("TrainStep");
  EXPECT_THAT(std::set<std::string>(ids.begin(), ids.end()), SizeIs(kThreads * kCalls));
  EXPECT_THAT(daemon_.Callers(), Each("tester"));
}

TEST_F(StreamedClientTest, AnErrorIsThatOfItsCall) {
  daemon_.Fail("TrainStep", RichStatus(grpc::StatusCode::INVALID_ARGUMENT, "TENSOR_SIGNATURE", "no", {{"field", "x"}}));
  const absl::Status status = client_->TrainStep(Step(8)).status();
  EXPECT_EQ(ReasonOf(status), "TENSOR_SIGNATURE");
  EXPECT_EQ(ValuesOf(status)["field"], "x");
  ASSERT_TRUE(client_->TrainStep(Step(8)).ok()) << "the stream goes on";
  daemon_.Fail("TrainStep", RichStatus(grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL", "full", {}, 3));
  ASSERT_TRUE(client_->TrainStep(Step(8)).ok());
  EXPECT_THAT(clock_.waits(), ElementsAre(absl::Seconds(3)));
  const std::vector<std::string> ids = daemon_.RequestIds("TrainStep");
  EXPECT_EQ(ids[2], ids[3]) << "a retry";
}

TEST_F(StreamedClientTest, AStreamThatBreaksIsOpenedAnew) {
  ASSERT_TRUE(client_->TrainStep(Step(8)).ok());
  daemon_.Fail("StreamWork", RichStatus(grpc::StatusCode::UNAVAILABLE, "DRAINING", "later"));
  ASSERT_TRUE(client_->TrainStep(Step(8)).ok());
  daemon_.Fail("StreamWork", RichStatus(grpc::StatusCode::RESOURCE_EXHAUSTED, "CREDIT_EXCEEDED", "no"));
  EXPECT_EQ(ReasonOf(client_->Evaluate({}).status()), "CREDIT_EXCEEDED");
  EXPECT_EQ(daemon_.Steps(), 2);
}

TEST_F(StreamedClientTest, ACallWhoseTimeIsOverIsCancelled) {
  ClientOptions options;
  options.channel = daemon_.Channel();
  options.work_stream = true;
  options.call_deadline = absl::Milliseconds(100);
  client_ = *PipelineClient::Create(options);
  const auto call_until_answered = [this] {  // a machine under load may need more than the deadline
    while (client_->TrainStep(Step(8)).status().code() == absl::StatusCode::kDeadlineExceeded) {
    }
  };
  call_until_answered();
  daemon_.SetFaults({.silent_work = true});
  // More than the two that the daemon takes at a time: a place is free again once a cancel is answered.
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client_->TrainStep(Step(8)).status().code(), absl::StatusCode::kDeadlineExceeded);
  }
  daemon_.SetFaults({});
  call_until_answered();
  EXPECT_GE(daemon_.RequestIds("Cancel").size(), 1);
}

TEST_F(StreamedClientTest, AfterCancelCallsNothingIsAsked) {
  ASSERT_TRUE(client_->TrainStep(Step(8)).ok());
  client_->CancelCalls();
  EXPECT_EQ(client_->TrainStep(Step(8)).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(daemon_.Steps(), 1);
}

TEST(PipelineClientCreateTest, RefusesSenselessAddresses) {
  for (const char* address : {"", "localhost", ":80", "host:0", "host:99999", "unix:"}) {
    EXPECT_EQ(ReasonOf(PipelineClient::Create({.address = address}).status()), "FIELD_INVALID") << address;
  }
  EXPECT_TRUE(PipelineClient::Create({.address = "unix:/run/penstock.sock"}).ok());
}

}  // namespace
}  // namespace penstock
