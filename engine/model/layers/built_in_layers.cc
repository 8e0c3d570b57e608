#include "engine/model/layers/built_in_layers.h"

#include "engine/model/built_in_kinds.h"

namespace penstock {

const std::map<std::string, LayerFactory>& BuiltInLayerKinds() {
  static const auto* const kinds = new std::map<std::string, LayerFactory>{
      {"amoeba_cell", MakeAmoebaCell},
      {"amoeba_classify", MakeAmoebaClassify},
      {"amoeba_stem", MakeAmoebaStem},
      {"avg_pool2d", MakeAvgPool2d},
      {"batch_norm", MakeBatchNorm},
      {"conv2d", MakeConv2d},
      {"delay", MakeDelay},
      {"dropout", MakeDropout},
      {"dropout2d", MakeDropout2d},
      {"exported_program", MakeExportedProgramLayer},
      {"flatten", MakeFlatten},
      {"gelu", MakeGelu},
      {"global_avg_pool", MakeGlobalAvgPool},
      {"gpt_block", MakeGptBlock},
      {"gpt_embedding", MakeGptEmbedding},
      {"gpt_head", MakeGptHead},
      {"identity", MakeIdentity},
      {"instance_norm", MakeInstanceNorm},
      {"layer_norm", MakeLayerNorm},
      {"leaky_relu", MakeLeakyRelu},
      {"linear", MakeLinear},
      {"max_pool2d", MakeMaxPool2d},
      {"mlp_block", MakeMlpBlock},
      {"pop_add", MakePopAdd},
      {"pop_cat", MakePopCat},
      {"relu", MakeRelu},
      {"resnet_bottleneck", MakeResnetBottleneck},
      {"resnet_head", MakeResnetHead},
      {"resnet_stem", MakeResnetStem},
      {"sequential", MakeSequential},
      {"stash", MakeStash},
      {"upsample", MakeUpsample},
  };
  return *kinds;
}

}  // namespace penstock
