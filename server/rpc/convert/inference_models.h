#pragma once

// What the Open Inference Protocol tells of a pipeline.

#include <string>
#include <vector>

#include "engine/model/model_spec.h"
#include "engine/observe/metrics.h"
#include "engine/serve/pipeline_table.h"
#include "inference/grpc_service.pb.h"

namespace penstock {

inline constexpr char kModelPlatform[] = "penstock";
inline constexpr char kModelVersion[] = "1";  // of the live weights

// That, and the number of what is published.
std::vector<std::string> VersionsOf(const Publication& publication);

// Inputs and outputs that are tensors: the protocol has no word for others.
inference::ModelConfig ConfigOf(const std::string& name, const ModelSignature& signature);

// What is counted of inference.
inference::ModelStatistics StatisticsOf(const std::string& name, const PipelineMetrics& metrics,
                                        const InferenceTimes::Snapshot& times);

// A pipeline in whatever state: each of its versions.
std::vector<inference::RepositoryIndexResponse::ModelIndex> IndexOf(const PipelineEntry& entry);

}  // namespace penstock
