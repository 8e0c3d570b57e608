#pragma once

// Stages as the layers' devices make them.

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device/device.h"
#include "engine/model/model_spec.h"

namespace penstock {

// Puts devices by name over the layers that they mean (LayersNamed): a name as `layers.3` wins over the module `layers`
// that it lies in, since it means fewer.
//
// Fails:     SPEC_INVALID of spec.model.layer_devices[NAME]: no such layer, a layer that names a device itself, or no
//            such device.
absl::Status PlaceByName(const std::map<std::string, std::string>& devices_by_name, const std::vector<Device>& devices,
                         std::vector<LayerSpec>* layers);

// The device that each layer names, in full (`cuda` is cuda:0), `cpu` as it is; empty where it names none. A layer that
// runs others stands where those do.
//
// Fails:     SPEC_INVALID of spec.model.layers[i].device: a device that is not among `devices`, or nested layers that
//            name several.
absl::StatusOr<std::vector<std::string>> DevicesOfLayers(const std::vector<LayerSpec>& layers,
                                                         const std::vector<Device>& devices);

// One stage: where it stands and which layer is its first.
struct DeviceStage {
  int first_layer = 0;
  std::string device;

  bool operator==(const DeviceStage&) const = default;
};

// Cuts by what DevicesOfLayers returned, of which one at least is not empty. Neighbours on one cuda:k or cpu:k are one
// stage. Every layer on plain `cpu` is a stage of its own, on cpu:0, as in torch.distributed.pipeline.sync (PyTorch
// 1.10, _split_module). A layer without a device joins the stage before it, or the first one if there is none before.
std::vector<DeviceStage> CutByDevices(const std::vector<std::string>& devices);

// Where a layer of plain `cpu` runs.
inline constexpr char kPlainCpu[] = "cpu";
inline constexpr char kPlainCpuDevice[] = "cpu:0";

}  // namespace penstock
