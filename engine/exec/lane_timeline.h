#pragma once

// When the actions of a lane begin and end on its device.

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "engine/base/clock.h"
#include "engine/device/device_streams.h"
#include "engine/exec/lane_state.h"

namespace penstock {

// Marks where actions begin and end, and reports the time of each mark: to the lane's state, then to the code that set
// it.
//
// Model:     on a CPU a mark is passed and reported when it is set. On an accelerator the host runs ahead of the
//            device: a mark is a timed event of the compute stream, and the first Read() after the device has passed it
//            reports it, in the order in which marks were set. Nothing ever waits for a mark. Its time is that of the
//            mark before plus what the device's clock says passed between the two; it is never before the host set the
//            mark nor after the host saw it passed, so that the two clocks can't drift apart. The constructor waits
//            once for the device, to have a first place in both.
// Owns:      the marks that are unread. State, streams and clock outlive it.
// Threads:   the device's thread only.
// Units:     nanoseconds of the host's monotonic clock.
// Fails:     never: if the device can't give times, unread marks are reported with the present time.
class LaneTimeline {
 public:
  LaneTimeline(LaneState* state, DeviceStreams* streams, Clock* clock);

  // The compute stream begins an action, or ends it, after what it was given so far. `told` gets the time.
  template <typename Told>
  void Begin(StageState state, const Told& told) {
    if (on_cpu_) return told(state_->BeginAction(state));
    Mark mark = Record();
    if (mark.event == nullptr) return told(state_->BeginAction(state));
    state_->LaunchAction(state);
    mark.told = told;
    unread_.push_back(std::move(mark));
  }
  template <typename Told>
  void End(const Told& told) {
    if (on_cpu_) return told(state_->EndAction());
    Mark mark = Record();
    if (mark.event == nullptr) return told(state_->EndAction());
    state_->LaunchEnd();
    mark.told = told;
    unread_.push_back(std::move(mark));
  }

  // Reports the marks that the device has passed since.
  void Read() {
    if (unread()) ReadPassed();
  }
  bool unread() const { return !unread_.empty(); }
  // Reports all marks, as if the device had passed them now.
  void GiveUp();
  // Blocks the calling thread until the device has passed the oldest mark; false if there is none. For serial mode.
  bool Await();

 private:
  struct Mark {
    TimedEventPtr event;  // null where recording fails
    int64_t set_at = 0;
    std::function<void(int64_t at)> told = {};
  };
  Mark Record();
  void ReadPassed();
  std::optional<int64_t> TimeOf(const Mark& mark) const;  // nothing: not passed yet
  void TellFirst(int64_t at);

  LaneState* const state_;
  DeviceStreams* const streams_;
  Clock* const clock_;
  const bool on_cpu_;

  std::deque<Mark> unread_;
  TimedEventPtr last_;  // that was told, and when it was passed
  int64_t last_at_ = 0;
};

}  // namespace penstock
