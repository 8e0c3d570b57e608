#pragma once

// The factories of the built-in layer kinds, one source file each. Their options stand in that file.

#include <memory>

#include "engine/model/layer.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<Layer>> MakeAmoebaCell(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeAmoebaClassify(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeAmoebaStem(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeAvgPool2d(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeBatchNorm(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeConv2d(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeDelay(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeDropout(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeDropout2d(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeExportedProgramLayer(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeFlatten(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeGelu(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeGlobalAvgPool(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeGptBlock(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeGptEmbedding(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeGptHead(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeIdentity(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeInstanceNorm(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeLayerNorm(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeLeakyRelu(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeLinear(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeMaxPool2d(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeMlpBlock(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakePopAdd(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakePopCat(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeRelu(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeResnetBottleneck(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeResnetHead(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeResnetStem(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeSequential(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeStash(const LayerRequest& request);
absl::StatusOr<std::unique_ptr<Layer>> MakeUpsample(const LayerRequest& request);

// The widest layer that can be asked for: keeps every size of a layer far from overflow.
inline constexpr int64_t kMaxWidth = 65536;
inline constexpr int64_t kMaxKernel = 1024;

}  // namespace penstock
