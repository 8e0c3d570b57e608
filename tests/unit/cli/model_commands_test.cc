// penstock model, and the client's uploads, against a model service in memory.

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <fstream>

#include "absl/synchronization/mutex.h"
#include "client/cli/message_json.h"
#include "engine/wire/checksum.h"
#include "engine/wire/sha256.h"
#include "penstock/v1/admin_service.grpc.pb.h"
#include "penstock/v1/model_service.grpc.pb.h"
#include "penstock/v1/pipeline_service.grpc.pb.h"
#include "tests/unit/cli/command_fixture.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::RichStatus;

constexpr char kModel[] = R"(
  name: "models/resnet.pt2" byte_size: 102501541 create_time { seconds: 1790000000 }
  digest: "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
  signature {
    inputs { name: "images" type: DATA_TYPE_FP32 shape: -1 shape: 3 shape: 224 shape: 224 }
    outputs { name: "output" type: DATA_TYPE_FP32 shape: -1 shape: 1000 }
  }
  dimensions { name: "s77" least: 1 most: 4096 inputs: "images[0]" }
  parameters: 25557032 parameter_bytes: 102228128 buffer_bytes: 212904 nodes: 350
  operators { name: "aten.conv2d.default" calls: 106 }
  operators { name: "aten.relu_.default" calls: 98 }
  layers { name: "conv1" module: "conv1" parameters: 9408 }
  layers { name: "layer1_0" module: "layer1.0" parameters: 75008 }
  evaluation_graph: true training_graph: true pipelines: "pipelines/photos"
)";

constexpr char kBroken[] = R"(
  name: "models/torn.pt2" byte_size: 4096 create_time { seconds: 1790000000 }
  error { code: 3 message: "exported program archive: must end with a directory, got 4096" }
)";

v1::Model Parsed(const char* text) {
  v1::Model model;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &model));
  return model;
}

// Keeps one upload, breaks it once if told to.
class FakeModels : public v1::ModelService::Service {
 public:
  int break_after_chunks = -1;
  std::vector<int64_t> offsets;
  std::string content;
  std::vector<std::string> deleted;
  grpc::Status refusal;

  grpc::Status UploadModel(grpc::ServerContext*,
                           grpc::ServerReaderWriter<v1::UploadModelResponse, v1::UploadModelRequest>* stream) override {
    v1::UploadModelRequest request;
    if (!stream->Read(&request) || !request.has_start())
      return RichStatus(grpc::INVALID_ARGUMENT, "STREAM_PROTOCOL", "start");
    if (!refusal.ok()) return refusal;
    const v1::UploadModelStart start = request.start();
    v1::UploadModelResponse response;
    response.mutable_credit()->set_bytes(1 << 20);
    response.mutable_credit()->set_next_offset(static_cast<int64_t>(content.size()));
    stream->Write(response);
    while (static_cast<int64_t>(content.size()) < start.byte_size()) {
      if (break_after_chunks-- == 0) return grpc::Status(grpc::UNAVAILABLE, "the connection broke");
      if (!stream->Read(&request)) return RichStatus(grpc::INVALID_ARGUMENT, "CHUNK_SIZE", "early end");
      EXPECT_EQ(Crc32c(request.chunk().data()), request.chunk().crc32c());
      offsets.push_back(request.chunk().offset());
      content += request.chunk().data();
      response.mutable_credit()->set_bytes(static_cast<int64_t>(request.chunk().data().size()));
      stream->Write(response);
    }
    if (Sha256::Of(content) != start.digest()) return RichStatus(grpc::DATA_LOSS, "MODEL_DIGEST", "another file");
    *response.mutable_model() = Parsed(kModel);
    response.mutable_model()->set_name("models/" + start.model_id());
    stream->Write(response);
    return grpc::Status::OK;
  }
  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest* request, v1::Model* response) override {
    if (request->name() != "models/resnet.pt2") return RichStatus(grpc::NOT_FOUND, "MODEL_NOT_FOUND", "there is none");
    *response = Parsed(kModel);
    return grpc::Status::OK;
  }
  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest* request,
                          v1::ListModelsResponse* response) override {
    // Two pages.
    *response->add_models() = Parsed(request->page_token().empty() ? kModel : kBroken);
    if (request->page_token().empty()) response->set_next_page_token("more");
    return grpc::Status::OK;
  }
  grpc::Status DeleteModel(grpc::ServerContext*, const v1::DeleteModelRequest* request,
                           v1::DeleteModelResponse*) override {
    deleted.push_back(request->name());
    return grpc::Status::OK;
  }
};

class FakePipelines : public v1::PipelineService::Service {
 public:
  v1::PipelineSpec seen;

  grpc::Status CreatePipeline(grpc::ServerContext*, const v1::CreatePipelineRequest* request,
                              v1::Pipeline* response) override {
    seen = request->spec();
    response->set_name("pipelines/" + request->pipeline_id());
    *response->mutable_spec() = request->spec();
    return grpc::Status::OK;
  }
};

class FakeAdmin : public v1::AdminService::Service {
 public:
  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*, v1::ServerInfo* response) override {
    (*response->mutable_limits())["max-model-bytes"] = 1 << 20;
    return grpc::Status::OK;
  }
};

class ModelCommandsTest : public testing::CommandFixture {
 protected:
  ModelCommandsTest() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&models_);
    builder.RegisterService(&pipelines_);
    builder.RegisterService(&admin_);
    server_ = builder.BuildAndStart();
    world_.channel = server_->InProcessChannel({});
  }
  ~ModelCommandsTest() override { server_->Shutdown(); }

  FakeModels models_;
  FakePipelines pipelines_;
  FakeAdmin admin_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(ModelCommandsTest, ListsAllPagesInEveryFormat) {
  EXPECT_EQ(Run("model list"), 0) << err_;
  ExpectGolden("model_list.txt");
  EXPECT_EQ(Run("model list -o wide"), 0);
  ExpectGolden("model_list_wide.txt");
  EXPECT_EQ(Run("model list -o name"), 0);
  EXPECT_EQ(out_, "models/resnet.pt2\nmodels/torn.pt2\n");
  EXPECT_EQ(Run("model list -o json"), 0);
  const Json json = Json::parse(out_, nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["models"][0]["parameters"], 25557032);
}

TEST_F(ModelCommandsTest, ShowsOne) {
  EXPECT_EQ(Run("model show resnet.pt2"), 0) << err_;
  ExpectGolden("model_show.txt");
  EXPECT_EQ(Run("model show models/resnet.pt2 -o wide"), 0);
  ExpectGolden("model_show_wide.txt");
  EXPECT_NE(Run("model show other.pt2"), 0);
  EXPECT_THAT(err_, HasSubstr("MODEL_NOT_FOUND"));
}

TEST_F(ModelCommandsTest, AddsAFileAndGoesOnWhereItBroke) {
  std::string file;
  for (int i = 0; i < 700'000; ++i) file.push_back(static_cast<char>(i * 31 + i / 1000));
  models_.break_after_chunks = 1;
  EXPECT_EQ(Run("model add - --id mine.pt2", file), 0) << err_;
  EXPECT_EQ(models_.content, file);
  EXPECT_THAT(models_.offsets, ElementsAre(0, 262144, 524288)) << "no byte twice";
  EXPECT_THAT(err_, HasSubstr("added models/mine.pt2; next: penstock pipeline create NAME --model-program mine.pt2"));
}

TEST_F(ModelCommandsTest, TakesTheFilesName) {
  const std::string path = ::testing::TempDir() + "/penstock_named.pt2";
  std::ofstream(path) << "some bytes";
  EXPECT_EQ(Run("model add " + path + " -o name"), 0) << err_;
  EXPECT_EQ(out_, "models/penstock_named.pt2\n");
}

TEST_F(ModelCommandsTest, ReadsNoMoreThanTheDaemonTakes) {
  EXPECT_EQ(Run("model add /dev/zero --id mine.pt2"), 2);
  EXPECT_THAT(err_, HasSubstr("/dev/zero: has more than 1048576 bytes, the limit of penstockd --max-model-bytes\n"));
  EXPECT_EQ(Run("model add - --id mine.pt2", std::string(1 << 20, 'x')), 0) << err_;
}

TEST_F(ModelCommandsTest, SaysWhatIsWrong) {
  EXPECT_EQ(Run("model add -", "bytes"), 2);
  EXPECT_THAT(err_, HasSubstr("--id"));
  EXPECT_EQ(Run("model add - --id mine.zip", "bytes"), 2);
  EXPECT_THAT(err_, HasSubstr("must end in .pt2"));
  EXPECT_EQ(Run("model add - --id mine.pt2", ""), 2);
  EXPECT_EQ(Run("model add no/such/file.pt2"), 2);
  EXPECT_EQ(Run("model delete resnet.pt2"), 2) << "nobody can be asked";
  EXPECT_EQ(Run("pipeline create x --model gpt --model-program y.pt2"), 2);
  EXPECT_EQ(Run("pipeline create x --model-program y.pt2 --cut-at a --stages 2"), 2);
  models_.refusal = RichStatus(grpc::UNIMPLEMENTED, "FEATURE_DISABLED", "started without --allow-model-upload");
  EXPECT_NE(Run("model add - --id mine.pt2", "bytes"), 0);
  EXPECT_THAT(err_, HasSubstr("FEATURE_DISABLED"));
}

TEST_F(ModelCommandsTest, DeletesWithYes) {
  EXPECT_EQ(Run("model delete resnet.pt2 --yes"), 0) << err_;
  EXPECT_THAT(models_.deleted, ElementsAre("models/resnet.pt2"));
}

TEST_F(ModelCommandsTest, CreatesAPipelineFromAProgram) {
  EXPECT_EQ(
      Run("pipeline create mine --model-program resnet.pt2 --program-cuts nodes --cut-at layer3,fc --program-digest "
          "sha256:00 --loss binary_cross_entropy --loss-option logits=false --loss-output scores"),
      0)
      << err_;
  const v1::PipelineSpec& spec = pipelines_.seen;
  EXPECT_EQ(spec.model().program(), "resnet.pt2");
  EXPECT_EQ(spec.model().name(), "");
  EXPECT_EQ(spec.model().program_cuts(), v1::PROGRAM_CUTS_NODES);
  EXPECT_EQ(spec.model().program_digest(), "sha256:00");
  EXPECT_THAT(spec.cut().starts(), ElementsAre("layer3", "fc"));
  EXPECT_EQ(spec.loss().name(), "binary_cross_entropy");
  EXPECT_EQ(spec.loss().output(), "scores");
  EXPECT_THAT(out_, HasSubstr("resnet.pt2"));
}

}  // namespace
}  // namespace penstock
