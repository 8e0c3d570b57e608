// StreamWork over an in-process channel, on fake pipelines.

#include "server/rpc/streams/work_stream.h"

#include <gmock/gmock.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "engine/wire/checksum.h"
#include "tests/unit/rpc/services_fixture.h"

namespace penstock::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kChunk = 64 << 10;

class WorkStreamTest : public ServicesTest {
 protected:
  using ServicesTest::ServicesTest;

  // One stream of one client.
  class Conversation {
   public:
    explicit Conversation(v1::WorkService::Stub* stub) {
      As(&context_);
      stream_ = stub->StreamWork(&context_);
      if (stream_->Read(&opened_)) EXPECT_TRUE(opened_.has_opened());
    }

    bool Send(const v1::StreamWorkRequest& request) { return stream_->Write(request); }
    bool Send(uint64_t tag, const v1::InferRequest& infer) {
      v1::StreamWorkRequest request;
      request.set_tag(tag);
      *request.mutable_infer() = infer;
      return Send(request);
    }
    bool Send(uint64_t tag, const v1::TrainStepRequest& step) {
      v1::StreamWorkRequest request;
      request.set_tag(tag);
      *request.mutable_train_step() = step;
      return Send(request);
    }
    bool Cancel(uint64_t tag) {
      v1::StreamWorkRequest request;
      request.set_tag(tag);
      request.mutable_cancel();
      return Send(request);
    }
    // A put of so many floats, and those of its chunks that are given.
    bool StartPut(uint64_t tag, int64_t floats) {
      v1::StreamWorkRequest request;
      request.set_tag(tag);
      request.mutable_put()->set_pipeline("pipelines/gpt");
      auto* header = request.mutable_put()->add_tensors();
      header->set_name("x");
      header->set_type(v1::DATA_TYPE_FP32);
      header->add_shape(floats);
      header->set_byte_size(4 * floats);
      return Send(request);
    }
    bool SendChunk(uint64_t tag, int64_t offset, const std::string& data, uint32_t wrong = 0) {
      v1::StreamWorkRequest request;
      request.set_tag(tag);
      request.mutable_chunk()->set_offset(offset);
      request.mutable_chunk()->set_data(data);
      request.mutable_chunk()->set_crc32c(Crc32c(data) ^ wrong);
      return Send(request);
    }

    v1::StreamWorkResponse Next() {
      v1::StreamWorkResponse response;
      if (!stream_->Read(&response)) response.set_tag(0);
      return response;
    }
    // "TAG: OK" or "TAG: REASON", or "end" behind the last answer.
    std::string NextText() {
      const v1::StreamWorkResponse response = Next();
      if (response.tag() == 0) return "end";
      return absl::StrCat(response.tag(), ": ", response.has_error() ? ReasonOf(response.error()) : "OK");
    }
    static std::string ReasonOf(const google::rpc::Status& error) { return InfoOf(error).reason(); }
    static google::rpc::ErrorInfo InfoOf(const google::rpc::Status& error) {
      google::rpc::ErrorInfo info;
      for (const auto& any : error.details()) {
        if (any.UnpackTo(&info)) break;
      }
      return info;
    }

    void Leave() { context_.TryCancel(); }
    bool WritesDone() { return stream_->WritesDone(); }
    grpc::Status Finish() { return stream_->Finish(); }
    // Ends it from this side, and expects nothing more.
    std::string End() {
      EXPECT_TRUE(stream_->WritesDone());
      EXPECT_EQ(NextText(), "end");
      return Reason(stream_->Finish());
    }
    const v1::StreamWorkOpened& opened() const { return opened_.opened(); }

   private:
    grpc::ClientContext context_;
    std::unique_ptr<grpc::ClientReaderWriter<v1::StreamWorkRequest, v1::StreamWorkResponse>> stream_;
    v1::StreamWorkResponse opened_;
  };

  // An inference of what a put has, or of a handle.
  static v1::InferRequest AskPut(uint64_t put, const std::string& handle = "") {
    v1::InferRequest request = AskX({}, 30);
    request.mutable_inputs(0)->mutable_handle()->set_put(put);
    request.mutable_inputs(0)->mutable_handle()->set_handle(handle);
    return request;
  }

  int64_t Received() {
    return registry_.server().MethodOf("/penstock.v1.WorkService/StreamWork").messages_received.value();
  }
};

TEST_F(WorkStreamTest, TheStreamSaysFirstWhatMayBeAsked) {
  Conversation talk(work_.get());
  EXPECT_EQ(talk.opened().epoch(), handles_->epoch().value());
  EXPECT_EQ(talk.opened().requests(), WorkStream::kMostOpen);
  EXPECT_EQ(talk.opened().puts(), WorkStream::kMostPuts);
  EXPECT_EQ(talk.End(), "OK");
}

TEST_F(WorkStreamTest, AnswersComeWhenTheyAreReady) {
  control_->HoldInference();
  Conversation talk(work_.get());
  v1::InferRequest nowhere = AskX({1, 2}, 30);
  nowhere.set_pipeline("pipelines/none");
  ASSERT_TRUE(talk.Send(7, AskX({1, 2}, 30)));
  ASSERT_TRUE(talk.Send(8, nowhere));
  ASSERT_TRUE(talk.Send(9, Train(1)));
  EXPECT_EQ(talk.NextText(), "8: PIPELINE_NOT_FOUND");
  const v1::StreamWorkResponse trained = talk.Next();
  EXPECT_EQ(trained.tag(), 9);
  EXPECT_EQ(trained.train_step().outcome().handle().outcome().step(), 1);
  EXPECT_EQ(trained.train_step().request_id(), Uuid(1));
  control_->ResumeInference();
  const v1::StreamWorkResponse inferred = talk.Next();
  EXPECT_EQ(inferred.tag(), 7);
  ASSERT_EQ(inferred.infer().outputs().tensors_size(), 1);
  EXPECT_EQ(inferred.infer().outputs().tensors(0).data().size(), 8u);
  ASSERT_TRUE(talk.Send(7, nowhere)) << "a tag is free again once it is answered";
  EXPECT_EQ(talk.NextText(), "7: PIPELINE_NOT_FOUND");
  EXPECT_EQ(talk.End(), "OK");
  Await([&] { return admission_.in_flight() == 0; });
}

TEST_F(WorkStreamTest, EveryMethodIsServed) {
  Conversation talk(work_.get());
  v1::StreamWorkRequest request;
  request.set_tag(1);
  *request.mutable_evaluate()->add_inputs() = Train(1).inputs(0);
  request.mutable_evaluate()->set_pipeline("pipelines/gpt");
  *request.mutable_evaluate()->mutable_target() = Train(1).target();
  request.mutable_evaluate()->mutable_reply()->mutable_wait_for()->set_seconds(30);
  ASSERT_TRUE(talk.Send(request));
  const v1::StreamWorkResponse evaluated = talk.Next();
  EXPECT_TRUE(evaluated.evaluate().outcome().handle().outcome().has_loss());

  request.Clear();
  request.set_tag(2);
  request.mutable_forward()->set_pipeline("pipelines/gpt");
  request.mutable_forward()->set_request_id(Uuid(2));
  SetX(request.mutable_forward()->add_inputs(), {1, 1});
  request.mutable_forward()->mutable_reply()->mutable_wait_for()->set_seconds(30);
  ASSERT_TRUE(talk.Send(request));
  const v1::StreamWorkResponse forward = talk.Next();
  ASSERT_EQ(forward.forward().graph().handle().state(), v1::HANDLE_STATE_READY);

  request.Clear();
  request.set_tag(3);
  request.mutable_backward()->set_pipeline("pipelines/gpt");
  request.mutable_backward()->set_request_id(Uuid(3));
  request.mutable_backward()->set_graph(forward.forward().graph().handle().name());
  SetX(request.mutable_backward()->add_gradients(), {1, 1}, "y");
  request.mutable_backward()->mutable_reply()->mutable_wait_for()->set_seconds(30);
  ASSERT_TRUE(talk.Send(request));
  EXPECT_EQ(talk.Next().backward().outcome().handle().state(), v1::HANDLE_STATE_READY);

  request.Clear();
  request.set_tag(4);
  const v1::TrainStepRequest train = Train(4);
  v1::ForwardBackwardRequest& contribution = *request.mutable_forward_backward();
  contribution.set_pipeline(train.pipeline());
  contribution.set_request_id(train.request_id());
  *contribution.add_inputs() = train.inputs(0);
  *contribution.mutable_target() = train.target();
  *contribution.mutable_reply() = train.reply();
  ASSERT_TRUE(talk.Send(request));
  EXPECT_EQ(talk.Next().forward_backward().outcome().handle().state(), v1::HANDLE_STATE_READY);

  request.Clear();
  request.set_tag(5);
  request.mutable_optimizer_step()->set_pipeline("pipelines/gpt");
  request.mutable_optimizer_step()->set_request_id(Uuid(5));
  request.mutable_optimizer_step()->mutable_reply()->mutable_wait_for()->set_seconds(30);
  ASSERT_TRUE(talk.Send(request));
  EXPECT_EQ(talk.Next().optimizer_step().outcome().handle().outcome().step(), 1);
  EXPECT_EQ(talk.End(), "OK");
}

TEST_F(WorkStreamTest, TrainingIsAcceptedInTheOrderOfTheStream) {
  control_->Hold();
  Conversation talk(work_.get());
  for (const int tag : {3, 1, 2}) ASSERT_TRUE(talk.Send(tag, Train(tag)));
  Await([&] { return Received() == 3 && admission_.in_flight() == 3; });
  control_->Resume();
  std::map<uint64_t, int64_t> sequences;
  for (int i = 0; i < 3; ++i) {
    const v1::StreamWorkResponse response = talk.Next();
    sequences[response.tag()] = response.train_step().outcome().handle().outcome().sequence();
  }
  EXPECT_LT(sequences[3], sequences[1]);
  EXPECT_LT(sequences[1], sequences[2]);
  EXPECT_EQ(talk.End(), "OK");
}

TEST_F(WorkStreamTest, EachRequestIsAdmittedAsACall) {
  control_->HoldInference();
  Conversation talk(work_.get());
  for (int tag = 1; tag <= 4; ++tag) ASSERT_TRUE(talk.Send(tag, AskX({1, 2}, 30)));
  EXPECT_EQ(talk.NextText(), "4: CALLER_QUOTA") << "the others hold the caller's three places";
  control_->ResumeInference();
  std::map<std::string, int> answers;
  for (int i = 0; i < 3; ++i) ++answers[talk.NextText()];
  EXPECT_THAT(answers, ElementsAre(std::pair("1: OK", 1), std::pair("2: OK", 1), std::pair("3: OK", 1)));
  EXPECT_EQ(talk.End(), "OK");
}

class InferringWorkStreamTest : public WorkStreamTest {
 protected:
  InferringWorkStreamTest() : WorkStreamTest(Identity{.name = "ann", .role = Role::kInfer}) {}
};

TEST_F(InferringWorkStreamTest, EachRequestNeedsItsMethodsRole) {
  Conversation talk(work_.get());
  ASSERT_TRUE(talk.Send(1, Train(1)));
  EXPECT_EQ(talk.NextText(), "1: ROLE_MISSING");
  ASSERT_TRUE(talk.Send(2, AskX({1, 2}, 30)));
  EXPECT_EQ(talk.NextText(), "2: OK");
  EXPECT_EQ(talk.End(), "OK");
}

TEST_F(WorkStreamTest, WhatIsNoRequestEndsTheStream) {
  const auto end_of = [this](const auto& send) {
    Conversation talk(work_.get());
    send(talk);
    while (talk.NextText() != "end") {
    }
    return Reason(talk.Finish());
  };
  EXPECT_EQ(end_of([](Conversation& talk) { talk.Send(v1::StreamWorkRequest()); }), "STREAM_PROTOCOL");
  EXPECT_EQ(end_of([](Conversation& talk) { talk.Send(0, AskX({1})); }), "STREAM_PROTOCOL") << "no tag";
  EXPECT_EQ(end_of([](Conversation& talk) {
              v1::StreamWorkRequest request;
              request.set_tag(1);
              request.mutable_infer();
              request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(99, "more");
              talk.Send(request);
            }),
            "STREAM_PROTOCOL")
      << "two messages in one";
  EXPECT_EQ(end_of([](Conversation& talk) {
              v1::StreamWorkRequest request;
              request.set_tag(1);
              request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(99, "what");
              talk.Send(request);
            }),
            "STREAM_PROTOCOL");
  control_->HoldInference();
  EXPECT_EQ(end_of([](Conversation& talk) {
              talk.Send(1, AskX({1, 2}, 30));
              talk.Send(1, AskX({1, 2}, 30));
            }),
            "STREAM_PROTOCOL")
      << "a tag that is taken";
  control_->ResumeInference();
  Await([&] { return admission_.in_flight() == 0 && handles_->TotalCounts().live() == 0; });
}

TEST_F(WorkStreamTest, ARequestThatCantBeReadFailsAlone) {
  Conversation talk(work_.get());
  v1::StreamWorkRequest request;
  request.set_tag(5);
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(2, "\xff\xff");  // an InferRequest?
  ASSERT_TRUE(talk.Send(request));
  EXPECT_EQ(talk.NextText(), "5: FIELD_INVALID");
  ASSERT_TRUE(talk.Send(6, AskX(std::vector<float>((4 << 20) / 4 + 1))));
  EXPECT_EQ(talk.NextText(), "6: MESSAGE_TOO_LARGE");
  ASSERT_TRUE(talk.Send(7, AskX({1, 2}, 30)));
  EXPECT_EQ(talk.NextText(), "7: OK");
  EXPECT_EQ(talk.End(), "OK");
  Await([&] { return memory_.BytesOf(MemoryClass::kMessages) == 0; });
}

class CrowdedWorkStreamTest : public WorkStreamTest {
 protected:
  CrowdedWorkStreamTest() : WorkStreamTest(Identity(), 2 * WorkStream::kMostOpen) {}
};

TEST_F(CrowdedWorkStreamTest, WhoAsksMoreAtATimeThanHeMayLosesTheStream) {
  control_->HoldInference();
  {
    Conversation talk(work_.get());
    for (size_t tag = 1; tag <= WorkStream::kMostOpen; ++tag) ASSERT_TRUE(talk.Send(tag, AskX({1, 2}, 30)));
    Await([&] { return admission_.in_flight() == WorkStream::kMostOpen; });
    talk.Send(1000, AskX({1, 2}, 30));
    EXPECT_EQ(talk.NextText(), "end");
    EXPECT_EQ(Reason(talk.Finish()), "CREDIT_EXCEEDED");
  }
  control_->ResumeInference();
  Await([&] { return admission_.in_flight() == 0 && handles_->TotalCounts().live() == 0; });
}

TEST_F(WorkStreamTest, ACancelEndsOneRequest) {
  control_->HoldInference();
  Conversation talk(work_.get());
  ASSERT_TRUE(talk.Send(1, AskX({1, 2}, 30)));
  ASSERT_TRUE(talk.Send(2, AskX({1, 2}, 30)));
  Await([&] { return admission_.in_flight() == 2; });
  ASSERT_TRUE(talk.Cancel(1));
  ASSERT_TRUE(talk.Cancel(99)) << "of nothing";
  EXPECT_EQ(talk.NextText(), "1: WORK_CANCELLED");
  control_->ResumeInference();
  EXPECT_EQ(talk.NextText(), "2: OK");
  ASSERT_TRUE(talk.Cancel(2)) << "of what has been answered";
  EXPECT_EQ(talk.End(), "OK");
  Await([&] { return admission_.in_flight() == 0; });
}

TEST_F(WorkStreamTest, TheEndOfTheStreamDoesNotUndoTraining) {
  control_->Hold();
  {
    Conversation talk(work_.get());
    ASSERT_TRUE(talk.Send(1, Train(1)));
    ASSERT_TRUE(talk.Send(2, AskX({1, 2}, 30)));
    Await([&] { return Received() == 2; });
    talk.Leave();
    EXPECT_EQ(talk.NextText(), "end");
    EXPECT_EQ(talk.Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  control_->Resume();
  v1::TrainStepResponse again;
  ASSERT_EQ(Reason(TrainStep(Train(1), &again)), "OK");
  EXPECT_EQ(again.outcome().handle().outcome().step(), 1) << "the same step";
  Await([&] { return admission_.in_flight() == 0; });
}

TEST_F(WorkStreamTest, ARequestNamesAPutBeforeItIsAnswered) {
  Conversation talk(work_.get());
  const int64_t floats = 3 * kChunk / 8;  // a chunk and a half
  ASSERT_TRUE(talk.StartPut(1, floats));
  ASSERT_TRUE(talk.SendChunk(1, 0, std::string(kChunk, '\0')));
  ASSERT_TRUE(talk.SendChunk(1, kChunk, std::string(kChunk / 2, '\0')));
  ASSERT_TRUE(talk.Send(2, AskPut(1)));
  const v1::StreamWorkResponse put = talk.Next();
  EXPECT_EQ(put.tag(), 1);
  EXPECT_EQ(put.put().state(), v1::HANDLE_STATE_READY);
  EXPECT_EQ(put.put().byte_size(), 4 * floats);
  const v1::StreamWorkResponse inferred = talk.Next();
  EXPECT_EQ(inferred.tag(), 2);
  ASSERT_FALSE(inferred.has_error()) << inferred.error().message();
  ASSERT_EQ(inferred.infer().outputs().tensors_size(), 1);
  EXPECT_EQ(inferred.infer().outputs().tensors(0).data().size(), 4 * static_cast<size_t>(floats));
  ASSERT_TRUE(talk.Send(3, AskPut(1))) << "and again later";
  EXPECT_EQ(talk.NextText(), "3: OK");
  ASSERT_TRUE(talk.Send(4, AskPut(9)));
  const v1::StreamWorkResponse unknown = talk.Next();
  EXPECT_EQ(Conversation::ReasonOf(unknown.error()), "FIELD_INVALID");
  EXPECT_EQ(Conversation::InfoOf(unknown.error()).metadata().at("field"), "inputs[0].handle.put");
  ASSERT_TRUE(talk.Send(5, AskPut(1, put.put().name())));
  EXPECT_EQ(talk.NextText(), "5: FIELD_INVALID") << "a put and a handle";
  EXPECT_EQ(talk.End(), "OK");
  v1::InferResponse response;
  EXPECT_EQ(Reason(Infer(AskPut(1), &response)), "FIELD_INVALID") << "a call of its own has no puts";
}

TEST_F(WorkStreamTest, APutThatFailsFailsAlone) {
  Conversation talk(work_.get());
  ASSERT_TRUE(talk.StartPut(1, kChunk / 2));
  ASSERT_TRUE(talk.SendChunk(1, 0, std::string(kChunk, 'a'), /*wrong=*/1));
  ASSERT_TRUE(talk.SendChunk(1, kChunk, std::string(kChunk, 'a'))) << "sent before the client knows";
  ASSERT_TRUE(talk.Send(2, AskPut(1)));
  EXPECT_EQ(talk.NextText(), "1: CHUNK_CHECKSUM");
  EXPECT_EQ(talk.NextText(), "2: FIELD_INVALID");
  v1::StreamWorkRequest resumable;
  resumable.set_tag(3);
  resumable.mutable_put()->set_pipeline("pipelines/gpt");
  resumable.mutable_put()->set_request_id(Uuid(3));
  ASSERT_TRUE(talk.Send(resumable));
  EXPECT_EQ(talk.NextText(), "3: FIELD_INVALID");
  EXPECT_EQ(talk.End(), "OK");
  EXPECT_EQ(handles_->TotalCounts().live(), 0);
  Await([&] { return admission_.in_flight() == 0 && memory_.BytesOf(MemoryClass::kMessages) == 0; });
}

TEST_F(WorkStreamTest, PutsAreLimitedAndGoWithTheStream) {
  {
    Conversation talk(work_.get());
    for (uint64_t tag = 1; tag <= 3; ++tag) ASSERT_TRUE(talk.StartPut(tag, kChunk));
    ASSERT_TRUE(talk.StartPut(4, kChunk));
    EXPECT_EQ(talk.NextText(), "4: CALLER_QUOTA") << "a put is one of the three calls";
    ASSERT_TRUE(talk.Cancel(2));
    EXPECT_EQ(talk.NextText(), "2: WORK_CANCELLED");
    ASSERT_TRUE(talk.SendChunk(2, 0, std::string(kChunk, 'a'))) << "dropped";
    ASSERT_TRUE(talk.StartPut(5, kChunk));
    Await([&] { return handles_->TotalCounts().live() == 3; });
    talk.Leave();
    EXPECT_EQ(talk.NextText(), "end");
    talk.Finish();
  }
  Await([&] { return handles_->TotalCounts().live() == 0 && admission_.in_flight() == 0; });
}

TEST_F(CrowdedWorkStreamTest, AFifthPutFailsByItself) {
  Conversation talk(work_.get());
  for (uint64_t tag = 1; tag <= 5; ++tag) ASSERT_TRUE(talk.StartPut(tag, kChunk / 4));
  EXPECT_EQ(talk.NextText(), "5: STREAM_LIMIT");
  for (uint64_t tag = 1; tag <= 4; ++tag) ASSERT_TRUE(talk.SendChunk(tag, 0, std::string(kChunk, 'a')));
  for (uint64_t tag = 1; tag <= 4; ++tag) EXPECT_EQ(talk.NextText(), absl::StrCat(tag, ": OK"));
  EXPECT_EQ(talk.End(), "OK");
}

TEST_F(WorkStreamTest, ATagThatIsUsedAgainMeansNoEarlierPut) {
  Conversation talk(work_.get());
  ASSERT_TRUE(talk.StartPut(1, kChunk / 4));
  ASSERT_TRUE(talk.SendChunk(1, 0, std::string(kChunk, 'a')));
  EXPECT_EQ(talk.NextText(), "1: OK");
  ASSERT_TRUE(talk.StartPut(1, kChunk / 4));
  ASSERT_TRUE(talk.SendChunk(1, 0, std::string(kChunk, 'b'), /*wrong=*/1));
  ASSERT_TRUE(talk.Send(2, AskPut(1)));
  EXPECT_EQ(talk.NextText(), "1: CHUNK_CHECKSUM");
  EXPECT_EQ(talk.NextText(), "2: FIELD_INVALID");
  EXPECT_EQ(talk.End(), "OK");
}

TEST_F(WorkStreamTest, APutThatCanNotBecomeCompleteFails) {
  {
    control_->HoldInference();
    Conversation talk(work_.get());
    ASSERT_TRUE(talk.StartPut(1, kChunk));
    ASSERT_TRUE(talk.Send(2, AskX({1, 2}, 30)));
    ASSERT_TRUE(talk.WritesDone());
    EXPECT_EQ(talk.NextText(), "1: CHUNK_SIZE");
    Await([&] { return handles_->TotalCounts().live() == 1; });  // the outputs'
    v1::InferResponse other;  // of the half minutes none is the client's, who has nothing more to do
    for (int i = 0; i < 7; ++i) {
      ASSERT_EQ(Reason(Infer(AskX({1, 2}), &other)), i < 2 ? "OK" : "CALLER_QUOTA");
      Advance(absl::Seconds(5));
    }
    control_->ResumeInference();
    EXPECT_EQ(talk.NextText(), "2: OK");
    EXPECT_EQ(talk.NextText(), "end");
    EXPECT_EQ(Reason(talk.Finish()), "OK");
    Await([&] { return admission_.in_flight() == 0; });
  }
  const int64_t live = handles_->TotalCounts().live();  // the outputs'
  Conversation talk(work_.get());
  ASSERT_TRUE(talk.StartPut(2, kChunk));
  v1::InferRequest nowhere = AskX({1, 2}, 30);
  nowhere.set_pipeline("pipelines/none");
  ASSERT_TRUE(talk.Send(3, nowhere));
  EXPECT_EQ(talk.NextText(), "3: PIPELINE_NOT_FOUND") << "so the put has begun";
  work_service_->Shutdown();
  EXPECT_EQ(talk.NextText(), "2: DRAINING");
  EXPECT_EQ(talk.NextText(), "end");
  EXPECT_EQ(Reason(talk.Finish()), "DRAINING");
  Await([&] { return handles_->TotalCounts().live() == live && admission_.in_flight() == 0; });
}

TEST_F(CrowdedWorkStreamTest, AClientThatCompletesPutsHasTime) {
  Conversation talk(work_.get());
  ASSERT_TRUE(talk.StartPut(1, 4));
  for (uint64_t tag = 2; tag < 9; ++tag) {  // the next one begins before the last one is complete
    ASSERT_TRUE(talk.StartPut(tag, 4));
    ASSERT_TRUE(talk.SendChunk(tag - 1, 0, std::string(16, 'a')));
    EXPECT_EQ(talk.NextText(), absl::StrCat(tag - 1, ": OK"));
    Advance(absl::Seconds(10));
  }
  talk.Leave();
  EXPECT_EQ(talk.NextText(), "end");
  talk.Finish();
}

TEST_F(WorkStreamTest, OnlyChunksBuyTimeForAPut) {
  Conversation talk(work_.get());
  ASSERT_TRUE(talk.StartPut(1, kChunk));
  v1::InferRequest nowhere = AskX({1, 2}, 30);
  nowhere.set_pipeline("pipelines/none");
  bool open = true;
  for (uint64_t tag = 2; open && tag < 12; ++tag) {
    open = talk.Send(tag, nowhere) && talk.NextText() != "end";
    Advance(absl::Seconds(10));
  }
  EXPECT_FALSE(open);
  EXPECT_EQ(talk.Finish().error_code(), grpc::StatusCode::CANCELLED);
  Await([&] { return handles_->TotalCounts().live() == 0; });
}

TEST_F(WorkStreamTest, AClientThatLeavesAPutStandingLosesTheStream) {
  Conversation talk(work_.get());
  ASSERT_TRUE(talk.StartPut(1, kChunk));
  v1::InferRequest nowhere = AskX({1, 2}, 30);
  nowhere.set_pipeline("pipelines/none");
  ASSERT_TRUE(talk.Send(2, nowhere));
  EXPECT_EQ(talk.NextText(), "2: PIPELINE_NOT_FOUND") << "so the put has begun";
  Advance(absl::Seconds(31));
  EXPECT_EQ(talk.NextText(), "end");
  EXPECT_EQ(talk.Finish().error_code(), grpc::StatusCode::CANCELLED);
  Await([&] { return handles_->TotalCounts().live() == 0; });
}

TEST_F(WorkStreamTest, AStreamOnWhichNothingHappensStays) {
  Conversation talk(work_.get());
  ASSERT_TRUE(talk.Send(1, AskX({1, 2}, 30)));
  EXPECT_EQ(talk.NextText(), "1: OK");
  for (int i = 0; i < 14; ++i) {  // more than a minute; the daemon has seen long ago that the answer was taken
    v1::InferResponse response;
    ASSERT_EQ(Reason(Infer(AskX({1, 2}, 30), &response)), "OK");
    Advance(absl::Seconds(5));
  }
  ASSERT_TRUE(talk.Send(2, AskX({1, 2}, 30)));
  EXPECT_EQ(talk.NextText(), "2: OK");
  EXPECT_EQ(talk.End(), "OK");
}

TEST_F(WorkStreamTest, AReaderThatTakesNothingHurtsOnlyItself) {
  Conversation slow(work_.get());
  // Answers of a mebibyte each, until the transport takes no more of them.
  const v1::InferRequest large = AskX(std::vector<float>((1 << 20) / 4 - 64), 30);
  for (uint64_t tag = 1; tag <= 3; ++tag) ASSERT_TRUE(slow.Send(tag, large));
  Await([&] { return Received() == 3 && admission_.in_flight() == 0; });
  EXPECT_GT(memory_.BytesOf(MemoryClass::kMessages), 0) << "they wait, and are counted";
  Conversation other(work_.get());
  ASSERT_TRUE(other.Send(1, AskX({1, 2}, 30)));
  EXPECT_EQ(other.NextText(), "1: OK");
  EXPECT_EQ(other.End(), "OK");
  Advance(absl::Seconds(31));
  while (slow.NextText() != "end") {
  }
  EXPECT_EQ(slow.Finish().error_code(), grpc::StatusCode::CANCELLED);
  Await([&] { return memory_.BytesOf(MemoryClass::kMessages) == 0; });
}

TEST_F(WorkStreamTest, ARequestThatThrowsIsAnIncidentOfItsOwn) {
  Conversation talk(work_.get());
  control_->ThrowIn("CheckInputs");
  ASSERT_TRUE(talk.Send(1, AskX({1, 2}, 30)));
  EXPECT_EQ(talk.NextText(), "1: BUG");
  control_->RunOutOfMemoryIn("CheckInputs");
  ASSERT_TRUE(talk.Send(2, AskX({1, 2}, 30)));
  EXPECT_EQ(talk.NextText(), "2: HOST_MEMORY");
  ASSERT_TRUE(talk.Send(3, AskX({1, 2}, 30)));
  EXPECT_EQ(talk.NextText(), "3: OK");
  EXPECT_EQ(talk.End(), "OK");
}

TEST_F(WorkStreamTest, TheServerEndsOnceWhatWasAskedIsAnswered) {
  control_->HoldInference();
  Conversation talk(work_.get());
  ASSERT_TRUE(talk.Send(1, AskX({1, 2}, 30)));
  Await([&] { return admission_.in_flight() == 1; });
  work_service_->Shutdown();
  control_->ResumeInference();
  EXPECT_EQ(talk.NextText(), "1: OK");
  EXPECT_EQ(talk.NextText(), "end");
  EXPECT_EQ(Reason(talk.Finish()), "DRAINING");
  Conversation late(work_.get());
  EXPECT_EQ(Reason(late.Finish()), "DRAINING");
}

}  // namespace
}  // namespace penstock::testing
