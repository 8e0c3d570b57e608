#include "engine/plan/device_cut.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/plan/layer_names.h"
#include "engine/plan/spec_error.h"

namespace penstock {
namespace {

constexpr char kPlainCuda[] = "cuda";
constexpr char kPlainCudaDevice[] = "cuda:0";

// What a layer names itself wins over what the layers in it name.
void Collect(const LayerSpec& layer, std::set<std::string>& names) {
  if (!layer.device.empty()) {
    names.insert(layer.device == kPlainCuda ? kPlainCudaDevice : layer.device);
    return;
  }
  for (const LayerSpec& inner : layer.layers) Collect(inner, names);
}

absl::Status CheckDevice(const std::string& name, const std::string& field, const std::vector<Device>& devices) {
  const std::string wanted = name == kPlainCpu ? kPlainCpuDevice : name;
  if (std::any_of(devices.begin(), devices.end(), [&](const Device& device) { return device.name == wanted; })) {
    return absl::OkStatus();
  }
  const auto append = [](std::string* text, const Device& device) { absl::StrAppend(text, device.name); };
  return RefuseSpec(field, absl::StrCat("no such device (there are ", absl::StrJoin(devices, ", ", append), ")"), name);
}

}  // namespace

absl::Status PlaceByName(const std::map<std::string, std::string>& devices_by_name, const std::vector<Device>& devices,
                         std::vector<LayerSpec>* layers) {
  std::vector<const std::string*> placed(layers->size(), nullptr);  // by which name
  for (const auto& [name, device] : devices_by_name) {              // ascending: a module comes before what lies in it
    const std::string field = absl::StrCat("spec.model.layer_devices[", Shortened(name), "]");
    PENSTOCK_RETURN_IF_ERROR(CheckDevice(device, field, devices));
    const std::vector<size_t> named = LayersNamed(name, *layers);
    if (named.empty()) {
      return RefuseSpec(field, absl::StrCat("names no layer; known are ", KnownLayers(*layers)), Shortened(name));
    }
    for (const size_t i : named) {
      LayerSpec& layer = (*layers)[i];
      if (placed[i] == nullptr && !layer.device.empty()) {
        return RefuseSpec(field, absl::StrCat("the layer itself names ", layer.device), device);
      }
      placed[i] = &name;
      layer.device = device;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> DevicesOfLayers(const std::vector<LayerSpec>& layers,
                                                         const std::vector<Device>& devices) {
  std::vector<std::string> found;
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string field = absl::StrCat("spec.model.layers[", i, "].device");
    std::set<std::string> names;
    Collect(layers[i], names);
    if (names.size() > 1) {
      return RefuseSpec(field,
                        absl::StrCat("nn.Module: ", layers[i].name, " (", layers[i].kind,
                                     "), should have all parameters on a single device, please use .to() to place the "
                                     "module on a single device"),
                        absl::StrJoin(names, ", "));
    }
    for (const std::string& name : names) PENSTOCK_RETURN_IF_ERROR(CheckDevice(name, field, devices));
    found.push_back(names.empty() ? "" : *names.begin());
  }
  return found;
}

std::vector<DeviceStage> CutByDevices(const std::vector<std::string>& devices) {
  std::vector<DeviceStage> stages;
  bool alone = false;  // whether the last stage takes no named neighbour
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].empty()) continue;
    const bool plain = devices[i] == kPlainCpu;
    if (!stages.empty() && !plain && !alone && stages.back().device == devices[i]) continue;
    stages.push_back({static_cast<int>(i), plain ? kPlainCpuDevice : devices[i]});
    alone = plain;
  }
  if (!stages.empty()) stages.front().first_layer = 0;
  return stages;
}

}  // namespace penstock
