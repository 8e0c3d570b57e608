#include "engine/observe/chrome_colours.h"

#include <array>
#include <cstdint>
#include <limits>

namespace penstock {
namespace {

struct Named {
  std::string_view name;
  std::array<int, 3> rgb;
};

// Source: color_scheme.html of the Chromium project's trace viewer, "catapult".
constexpr std::array<Named, 27> kReserved = {{
    {"thread_state_uninterruptible", {182, 125, 143}},
    {"thread_state_iowait", {255, 140, 0}},
    {"thread_state_running", {126, 200, 148}},
    {"thread_state_runnable", {133, 160, 210}},
    {"thread_state_sleeping", {240, 240, 240}},
    {"thread_state_unknown", {199, 155, 125}},
    {"background_memory_dump", {0, 180, 180}},
    {"light_memory_dump", {0, 0, 180}},
    {"detailed_memory_dump", {180, 0, 180}},
    {"vsync_highlight_color", {0, 0, 255}},
    {"generic_work", {125, 125, 125}},
    {"good", {0, 125, 0}},
    {"bad", {180, 125, 0}},
    {"terrible", {180, 0, 0}},
    {"black", {0, 0, 0}},
    {"grey", {221, 221, 221}},
    {"white", {255, 255, 255}},
    {"yellow", {255, 255, 0}},
    {"olive", {100, 100, 0}},
    {"rail_response", {67, 135, 253}},
    {"rail_animation", {244, 74, 63}},
    {"rail_idle", {238, 142, 0}},
    {"rail_load", {13, 168, 97}},
    {"startup", {230, 230, 0}},
    {"cq_build_running", {255, 255, 119}},
    {"cq_build_passed", {153, 238, 102}},
    {"cq_build_failed", {238, 136, 136}},
}};

int Digit(char c) { return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10; }

}  // namespace

std::string_view NearestChromeColour(std::string_view hex) {
  std::string_view nearest;
  int least = std::numeric_limits<int>::max();
  for (const Named& candidate : kReserved) {
    int distance = 0;
    for (size_t i = 0; i < 3; ++i) {
      const int apart = Digit(hex[1 + 2 * i]) * 16 + Digit(hex[2 + 2 * i]) - candidate.rgb[i];
      distance += apart * apart;
    }
    if (distance >= least) continue;
    least = distance;
    nearest = candidate.name;
  }
  return nearest;
}

}  // namespace penstock
