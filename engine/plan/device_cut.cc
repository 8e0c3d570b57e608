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

// "cuda" is the first of its kind, as for PyTorch; "cpu" keeps its own meaning in a cut.
std::string FullName(const std::string& device) { return device == kPlainCuda ? kPlainCudaDevice : device; }

// What a layer names itself wins over what the layers in it name.
void Collect(const LayerSpec& layer, std::set<std::string>& names) {
  if (!layer.device.empty()) {
    names.insert(FullName(layer.device));
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
  struct Entry {
    std::string field;
    std::string device;
    std::vector<size_t> layers;
  };
  std::vector<Entry> entries;
  for (const auto& [name, device] : devices_by_name) {
    const std::string field = absl::StrCat("spec.model.layer_devices[", Shortened(name), "]");
    Entry entry{field, FullName(device), LayersNamed(name, *layers)};
    PENSTOCK_RETURN_IF_ERROR(CheckDevice(entry.device, field, devices));
    if (entry.layers.empty()) {
      return RefuseSpec(field, absl::StrCat("names no layer; known are ", KnownLayers(*layers)), Shortened(name));
    }
    entries.push_back(std::move(entry));
  }
  // What lies in a module comes after it.
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.layers.size() > b.layers.size(); });
  std::vector<bool> placed(layers->size());
  for (const Entry& entry : entries) {
    for (const size_t i : entry.layers) {
      LayerSpec& layer = (*layers)[i];
      if (!placed[i] && !layer.device.empty()) {
        return RefuseSpec(entry.field, absl::StrCat("the layer itself names ", layer.device), entry.device);
      }
      placed[i] = true;
      layer.device = entry.device;
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
