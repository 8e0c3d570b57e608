#include "engine/autograd/autocast.h"

#include <ATen/autocast_mode.h>

namespace penstock {

AutocastGuard::AutocastGuard(c10::DeviceType device, std::optional<c10::ScalarType> type)
    : device_(device), active_(type.has_value()) {
  if (!active_) return;
  was_enabled_ = at::autocast::is_autocast_enabled(device);
  was_cached_ = at::autocast::is_autocast_cache_enabled();
  was_type_ = at::autocast::get_autocast_dtype(device);
  at::autocast::set_autocast_enabled(device, true);
  at::autocast::set_autocast_dtype(device, *type);
  at::autocast::set_autocast_cache_enabled(false);
}

AutocastGuard::~AutocastGuard() {
  if (!active_) return;
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, was_type_);
  at::autocast::set_autocast_cache_enabled(was_cached_);
}

}  // namespace penstock
