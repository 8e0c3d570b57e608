#include "engine/model/reference/reference_models.h"

#include <map>

namespace penstock {

const std::map<std::string, ReferenceExpander>& BuiltInReferenceModels() {
  static const auto* const models = new std::map<std::string, ReferenceExpander>{
      {"amoebanet", ExpandAmoebanet}, {"gpt", ExpandGpt},  {"identity", ExpandIdentity}, {"mlp", ExpandMlp},
      {"resnet", ExpandResnet},       {"unet", ExpandUnet}};
  return *models;
}

}  // namespace penstock
