#pragma once

// When the actions of a lane begin and end on its device.

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
//            The marks of a lane are those of several runs. Each has an owner, who may go before its marks are passed.
// Owns:      the marks that are unread. State, streams and clock outlive it.
// Threads:   the device's thread only.
// Units:     nanoseconds of the host's monotonic clock.
// Fails:     as RunTorch, where the device can't tell: work before a mark has failed, so that nothing may be taken as
//            done. The marks stay unread.
class LaneTimeline {
 public:
  LaneTimeline(LaneState* state, DeviceStreams* streams, Clock* clock);

  // The compute stream begins an action, or ends it, after what it was given so far. `told` gets the time. An action
  // that can't begin has no mark and must not end; one whose end can't be marked is told behind its begin.
  template <typename Told>
  absl::Status Begin(const void* owner, StageState state, const Told& told) {
    if (on_cpu_) {
      told(state_->BeginAction(state));
      return absl::OkStatus();
    }
    Mark mark;
    if (absl::Status set = Record(mark); !set.ok()) return set;
    if (mark.event == nullptr) {
      told(state_->BeginAction(state));
    } else {
      state_->LaunchAction(state);
      Keep(owner, std::move(mark), told);
    }
    return absl::OkStatus();
  }
  template <typename Told>
  absl::Status End(const void* owner, const Told& told) {
    if (on_cpu_) {
      told(state_->EndAction());
      return absl::OkStatus();
    }
    Mark mark;
    absl::Status set = Record(mark);
    if (set.ok() && mark.event == nullptr) {
      told(state_->EndAction());
    } else {
      state_->LaunchEnd();
      Keep(owner, std::move(mark), told);
    }
    return set;
  }

  // Reports the marks that the device has passed since.
  absl::Status Read() { return unread() ? ReadPassed() : absl::OkStatus(); }
  // The owner goes: waits until the device has done all that it was given, if it does anything, and reports the owner's
  // marks as passed now. Those of others are theirs to read.
  void GiveUp(const void* owner);
  bool unread() const { return !unread_.empty(); }
  // Blocks the calling thread until the device has passed the oldest mark; false if there is none. For serial mode.
  absl::StatusOr<bool> Await();

 private:
  using Tell = std::function<void(int64_t at)>;
  struct Mark {
    TimedEventPtr event = nullptr;  // null where recording fails: passed once those before it are
    int64_t set_at = 0;
    const void* owner = nullptr;  // null: it has gone
    Tell told = {};
  };
  absl::Status Record(Mark& mark);
  void Keep(const void* owner, Mark mark, Tell told);
  absl::Status ReadPassed();
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
