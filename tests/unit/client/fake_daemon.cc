#include "tests/unit/client/fake_daemon.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/wire/checksum.h"
#include "engine/wire/tensor_header.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace penstock::testing {
namespace {

constexpr char kPipeline[] = "pipelines/gpt";
constexpr int kSequence = 16;

google::rpc::Status NotFound(const std::string& name) {
  google::rpc::Status status;
  status.set_code(grpc::StatusCode::NOT_FOUND);
  status.set_message("no such handle");
  google::rpc::ErrorInfo info;
  info.set_reason("HANDLE_NOT_FOUND");
  info.set_domain("penstock.v1");
  (*info.mutable_metadata())["handle"] = name;
  status.add_details()->PackFrom(info);
  return status;
}

v1::Plan TwoStagePlan() {
  v1::Plan plan;
  for (int i = 0; i < 2; ++i) {
    v1::StagePlan* stage = plan.add_stages();
    stage->set_stage(i);
    stage->set_device(absl::StrCat("cpu:", i));
    stage->add_layers(i == 0 ? "embedding" : "block_1");
    stage->add_layers(i == 0 ? "block_0" : "head");
    stage->set_forward_seconds(0.002);
    stage->set_backward_seconds(0.004);
    stage->set_parameter_bytes(3 << 20);
    stage->set_peak_activation_bytes(1 << 20);
  }
  for (const char* name : {"embedding", "block_0", "block_1", "head"}) {
    v1::LayerPlan* layer = plan.add_layers();
    layer->set_name(name);
    layer->set_stage(plan.layers_size() > 2 ? 1 : 0);
    layer->set_forward_seconds(0.001);
    layer->set_backward_seconds(0.002);
    layer->set_stash_bytes(64 << 10);
    layer->set_output_bytes(16 << 10);
    layer->set_parameter_bytes(3 << 19);
    layer->set_cost(3000);
  }
  v1::SkipPlan* skip = plan.add_skips();
  skip->set_to_stage(1);
  skip->add_names("residual");
  skip->add_names("inner/mask");
  skip->set_bytes(20 << 10);
  v1::LinkPlan* link = plan.add_links();
  link->set_other_rank(1);
  link->set_measured(true);
  link->set_latency_seconds(0.0000614);
  link->set_bytes_per_second(1.5 * (1 << 30));
  link = plan.add_links();
  link->set_rank(1);
  link->set_other_rank(2);
  v1::TransferPlan* transfer = plan.add_transfers();
  transfer->set_to_stage(1);
  transfer->set_bytes(20 << 10);
  transfer->set_seconds(0.00025);
  plan.add_why("cut into 2 stages by measured time: 6000 us of 12000 us at most");
  plan.add_why("2 skips cross the cut");
  plan.set_schedule("1f1b");
  plan.set_micro_batches(8);
  plan.set_checkpoint(v1::CHECKPOINT_MODE_NEVER);
  plan.set_makespan_seconds(0.054);
  plan.set_predicted_bubble(0.125);
  plan.set_ideal_bubble(1.0 / 9);
  return plan;
}

v1::ScheduleSpec Choice(const char* kind, int chunks, v1::CheckpointMode checkpoint) {
  v1::ScheduleSpec schedule;
  schedule.set_kind(kind);
  schedule.set_chunks(chunks);
  schedule.set_micro_batches(8);
  schedule.set_checkpoint(checkpoint);
  return schedule;
}

// Two that are possible, and one that is not.
v1::PlanPipelineResponse TwoCandidates() {
  v1::PlanPipelineResponse response;
  for (const bool first : {true, false}) {
    v1::PlanCandidate* one = response.add_candidates();
    *one->mutable_schedule() = Choice(first ? "1f1b" : "lag", first ? 1 : 2, v1::CHECKPOINT_MODE_NEVER);
    if (!first) one->mutable_schedule()->set_lag(3);
    one->add_balance(2);
    one->add_balance(2);
    one->set_makespan_seconds(first ? 0.054 : 0.06);
    one->set_predicted_bubble(0.125);
    one->set_messages(16);
    one->set_micro_batch_rows(4);
    for (int lane = 0; lane < 2; ++lane) {
      v1::PlannedMemory* need = one->add_memory();
      need->set_device(absl::StrCat("cpu:", lane));
      need->add_lanes(lane);
      need->set_bytes(int64_t{10 - lane} << 20);
      need->set_largest_class("activations");
      need->set_largest_class_bytes(4 << 20);
    }
  }
  v1::RefusedCandidate* refused = response.add_refused();
  *refused->mutable_schedule() = Choice("gpipe", 1, v1::CHECKPOINT_MODE_NEVER);
  refused->mutable_why()->set_message("the plan needs 100 bytes on cpu:0");
  response.set_considered(3);
  response.set_complete(true);
  *response.mutable_plan() = TwoStagePlan();
  return response;
}

void SetSignature(const char* name, v1::DataType type, std::initializer_list<int64_t> shape, v1::TensorSignature* to) {
  to->set_name(name);
  to->set_type(type);
  to->mutable_shape()->Add(shape.begin(), shape.end());
}

v1::PipelineStatistics StatisticsAfter(int64_t steps, int64_t handles, int64_t created) {
  v1::PipelineStatistics statistics;
  statistics.mutable_time()->set_seconds(1000 + steps);
  for (int i = 0; i < 2; ++i) {
    v1::LaneStatistics* lane = statistics.add_lanes();
    lane->set_lane(i);
    lane->set_device(absl::StrCat("cpu:", i));
    lane->set_state("no_work");
    lane->add_layers(i == 0 ? "embedding" : "head");
    // Each step takes one second: 0.8 of work, 0.2 of waiting.
    (*lane->mutable_state_seconds())["setup"] = 5;
    (*lane->mutable_state_seconds())["forward"] = 0.3 * static_cast<double>(steps);
    (*lane->mutable_state_seconds())["backward"] = 0.5 * static_cast<double>(steps);
    (*lane->mutable_state_seconds())[i == 0 ? "wait_gradient" : "fill"] = 0.2 * static_cast<double>(steps);
  }
  statistics.set_step(steps);
  if (steps > 0) statistics.set_loss(5.5 / static_cast<double>(steps));
  statistics.set_measured_bubble(0.2);
  statistics.set_predicted_bubble(0.125);
  statistics.set_ideal_bubble(1.0 / 9);
  statistics.set_samples(steps * 4);
  statistics.set_handles(handles);
  statistics.set_handles_created(created);
  return statistics;
}

// Two stages and two micro-batches, one forward and one backward each: 1 ms and 2 ms as planned. Measured, everything
// is a tenth slower, and 1B0 takes 1 ms longer. Three actions to a page.
v1::GetScheduleResponse SchedulePage(const v1::GetScheduleRequest& request) {
  constexpr int kPerPage = 3;
  struct Planned {
    const char* action;
    int lane;
    double start;
    double end;
  };
  constexpr std::array<Planned, 8> kPlanned = {{{"0F0", 0, 0, 1},
                                                {"0F1", 0, 1, 2},
                                                {"0B0", 0, 4, 6},
                                                {"0B1", 0, 7, 9},
                                                {"1F0", 1, 1, 2},
                                                {"1B0", 1, 2, 4},
                                                {"1F1", 1, 4, 5},
                                                {"1B1", 1, 5, 7}}};
  const bool measured = request.source() == v1::GetScheduleRequest::SOURCE_MEASURED;
  const auto nanos = [](double millis) { return static_cast<int64_t>(millis * 1e6); };
  const auto action = [&](const Planned& from) {
    v1::ScheduledAction to;
    to.set_action(from.action);
    to.set_lane(from.lane);
    to.set_planned_start_nanos(nanos(from.start));
    to.set_planned_end_nanos(nanos(from.end));
    if (!measured) return to;
    to.set_measured_start_nanos(nanos(from.start * 1.1 + (from.start >= 4 ? 1 : 0)));
    to.set_measured_end_nanos(nanos(from.end * 1.1 + (from.end >= 4 ? 1 : 0)));
    return to;
  };
  const int first = request.page_token().empty() ? 0 : std::stoi(request.page_token());
  v1::GetScheduleResponse page;
  for (int i = first; i < std::min(first + kPerPage, 8); ++i) *page.add_actions() = action(kPlanned[i]);
  if (first + kPerPage < 8) page.set_next_page_token(absl::StrCat(first + kPerPage));
  page.set_kind("1f1b");
  page.set_stages(2);
  page.set_micro_batches(request.micro_batches() > 0 ? request.micro_batches() : 2);
  for (int i = 0; i < 2; ++i) page.add_devices(absl::StrCat("cpu:", i));
  page.mutable_planned()->set_makespan_seconds(0.009);
  page.mutable_planned()->set_bubble(1.0 / 3);
  if (!measured) return page;
  page.set_step(request.step() > 0 ? request.step() : 7);
  page.mutable_measured()->set_makespan_seconds(0.0109);
  page.mutable_measured()->set_bubble(0.35);
  v1::ScheduleDeviation* deviation = page.add_deviations();
  deviation->set_kind(v1::ScheduleDeviation::KIND_DURATION);
  *deviation->mutable_where() = action(kPlanned[5]);
  deviation->set_planned_seconds(0.002);
  deviation->set_measured_seconds(0.0032);
  deviation->set_share(0.11);
  deviation = page.add_deviations();
  deviation->set_kind(v1::ScheduleDeviation::KIND_WAIT);
  *deviation->mutable_where() = action(kPlanned[3]);
  deviation->set_planned_seconds(0.001);
  deviation->set_measured_seconds(0.0011);
  deviation->set_share(0.009);
  return page;
}

}  // namespace

grpc::Status RichStatus(grpc::StatusCode code, const std::string& reason, const std::string& message,
                        const std::map<std::string, std::string>& values, int retry_after_seconds) {
  google::rpc::Status status;
  status.set_code(code);
  status.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("penstock.v1");
  info.mutable_metadata()->insert(values.begin(), values.end());
  status.add_details()->PackFrom(info);
  if (retry_after_seconds >= 0) {
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(retry_after_seconds);
    status.add_details()->PackFrom(retry);
  }
  return grpc::Status(code, message, status.SerializeAsString());
}

struct FakeDaemon::Services {
  explicit Services(FakeDaemon* d)
      : pipelines(d), work(d), handles(d), state(d), insight(d), inference(d), admin(d), health(d) {}

  struct Pipelines : v1::PipelineService::Service {
    explicit Pipelines(FakeDaemon* d) : daemon(d) {}
    grpc::Status CreatePipeline(grpc::ServerContext* context, const v1::CreatePipelineRequest* request,
                                v1::Pipeline* response) override {
      if (auto s = daemon->Enter(context, "CreatePipeline", request->request_id()); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      daemon->last_create_ = *request;
      daemon->mu_.Await(absl::Condition(
          +[](std::deque<v1::CreateProgress>* left) { return left->empty(); }, &daemon->progress_));
      *response = daemon->PipelineLocked();
      response->set_name("pipelines/" + request->pipeline_id());
      *response->mutable_spec() = request->spec();
      return grpc::Status::OK;
    }
    grpc::Status PlanPipeline(grpc::ServerContext* context, const v1::PlanPipelineRequest* request,
                              v1::PlanPipelineResponse* response) override {
      if (auto s = daemon->Enter(context, "PlanPipeline"); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      daemon->last_plan_ = *request;
      *response = TwoCandidates();
      return grpc::Status::OK;
    }
    grpc::Status GetPipeline(grpc::ServerContext* context, const v1::GetPipelineRequest* request,
                             v1::Pipeline* response) override {
      if (auto s = daemon->Enter(context, "GetPipeline"); !s.ok()) return s;
      {
        absl::MutexLock lock(&daemon->mu_);
        if (!daemon->progress_.empty() && request->name() == "pipelines/" + daemon->last_create_.pipeline_id()) {
          response->set_name(request->name());
          response->set_state(v1::PIPELINE_STATE_CREATING);
          *response->mutable_progress() = daemon->progress_.front();
          daemon->progress_.pop_front();
          return grpc::Status::OK;
        }
      }
      if (request->name() != kPipeline) {
        return RichStatus(grpc::StatusCode::NOT_FOUND, "PIPELINE_NOT_FOUND", "no such pipeline: " + request->name(),
                          {{"field", "name"}, {"value", request->name()}});
      }
      absl::MutexLock lock(&daemon->mu_);
      *response = daemon->PipelineLocked();
      return grpc::Status::OK;
    }
    grpc::Status ListPipelines(grpc::ServerContext* context, const v1::ListPipelinesRequest* request,
                               v1::ListPipelinesResponse* response) override {
      if (auto s = daemon->Enter(context, "ListPipelines"); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      // Two pages, so that callers must turn them.
      *response->add_pipelines() = daemon->PipelineLocked();
      if (request->page_token().empty()) {
        response->set_next_page_token("second");
      } else {
        response->mutable_pipelines(0)->set_name("pipelines/other");
      }
      return grpc::Status::OK;
    }
    grpc::Status UpdateOptimizer(grpc::ServerContext* context, const v1::UpdateOptimizerRequest* request,
                                 v1::Pipeline* response) override {
      if (auto s = daemon->Enter(context, "UpdateOptimizer", request->request_id()); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      daemon->last_update_ = *request;
      *response = daemon->PipelineLocked();
      *response->mutable_spec()->mutable_optimizer() = request->optimizer();
      return grpc::Status::OK;
    }
    grpc::Status UpdatePipeline(grpc::ServerContext* context, const v1::UpdatePipelineRequest* request,
                                v1::Pipeline* response) override {
      if (auto s = daemon->Enter(context, "UpdatePipeline", request->request_id()); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      daemon->last_replan_ = *request;
      *response = daemon->PipelineLocked();
      return grpc::Status::OK;
    }
    grpc::Status UnloadPipeline(grpc::ServerContext* context, const v1::UnloadPipelineRequest* request,
                                v1::Pipeline* response) override {
      if (auto s = daemon->Enter(context, "UnloadPipeline", request->request_id()); !s.ok()) return s;
      response->set_name(request->name());
      response->set_state(v1::PIPELINE_STATE_UNLOADED);
      return grpc::Status::OK;
    }
    grpc::Status LoadPipeline(grpc::ServerContext* context, const v1::LoadPipelineRequest* request,
                              v1::Pipeline* response) override {
      if (auto s = daemon->Enter(context, "LoadPipeline", request->request_id()); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      *response = daemon->PipelineLocked();
      return grpc::Status::OK;
    }
    grpc::Status DeletePipeline(grpc::ServerContext* context, const v1::DeletePipelineRequest* request,
                                v1::DeletePipelineResponse*) override {
      return daemon->Enter(context, "DeletePipeline", request->request_id());
    }
    FakeDaemon* daemon;
  };

  struct Work : v1::WorkService::Service {
    explicit Work(FakeDaemon* d) : daemon(d) {}
    grpc::Status TrainStep(grpc::ServerContext* context, const v1::TrainStepRequest* request,
                           v1::TrainStepResponse* response) override {
      if (auto s = daemon->Enter(context, "TrainStep", request->request_id()); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      daemon->last_train_step_ = *request;
      v1::Handle handle;
      handle.set_kind(v1::HANDLE_KIND_OUTCOME);
      handle.set_state(v1::HANDLE_STATE_READY);
      handle.set_method("TrainStep");
      v1::Outcome* outcome = handle.mutable_outcome();
      outcome->set_step(++daemon->steps_);
      outcome->set_loss(5.5 / static_cast<double>(daemon->steps_));
      outcome->set_applied(true);
      outcome->set_measured_bubble(0.2);
      outcome->set_seconds(0.25);
      const std::string name = daemon->StoreLocked(handle, {});
      *response->mutable_outcome()->mutable_handle() = daemon->handles_[name].handle;
      // The reply of accepted work is not its result.
      response->mutable_outcome()->mutable_handle()->set_state(v1::HANDLE_STATE_PENDING);
      response->mutable_outcome()->mutable_handle()->clear_outcome();
      response->set_request_id(request->request_id());
      return grpc::Status::OK;
    }
    // Of the first call three elements of each row count, and its loss is 2; of every other one element, and 1.
    grpc::Status Evaluate(grpc::ServerContext* context, const v1::EvaluateRequest* request,
                          v1::EvaluateResponse* response) override {
      if (auto s = daemon->Enter(context, "Evaluate", request->request_id()); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      const bool first = daemon->last_evaluate_.pipeline().empty();
      daemon->last_evaluate_ = *request;
      v1::Handle handle;
      handle.set_kind(v1::HANDLE_KIND_OUTCOME);
      handle.set_state(v1::HANDLE_STATE_READY);
      v1::Outcome* outcome = handle.mutable_outcome();
      outcome->set_step(daemon->steps_);
      outcome->set_state_token("token");
      outcome->set_rows(request->target().tensor().header().shape(0));
      outcome->set_counted_elements(first ? 3 * outcome->rows() : outcome->rows());
      outcome->set_metric_elements(outcome->rows());
      outcome->set_loss(first ? 2 : 1);
      for (const std::string& metric : request->metrics()) (*outcome->mutable_metrics())[metric] = first ? 0.5 : 0.25;
      const std::string name = daemon->StoreLocked(handle, {});
      *response->mutable_outcome()->mutable_handle() = daemon->handles_[name].handle;
      return grpc::Status::OK;
    }
    // Inference, evaluation and training steps, one after the other.
    grpc::Status StreamWork(grpc::ServerContext* context,
                            grpc::ServerReaderWriter<v1::StreamWorkResponse, v1::StreamWorkRequest>* stream) override {
      v1::StreamWorkResponse opened;
      opened.mutable_opened()->set_requests(2);
      stream->Write(opened);
      v1::StreamWorkRequest request;
      while (stream->Read(&request)) {
        if (auto s = daemon->Enter(context, "StreamWork"); !s.ok()) return s;
        v1::StreamWorkResponse response;
        response.set_tag(request.tag());
        grpc::Status status;
        bool silent;
        {
          absl::MutexLock lock(&daemon->mu_);
          silent = daemon->faults_.silent_work;
        }
        if (silent && !request.has_cancel()) continue;
        if (request.has_infer()) status = Infer(context, &request.infer(), response.mutable_infer());
        if (request.has_evaluate()) status = Evaluate(context, &request.evaluate(), response.mutable_evaluate());
        if (request.has_train_step()) {
          status = TrainStep(context, &request.train_step(), response.mutable_train_step());
        }
        if (request.has_cancel()) {
          if (auto s = daemon->Enter(context, "Cancel"); !s.ok()) return s;
          status = RichStatus(grpc::StatusCode::CANCELLED, "WORK_CANCELLED", "cancelled");
        }
        if (!status.ok() && !response.mutable_error()->ParseFromString(status.error_details())) return status;
        stream->Write(response);
      }
      return grpc::Status::OK;
    }

    grpc::Status Infer(grpc::ServerContext* context, const v1::InferRequest* request,
                       v1::InferResponse* response) override {
      if (auto s = daemon->Enter(context, "Infer", request->request_id()); !s.ok()) return s;
      if (!request->inputs(0).has_tensor()) {
        return RichStatus(grpc::StatusCode::INVALID_ARGUMENT, "HANDLE_KIND", "the fake takes tensors only");
      }
      const std::string& bytes = request->inputs(0).tensor().data();
      const size_t positions = bytes.size() / 8;
      std::vector<float> scores(positions * 256, 0.0f);
      for (size_t i = 0; i < positions; ++i) {
        scores[i * 256 + (static_cast<uint8_t>(bytes[i * 8]) + 1) % 256] = 9.0f;
      }
      v1::Tensor tensor;
      SetHeader("logits", v1::DATA_TYPE_FP32, {1, static_cast<int64_t>(positions), 256}, &tensor);
      tensor.set_data(scores.data(), scores.size() * sizeof(float));
      tensor.mutable_header()->set_byte_size(static_cast<int64_t>(tensor.data().size()));
      absl::MutexLock lock(&daemon->mu_);
      v1::Handle handle;
      handle.set_kind(v1::HANDLE_KIND_VALUE);
      handle.set_state(v1::HANDLE_STATE_READY);
      handle.set_method("Infer");
      const std::string name = daemon->StoreLocked(handle, {tensor});
      *response->mutable_outputs()->mutable_handle() = daemon->handles_[name].handle;
      if (static_cast<int64_t>(tensor.data().size()) <= request->reply().inline_bytes()) {
        *response->mutable_outputs()->add_tensors() = tensor;
      }
      return grpc::Status::OK;
    }
    static void SetHeader(const char* name, v1::DataType type, std::initializer_list<int64_t> shape, v1::Tensor* to) {
      to->mutable_header()->set_name(name);
      to->mutable_header()->set_type(type);
      to->mutable_header()->mutable_shape()->Add(shape.begin(), shape.end());
    }
    FakeDaemon* daemon;
  };

  struct Handles : v1::HandleService::Service {
    explicit Handles(FakeDaemon* d) : daemon(d) {}

    grpc::Status PutTensors(grpc::ServerContext* context,
                            grpc::ServerReaderWriter<v1::PutTensorsResponse, v1::PutTensorsRequest>* stream) override {
      v1::PutTensorsRequest request;
      if (!stream->Read(&request) || !request.has_start()) {
        return RichStatus(grpc::StatusCode::INVALID_ARGUMENT, "STREAM_PROTOCOL", "a start must come first");
      }
      const v1::PutStart start = request.start();
      if (auto s = daemon->Enter(context, "PutTensors", start.request_id()); !s.ok()) return s;
      if (start.tensors_size() > WireLimits().max_tensors) {
        return RichStatus(grpc::StatusCode::INVALID_ARGUMENT, "TENSOR_HEADER", "too many tensors");
      }
      Upload upload;
      int64_t credit = 0;
      {
        absl::MutexLock lock(&daemon->mu_);
        upload = daemon->uploads_[start.request_id()];
        credit = daemon->faults_.upload_credit;
      }
      if (upload.tensors.empty()) {
        for (const v1::TensorHeader& header : start.tensors()) {
          *upload.tensors.emplace_back().mutable_header() = header;
        }
      }
      size_t next = 0;
      const auto complete = [&](const v1::Tensor& t) {
        return static_cast<int64_t>(t.data().size()) == t.header().byte_size();
      };
      while (next < upload.tensors.size() && complete(upload.tensors[next])) ++next;
      v1::PutTensorsResponse response;
      response.mutable_credit()->set_bytes(credit);
      response.mutable_credit()->set_next_tensor(static_cast<int32_t>(next));
      if (next < upload.tensors.size()) {
        response.mutable_credit()->set_next_offset(static_cast<int64_t>(upload.tensors[next].data().size()));
      }
      stream->Write(response);
      for (int chunks = 0; stream->Read(&request); ++chunks) {
        const v1::TensorChunk& chunk = request.chunk();
        {
          absl::MutexLock lock(&daemon->mu_);
          if (daemon->faults_.break_upload_after_chunks == chunks) {
            daemon->faults_.break_upload_after_chunks = -1;
            daemon->uploads_[start.request_id()] = upload;
            return RichStatus(grpc::StatusCode::UNAVAILABLE, "DRAINING", "the fake breaks the upload");
          }
          daemon->uploaded_offsets_.push_back(chunk.offset());
        }
        credit -= static_cast<int64_t>(chunk.data().size());
        if (credit < 0) {
          return RichStatus(grpc::StatusCode::INVALID_ARGUMENT, "STREAM_PROTOCOL", "more bytes than credit");
        }
        v1::Tensor& tensor = upload.tensors[static_cast<size_t>(chunk.tensor())];
        if (chunk.offset() != static_cast<int64_t>(tensor.data().size())) {
          return RichStatus(grpc::StatusCode::INVALID_ARGUMENT, "CHUNK_SIZE", "a gap");
        }
        if (Crc32c(chunk.data()) != chunk.crc32c()) {
          return RichStatus(grpc::StatusCode::DATA_LOSS, "CHUNK_CHECKSUM", "a damaged chunk");
        }
        tensor.mutable_data()->append(chunk.data());
        response.mutable_credit()->Clear();
        response.mutable_credit()->set_bytes(static_cast<int64_t>(chunk.data().size()));
        credit += response.credit().bytes();
        stream->Write(response);
      }
      for (const v1::Tensor& tensor : upload.tensors) {
        if (!complete(tensor)) return RichStatus(grpc::StatusCode::INVALID_ARGUMENT, "CHUNK_SIZE", "an early end");
      }
      absl::MutexLock lock(&daemon->mu_);
      v1::Handle handle;
      handle.set_kind(v1::HANDLE_KIND_VALUE);
      handle.set_state(v1::HANDLE_STATE_READY);
      handle.set_method("PutTensors");
      const std::string name = daemon->StoreLocked(handle, upload.tensors);
      *response.mutable_handle() = daemon->handles_[name].handle;
      stream->Write(response);
      return grpc::Status::OK;
    }

    grpc::Status FetchHandle(grpc::ServerContext* context, const v1::FetchHandleRequest* request,
                             grpc::ServerWriter<v1::FetchHandleResponse>* writer) override {
      if (auto s = daemon->Enter(context, "FetchHandle"); !s.ok()) return s;
      Stored stored;
      StreamFaults faults;
      {
        absl::MutexLock lock(&daemon->mu_);
        daemon->fetched_.push_back(absl::StrCat(request->tensor(), "@", request->offset()));
        const auto found = daemon->handles_.find(request->name());
        if (found == daemon->handles_.end()) {
          return RichStatus(grpc::StatusCode::NOT_FOUND, "HANDLE_NOT_FOUND", "no such handle");
        }
        stored = found->second;
        faults = daemon->faults_;
        daemon->faults_.break_fetch_after_chunks = -1;
        daemon->faults_.damage_fetch_chunk = -1;
        daemon->faults_.break_fetch_after_values = -1;
      }
      v1::FetchHandleResponse response;
      *response.mutable_handle() = stored.handle;
      writer->Write(response);
      int values = 0;
      for (const v1::NamedValue& value : stored.values) {
        if (!request->tensor().empty() && request->tensor() != value.name()) continue;
        if (values++ == faults.break_fetch_after_values) {
          return RichStatus(grpc::StatusCode::UNAVAILABLE, "DRAINING", "the fake breaks the fetch");
        }
        *response.mutable_value() = value;
        writer->Write(response);
      }
      const size_t size = request->chunk_size() > 0 ? static_cast<size_t>(request->chunk_size()) : 256 << 10;
      int chunks = 0;
      for (size_t t = 0; t < stored.tensors.size(); ++t) {
        const v1::Tensor& tensor = stored.tensors[t];
        if (!request->tensor().empty() && request->tensor() != tensor.header().name()) continue;
        for (auto offset = static_cast<size_t>(request->offset()); offset < tensor.data().size(); offset += size) {
          if (chunks == faults.break_fetch_after_chunks) {
            return RichStatus(grpc::StatusCode::UNAVAILABLE, "DRAINING", "the fake breaks the fetch");
          }
          v1::TensorChunk* chunk = response.mutable_chunk();
          chunk->set_tensor(static_cast<int32_t>(t));
          chunk->set_offset(static_cast<int64_t>(offset));
          chunk->set_data(tensor.data().substr(offset, size));
          chunk->set_crc32c(Crc32c(chunk->data()));
          if (chunks++ == faults.damage_fetch_chunk) (*chunk->mutable_data())[0] ^= 1;
          writer->Write(response);
        }
      }
      return grpc::Status::OK;
    }

    grpc::Status WaitHandles(grpc::ServerContext* context, const v1::WaitHandlesRequest* request,
                             v1::WaitHandlesResponse* response) override {
      if (auto s = daemon->Enter(context, "WaitHandles"); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      for (const std::string& name : request->names()) daemon->AnswerLocked(name, response->add_handles());
      return grpc::Status::OK;
    }
    grpc::Status GetHandle(grpc::ServerContext* context, const v1::GetHandleRequest* request,
                           v1::Handle* response) override {
      if (auto s = daemon->Enter(context, "GetHandle"); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      const auto found = daemon->handles_.find(request->name());
      if (found == daemon->handles_.end()) {
        return RichStatus(grpc::StatusCode::NOT_FOUND, "HANDLE_NOT_FOUND", "no such handle",
                          {{"handle", request->name()}});
      }
      *response = found->second.handle;
      return grpc::Status::OK;
    }
    grpc::Status ListHandles(grpc::ServerContext* context, const v1::ListHandlesRequest*,
                             v1::ListHandlesResponse* response) override {
      if (auto s = daemon->Enter(context, "ListHandles"); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      for (const auto& [name, stored] : daemon->handles_) *response->add_handles() = stored.handle;
      return grpc::Status::OK;
    }
    grpc::Status RenewHandles(grpc::ServerContext* context, const v1::RenewHandlesRequest* request,
                              v1::RenewHandlesResponse* response) override {
      if (auto s = daemon->Enter(context, "RenewHandles"); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      for (const std::string& name : request->names()) daemon->AnswerLocked(name, response->add_handles());
      return grpc::Status::OK;
    }
    grpc::Status ShareHandle(grpc::ServerContext* context, const v1::ShareHandleRequest* request,
                             v1::Handle* response) override {
      if (auto s = daemon->Enter(context, "ShareHandle", request->request_id()); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      const auto found = daemon->handles_.find(request->name());
      if (found == daemon->handles_.end()) {
        return RichStatus(grpc::StatusCode::NOT_FOUND, "HANDLE_NOT_FOUND", "no such handle",
                          {{"handle", request->name()}});
      }
      *response = found->second.handle;
      response->set_name(request->name() + "-shared");
      response->set_method("ShareHandle");
      response->set_owner(request->recipient());
      response->mutable_expire_time()->set_seconds(request->lease().seconds());
      return grpc::Status::OK;
    }
    grpc::Status ReleaseHandles(grpc::ServerContext* context, const v1::ReleaseHandlesRequest* request,
                                v1::ReleaseHandlesResponse* response) override {
      if (auto s = daemon->Enter(context, "ReleaseHandles"); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      for (const std::string& name : request->names()) {
        daemon->AnswerLocked(name, response->add_handles());
        daemon->handles_.erase(name);
      }
      return grpc::Status::OK;
    }
    grpc::Status CancelHandles(grpc::ServerContext* context, const v1::CancelHandlesRequest* request,
                               v1::CancelHandlesResponse* response) override {
      if (auto s = daemon->Enter(context, "CancelHandles"); !s.ok()) return s;
      for (const std::string& name : request->names()) {
        auto* answer = response->add_answers();
        answer->set_name(name);
        answer->set_effect(v1::CancelHandlesResponse::EFFECT_NOT_CANCELLABLE);
      }
      return grpc::Status::OK;
    }
    FakeDaemon* daemon;
  };

  struct State : v1::StateService::Service {
    explicit State(FakeDaemon* d) : daemon(d) {}
    static void Fill(const std::string& name, v1::Checkpoint* checkpoint, const std::string& pipeline = kPipeline) {
      checkpoint->set_name(absl::StrCat(pipeline, "/checkpoints/", name));
      checkpoint->set_step(7);
      checkpoint->set_byte_size(25'000'000);
      checkpoint->set_digest("crc32c:0badcafe");
      checkpoint->set_state(v1::CHECKPOINT_STATE_COMPLETE);
      checkpoint->mutable_create_time()->set_seconds(1'700'000'000);
      checkpoint->set_has_specification(true);
      checkpoint->set_model("gpt");
      checkpoint->set_pipeline_exists(pipeline == kPipeline);
    }
    grpc::Status SaveCheckpoint(grpc::ServerContext* context, const v1::SaveCheckpointRequest* request,
                                v1::Checkpoint* response) override {
      if (auto s = daemon->Enter(context, "SaveCheckpoint", request->request_id()); !s.ok()) return s;
      Fill(request->checkpoint_id().empty() ? "step-7" : request->checkpoint_id(), response);
      response->set_rotating(request->keep() > 0);
      absl::MutexLock lock(&daemon->mu_);
      daemon->last_save_ = *request;
      return grpc::Status::OK;
    }
    grpc::Status CopyCheckpoint(grpc::ServerContext* context, const v1::CopyCheckpointRequest* request,
                                v1::Checkpoint* response) override {
      if (auto s = daemon->Enter(context, "CopyCheckpoint", request->request_id()); !s.ok()) return s;
      Fill(request->checkpoint_id().empty() ? "step-7" : request->checkpoint_id(), response, request->destination());
      absl::MutexLock lock(&daemon->mu_);
      daemon->last_copy_ = *request;
      return grpc::Status::OK;
    }
    grpc::Status RestoreCheckpoint(grpc::ServerContext* context, const v1::RestoreCheckpointRequest* request,
                                   v1::RestoreCheckpointResponse* response) override {
      if (auto s = daemon->Enter(context, "RestoreCheckpoint", request->request_id()); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      daemon->last_restore_ = *request;
      response->set_step(7);
      return grpc::Status::OK;
    }
    grpc::Status PublishCheckpoint(grpc::ServerContext* context, const v1::PublishCheckpointRequest* request,
                                   v1::Pipeline* response) override {
      if (auto s = daemon->Enter(context, "PublishCheckpoint", request->request_id()); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      daemon->last_publish_ = *request;
      *response = daemon->PipelineLocked();
      if (request->checkpoint_id().empty()) return grpc::Status::OK;
      response->mutable_published()->set_checkpoint(request->pipeline() + "/checkpoints/" + request->checkpoint_id());
      response->mutable_published()->set_step(7);
      response->mutable_published()->set_version("2");
      return grpc::Status::OK;
    }
    grpc::Status DeleteCheckpoint(grpc::ServerContext* context, const v1::DeleteCheckpointRequest* request,
                                  v1::DeleteCheckpointResponse*) override {
      return daemon->Enter(context, "DeleteCheckpoint", request->request_id());
    }
    grpc::Status ListCheckpoints(grpc::ServerContext* context, const v1::ListCheckpointsRequest* request,
                                 v1::ListCheckpointsResponse* response) override {
      if (auto s = daemon->Enter(context, "ListCheckpoints"); !s.ok()) return s;
      Fill("step-7", response->add_checkpoints());
      if (request->parent() == "pipelines/-") Fill("best", response->add_checkpoints(), "pipelines/old");
      return grpc::Status::OK;
    }
    grpc::Status ReadParameters(grpc::ServerContext* context, const v1::ReadParametersRequest* request,
                                grpc::ServerWriter<v1::ReadParametersResponse>* writer) override {
      if (auto s = daemon->Enter(context, "ReadParameters"); !s.ok()) return s;
      {
        absl::MutexLock lock(&daemon->mu_);
        daemon->last_read_ = *request;
      }
      v1::Tensor tensor;
      Work::SetHeader("head.weight", v1::DATA_TYPE_FP32, {2}, &tensor);
      tensor.mutable_header()->set_byte_size(8);
      v1::ReadParametersResponse response;
      response.mutable_start()->set_step(7);
      *response.mutable_start()->add_tensors() = tensor.header();
      writer->Write(response);
      response.mutable_chunk()->set_data(std::string("\0\0\x80\x3f\0\0\0\x40", 8));
      response.mutable_chunk()->set_crc32c(Crc32c(response.chunk().data()));
      writer->Write(response);
      absl::MutexLock lock(&daemon->mu_);
      if (std::exchange(daemon->faults_.break_read, false)) {
        return RichStatus(grpc::StatusCode::UNAVAILABLE, "DRAINING", "the fake breaks the stream");
      }
      return grpc::Status::OK;
    }
    FakeDaemon* daemon;
  };

  struct Insight : v1::InsightService::Service {
    explicit Insight(FakeDaemon* d) : daemon(d) {}
    grpc::Status WatchStatistics(grpc::ServerContext* context, const v1::WatchStatisticsRequest* request,
                                 grpc::ServerWriter<v1::PipelineStatistics>* writer) override {
      if (auto s = daemon->Enter(context, "WatchStatistics"); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      if (daemon->unloaded_) {
        return RichStatus(grpc::StatusCode::FAILED_PRECONDITION, "PIPELINE_NOT_READY",
                          "pipeline gpt is unloaded; LoadPipeline, or penstock pipeline load gpt, makes it ready again",
                          {{"pipeline", "gpt"}});
      }
      for (int i = 0; i < std::max(1, request->max_updates()); ++i) {
        writer->Write(StatisticsAfter(daemon->steps_, static_cast<int64_t>(daemon->handles_.size()), daemon->created_));
      }
      return grpc::Status::OK;
    }
    grpc::Status GetSchedule(grpc::ServerContext* context, const v1::GetScheduleRequest* request,
                             v1::GetScheduleResponse* response) override {
      if (auto s = daemon->Enter(context, "GetSchedule"); !s.ok()) return s;
      *response = SchedulePage(*request);
      return grpc::Status::OK;
    }
    grpc::Status ExportTrace(grpc::ServerContext* context, const v1::ExportTraceRequest* request,
                             grpc::ServerWriter<v1::ExportTraceResponse>* writer) override {
      if (auto s = daemon->Enter(context, "ExportTrace"); !s.ok()) return s;
      v1::ExportTraceResponse piece;
      piece.mutable_summary()->set_lanes(2);
      piece.mutable_summary()->set_steps(request->steps() > 0 ? request->steps() : 12);
      piece.mutable_summary()->set_records(3456);
      piece.mutable_summary()->set_seconds(1.5);
      piece.mutable_summary()->set_incomplete(request->steps() == 0);
      piece.mutable_summary()->set_lost_records(request->steps() == 0 ? 789 : 0);
      writer->Write(piece);
      const bool perfetto = request->format() == v1::ExportTraceRequest::FORMAT_PERFETTO;
      for (const char* data : perfetto ? std::array{"per", "fetto"} : std::array{"{\"traceEvents\":", "[]}"}) {
        piece.clear_summary();
        piece.set_data(data);
        writer->Write(piece);
        if (auto s = daemon->Enter(context, "ExportTrace.piece"); !s.ok()) return s;
      }
      return grpc::Status::OK;
    }
    FakeDaemon* daemon;
  };

  struct Inference : inference::GRPCInferenceService::Service {
    explicit Inference(FakeDaemon* d) : daemon(d) {}
    grpc::Status ModelMetadata(grpc::ServerContext* context, const inference::ModelMetadataRequest* request,
                               inference::ModelMetadataResponse* response) override {
      if (auto s = daemon->Enter(context, "ModelMetadata"); !s.ok()) return s;
      response->set_name(request->name());
      auto* input = response->add_inputs();
      input->set_name("INPUT");
      input->set_datatype(request->name() == "text" ? "BYTES" : "INT32");
      for (const int64_t size : {-1, -1, 3}) input->add_shape(size);
      return grpc::Status::OK;
    }
    grpc::Status ModelInfer(grpc::ServerContext* context, const inference::ModelInferRequest* request,
                            inference::ModelInferResponse*) override {
      if (auto s = daemon->Enter(context, "ModelInfer"); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      daemon->last_model_infer_ = *request;
      daemon->model_rows_ += static_cast<uint64_t>(request->inputs(0).shape(0));
      return grpc::Status::OK;
    }
    grpc::Status ModelStatistics(grpc::ServerContext* context, const inference::ModelStatisticsRequest* request,
                                 inference::ModelStatisticsResponse* response) override {
      if (auto s = daemon->Enter(context, "ModelStatistics"); !s.ok()) return s;
      if (request->name() == "unknown") return grpc::Status::OK;
      absl::MutexLock lock(&daemon->mu_);
      inference::ModelStatistics* model = response->add_model_stats();
      model->set_inference_count(4 * daemon->model_rows_);  // so that rows and requests are not the same number
      model->set_execution_count(daemon->model_rows_);
      auto* stats = model->mutable_inference_stats();
      stats->mutable_success()->set_count(daemon->model_rows_);
      stats->mutable_success()->set_ns(7'000'000 * daemon->model_rows_);
      stats->mutable_queue()->set_count(daemon->model_rows_);
      stats->mutable_queue()->set_ns(2'000'000 * daemon->model_rows_);
      return grpc::Status::OK;
    }
    FakeDaemon* daemon;
  };

  struct Admin : v1::AdminService::Service {
    explicit Admin(FakeDaemon* d) : daemon(d) {}
    grpc::Status Drain(grpc::ServerContext* context, const v1::DrainRequest* request,
                       v1::DrainState* response) override {
      if (auto s = daemon->Enter(context, "Drain"); !s.ok()) return s;
      if (request->abort()) return grpc::Status::OK;
      response->set_phase(v1::DRAIN_PHASE_FINISH);
      response->set_for_upgrade(request->for_upgrade());
      response->set_calls_left(2);
      response->mutable_deadline()->set_seconds(60);
      return grpc::Status::OK;
    }
    grpc::Status SetLogLevel(grpc::ServerContext* context, const v1::SetLogLevelRequest* request,
                             v1::SetLogLevelResponse* response) override {
      if (auto s = daemon->Enter(context, "SetLogLevel"); !s.ok()) return s;
      absl::MutexLock lock(&daemon->mu_);
      response->set_before(daemon->log_level_);
      if (request->level() != v1::LOG_LEVEL_UNSPECIFIED) daemon->log_level_ = request->level();
      response->set_now(daemon->log_level_);
      return grpc::Status::OK;
    }
    grpc::Status GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest*,
                               v1::ServerInfo* response) override {
      if (auto s = daemon->Enter(context, "GetServerInfo"); !s.ok()) return s;
      response->set_version("0.1.0");
      response->set_epoch(3);
      response->set_state("ready");
      response->mutable_start_time()->set_seconds(-59);
      response->set_api_address("127.0.0.1:8470");
      response->set_metrics_address("127.0.0.1:8473");
      for (int i = 0; i < 2; ++i) {
        v1::DeviceInfo* device = response->add_devices();
        device->set_name(absl::StrCat("cpu:", i));
        device->add_cores(i);
        device->set_memory_limit_bytes(int64_t{8} << 30);
      }
      response->add_models("gpt");
      (*response->mutable_versions())["torch"] = "2.11.0";
      absl::MutexLock lock(&daemon->mu_);
      if (!daemon->group_.has_value()) return grpc::Status::OK;
      *response->mutable_group() = *daemon->group_;
      for (v1::RankLink& link : *daemon->group_->mutable_links()) link.set_bytes(link.bytes() + 4096);
      return grpc::Status::OK;
    }
    FakeDaemon* daemon;
  };

  struct HealthServiceImpl : grpc::health::v1::Health::Service {
    explicit HealthServiceImpl(FakeDaemon* d) : daemon(d) {}
    grpc::Status Check(grpc::ServerContext* context, const grpc::health::v1::HealthCheckRequest* request,
                       grpc::health::v1::HealthCheckResponse* response) override {
      if (auto s = daemon->Enter(context, "Check"); !s.ok()) return s;
      if (request->service() != "readiness") return grpc::Status(grpc::StatusCode::NOT_FOUND, "unknown service");
      absl::MutexLock lock(&daemon->mu_);
      response->set_status(daemon->ready_ ? grpc::health::v1::HealthCheckResponse::SERVING
                                          : grpc::health::v1::HealthCheckResponse::NOT_SERVING);
      daemon->ready_ = true;  // a daemon that starts is ready when asked again
      return grpc::Status::OK;
    }
    FakeDaemon* daemon;
  };

  Pipelines pipelines;
  Work work;
  Handles handles;
  State state;
  Insight insight;
  Inference inference;
  Admin admin;
  HealthServiceImpl health;
};

FakeDaemon::FakeDaemon() : services_(std::make_unique<Services>(this)) {
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(64 << 20);
  for (grpc::Service* service : std::initializer_list<grpc::Service*>{
           &services_->pipelines, &services_->work, &services_->handles, &services_->state, &services_->insight,
           &services_->inference, &services_->admin, &services_->health}) {
    builder.RegisterService(service);
  }
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  server_ = builder.BuildAndStart();
}

std::string FakeDaemon::Address() const { return absl::StrCat("127.0.0.1:", port_); }

FakeDaemon::~FakeDaemon() { server_->Shutdown(); }

std::shared_ptr<grpc::Channel> FakeDaemon::Channel() { return server_->InProcessChannel(grpc::ChannelArguments()); }

grpc::Status FakeDaemon::Enter(grpc::ServerContext* context, const std::string& method, const std::string& request_id) {
  absl::MutexLock lock(&mu_);
  request_ids_[method].push_back(request_id);
  const auto metadata = [&](const char* key) {
    const auto found = context->client_metadata().find(key);
    return found == context->client_metadata().end() ? "" : std::string(found->second.data(), found->second.size());
  };
  callers_.push_back(metadata("penstock-caller"));
  traceparents_.push_back(metadata("traceparent"));
  std::deque<grpc::Status>& failures = failures_[method];
  if (failures.empty()) return grpc::Status::OK;
  if (!pushback_.empty()) context->AddTrailingMetadata("grpc-retry-pushback-ms", pushback_);
  const grpc::Status failure = failures.front();
  failures.pop_front();
  return failure;
}

std::string FakeDaemon::StoreLocked(v1::Handle handle, std::vector<v1::Tensor> tensors) {
  const std::string name = absl::StrFormat("%s/handles/00000003-%032d", kPipeline, ++created_);
  handle.set_name(name);
  int64_t size = 0;
  for (const v1::Tensor& tensor : tensors) {
    *handle.add_tensors() = tensor.header();
    size += tensor.header().byte_size();
  }
  handle.set_byte_size(size);
  handles_[name] = {handle, std::move(tensors)};
  return name;
}

v1::Pipeline FakeDaemon::PipelineLocked() const {
  v1::Pipeline pipeline;
  pipeline.set_name(kPipeline);
  pipeline.mutable_spec()->mutable_model()->set_name("gpt");
  v1::OptimizerSpec* optimizer = pipeline.mutable_spec()->mutable_optimizer();
  optimizer->set_name("adamw");
  (*optimizer->mutable_options())["beta1"].set_double_value(0.5);
  optimizer->mutable_learning_rate_schedule()->set_name("warmup_cosine");
  optimizer->mutable_learning_rate_schedule()->set_total_steps(9);
  optimizer->mutable_learning_rate_schedule()->set_warmup_steps(2);
  optimizer->add_groups()->add_patterns("*.bias");
  pipeline.set_state(v1::PIPELINE_STATE_READY);
  pipeline.set_epoch(3);
  pipeline.set_step(steps_);
  *pipeline.mutable_plan() = TwoStagePlan();
  SetSignature("tokens", v1::DATA_TYPE_INT64, {-1, kSequence}, pipeline.mutable_signature()->add_inputs());
  SetSignature("logits", v1::DATA_TYPE_FP32, {-1, kSequence, 256}, pipeline.mutable_signature()->add_outputs());
  SetSignature("targets", v1::DATA_TYPE_INT64, {-1, kSequence}, pipeline.mutable_signature()->add_targets());
  pipeline.set_parameters(6'412'544);
  if (unloaded_) {
    pipeline.set_state(v1::PIPELINE_STATE_UNLOADED);
    pipeline.clear_plan();
    pipeline.clear_signature();
    return pipeline;
  }
  if (flexible_) {
    (*pipeline.mutable_spec()->mutable_model()->mutable_options())["sequence"].set_int_value(kSequence);
    pipeline.mutable_signature()->mutable_inputs(0)->set_shape(1, -1);
    pipeline.mutable_signature()->clear_targets();
  }
  return pipeline;
}

void FakeDaemon::AnswerLocked(const std::string& name, v1::HandleAnswer* answer) {
  answer->set_name(name);
  const auto found = handles_.find(name);
  if (found == handles_.end()) {
    *answer->mutable_error() = NotFound(name);
  } else {
    *answer->mutable_handle() = found->second.handle;
  }
}

void FakeDaemon::SetGroup(const v1::GroupInfo& group) {
  absl::MutexLock lock(&mu_);
  group_ = group;
}

void FakeDaemon::Fail(const std::string& method, grpc::Status status) {
  absl::MutexLock lock(&mu_);
  failures_[method].push_back(std::move(status));
}

void FakeDaemon::PushBack(const std::string& milliseconds) {
  absl::MutexLock lock(&mu_);
  pushback_ = milliseconds;
}

void FakeDaemon::SetFaults(const StreamFaults& faults) {
  absl::MutexLock lock(&mu_);
  faults_ = faults;
}

void FakeDaemon::SetReady(bool ready) {
  absl::MutexLock lock(&mu_);
  ready_ = ready;
}

void FakeDaemon::SetFlexible() {
  absl::MutexLock lock(&mu_);
  flexible_ = true;
}

void FakeDaemon::SetUnloaded(bool unloaded) {
  absl::MutexLock lock(&mu_);
  unloaded_ = unloaded;
}

std::vector<std::string> FakeDaemon::RequestIds(const std::string& method) const {
  absl::MutexLock lock(&mu_);
  const auto found = request_ids_.find(method);
  return found == request_ids_.end() ? std::vector<std::string>() : found->second;
}

std::vector<std::string> FakeDaemon::Callers() const {
  absl::MutexLock lock(&mu_);
  return callers_;
}

std::vector<std::string> FakeDaemon::Traceparents() const {
  absl::MutexLock lock(&mu_);
  return traceparents_;
}

v1::TrainStepRequest FakeDaemon::LastTrainStep() const {
  absl::MutexLock lock(&mu_);
  return last_train_step_;
}

v1::EvaluateRequest FakeDaemon::LastEvaluate() const {
  absl::MutexLock lock(&mu_);
  return last_evaluate_;
}
inference::ModelInferRequest FakeDaemon::LastModelInfer() const {
  absl::MutexLock lock(&mu_);
  return last_model_infer_;
}

v1::ReadParametersRequest FakeDaemon::LastRead() const {
  absl::MutexLock lock(&mu_);
  return last_read_;
}

v1::PlanPipelineRequest FakeDaemon::LastPlan() const {
  absl::MutexLock lock(&mu_);
  return last_plan_;
}

void FakeDaemon::SetProgress(std::deque<v1::CreateProgress> progress) {
  absl::MutexLock lock(&mu_);
  progress_ = std::move(progress);
}

v1::UpdateOptimizerRequest FakeDaemon::LastUpdate() const {
  absl::MutexLock lock(&mu_);
  return last_update_;
}

v1::UpdatePipelineRequest FakeDaemon::LastReplan() const {
  absl::MutexLock lock(&mu_);
  return last_replan_;
}

v1::PublishCheckpointRequest FakeDaemon::LastPublish() const {
  absl::MutexLock lock(&mu_);
  return last_publish_;
}

v1::CreatePipelineRequest FakeDaemon::LastCreate() const {
  absl::MutexLock lock(&mu_);
  return last_create_;
}

v1::SaveCheckpointRequest FakeDaemon::LastSave() const {
  absl::MutexLock lock(&mu_);
  return last_save_;
}

v1::CopyCheckpointRequest FakeDaemon::LastCopy() const {
  absl::MutexLock lock(&mu_);
  return last_copy_;
}

std::vector<int64_t> FakeDaemon::UploadedOffsets() const {
  absl::MutexLock lock(&mu_);
  return uploaded_offsets_;
}

std::vector<std::string> FakeDaemon::FetchedTensors() const {
  absl::MutexLock lock(&mu_);
  return fetched_;
}

int64_t FakeDaemon::LiveHandles() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(handles_.size());
}

int64_t FakeDaemon::Steps() const {
  absl::MutexLock lock(&mu_);
  return steps_;
}

v1::RestoreCheckpointRequest FakeDaemon::LastRestore() const {
  absl::MutexLock lock(&mu_);
  return last_restore_;
}

std::string FakeDaemon::AddHandle(const std::vector<v1::Tensor>& tensors, v1::HandleState state,
                                  const std::vector<v1::NamedValue>& values) {
  absl::MutexLock lock(&mu_);
  v1::Handle handle;
  handle.set_kind(v1::HANDLE_KIND_VALUE);
  handle.set_state(state);
  for (const v1::NamedValue& value : values) handle.add_values(value.name());
  const std::string name = StoreLocked(handle, tensors);
  handles_[name].values = values;
  return name;
}

}  // namespace penstock::testing
