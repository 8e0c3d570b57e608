#include "server/rpc/convert/inference_models.h"

#include "absl/strings/str_cat.h"
#include "engine/wire/tensor_header.h"

namespace penstock {
namespace {

inference::DataType ToModelType(DataType type) {
  switch (type) {
    case DataType::kBool:
      return inference::TYPE_BOOL;
    case DataType::kUint8:
      return inference::TYPE_UINT8;
    case DataType::kUint16:
      return inference::TYPE_UINT16;
    case DataType::kUint32:
      return inference::TYPE_UINT32;
    case DataType::kUint64:
      return inference::TYPE_UINT64;
    case DataType::kInt8:
      return inference::TYPE_INT8;
    case DataType::kInt16:
      return inference::TYPE_INT16;
    case DataType::kInt32:
      return inference::TYPE_INT32;
    case DataType::kInt64:
      return inference::TYPE_INT64;
    case DataType::kFp16:
      return inference::TYPE_FP16;
    case DataType::kBf16:
      return inference::TYPE_BF16;
    case DataType::kFp32:
      return inference::TYPE_FP32;
    case DataType::kFp64:
      return inference::TYPE_FP64;
    case DataType::kUnspecified:
      break;
  }
  return inference::TYPE_INVALID;
}

template <typename Tensor>
void Describe(const std::vector<TensorSignature>& signatures, google::protobuf::RepeatedPtrField<Tensor>* list) {
  for (const TensorSignature& signature : signatures) {
    if (signature.any) continue;
    Tensor* tensor = list->Add();
    tensor->set_name(signature.name);
    tensor->set_data_type(ToModelType(signature.type));
    for (const int64_t dimension : signature.shape) tensor->add_dims(dimension);
  }
}

template <typename Statistics>
void Describe(const InferenceTimes::Spent& spent, Statistics* statistics) {
  statistics->mutable_compute_input()->set_count(spent.count);  // no time: joining is part of the run
  statistics->mutable_compute_infer()->set_count(spent.count);
  statistics->mutable_compute_infer()->set_ns(spent.infer_nanos);
  statistics->mutable_compute_output()->set_count(spent.count);
  statistics->mutable_compute_output()->set_ns(spent.output_nanos);
}

const char* StateOf(PipelineEntry::State state) {
  switch (state) {
    case PipelineEntry::State::kReady:
      return "READY";
    case PipelineEntry::State::kCreating:
      return "LOADING";
    case PipelineEntry::State::kDraining:
    case PipelineEntry::State::kDeleting:
    case PipelineEntry::State::kUnloading:
      return "UNLOADING";
    case PipelineEntry::State::kFailed:
    case PipelineEntry::State::kReforming:
    case PipelineEntry::State::kUnloaded:
      break;
  }
  return "UNAVAILABLE";
}

}  // namespace

inference::ModelConfig ConfigOf(const std::string& name, const ModelSignature& signature) {
  inference::ModelConfig config;
  config.set_name(name);
  config.set_platform(kModelPlatform);
  config.set_backend(kModelPlatform);
  Describe(signature.inputs, config.mutable_input());
  Describe(signature.outputs, config.mutable_output());
  return config;
}

inference::ModelStatistics StatisticsOf(const std::string& name, const PipelineMetrics& metrics,
                                        const InferenceTimes::Snapshot& times) {
  inference::ModelStatistics statistics;
  statistics.set_name(name);
  statistics.set_version(kModelVersion);
  const auto& ended = metrics.batches[BatchMode::kInfer];
  statistics.set_inference_count(metrics.samples[BatchMode::kInfer].value());
  statistics.set_execution_count(metrics.inference_runs.value());
  inference::InferStatistics& counts = *statistics.mutable_inference_stats();
  counts.mutable_success()->set_count(ended[BatchOutcome::kOk].value());
  counts.mutable_success()->set_ns(metrics.batch_duration[BatchMode::kInfer].Snapshot().sum_nanos);
  counts.mutable_fail()->set_count(ended[BatchOutcome::kFailed].value());
  const HistogramSnapshot waited = metrics.queues[WorkQueue::kInfer].wait.Snapshot();
  counts.mutable_queue()->set_count(waited.count());
  counts.mutable_queue()->set_ns(waited.sum_nanos);
  Describe(times.calls, &counts);
  for (const auto& [rows, spent] : times.runs) {
    inference::InferBatchStatistics& size = *statistics.add_batch_stats();
    size.set_batch_size(rows);
    Describe(spent, &size);
  }
  if (times.last_run != absl::InfinitePast()) statistics.set_last_inference(absl::ToUnixMillis(times.last_run));
  return statistics;
}

std::vector<std::string> VersionsOf(const Publication& publication) {
  std::vector<std::string> versions = {kModelVersion};
  if (publication.any()) versions.push_back(absl::StrCat(publication.version));
  return versions;
}

std::vector<inference::RepositoryIndexResponse::ModelIndex> IndexOf(const PipelineEntry& entry) {
  inference::RepositoryIndexResponse::ModelIndex index;
  index.set_name(entry.name);
  index.set_version(kModelVersion);
  index.set_state(StateOf(entry.state));
  if (!entry.error.ok()) index.set_reason(std::string(entry.error.message()));
  if (entry.state == PipelineEntry::State::kDraining) index.set_reason("the daemon is draining");
  if (entry.state == PipelineEntry::State::kDeleting) index.set_reason("it is being deleted");
  if (entry.state == PipelineEntry::State::kUnloading) index.set_reason("it is being unloaded");
  if (entry.state == PipelineEntry::State::kUnloaded) index.set_reason("unloaded");
  std::vector<inference::RepositoryIndexResponse::ModelIndex> all = {index};
  const Publication publication = entry.pipeline == nullptr ? Publication() : entry.pipeline->publication();
  if (!publication.any()) return all;
  index.set_version(absl::StrCat(publication.version));
  if (!publication.error.ok()) {
    index.set_state("UNAVAILABLE");
    index.set_reason(std::string(publication.error.message()));
  }
  all.push_back(std::move(index));
  return all;
}

}  // namespace penstock
