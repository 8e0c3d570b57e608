#pragma once

// The end of the daemon: announce, refuse, finish, save, close.

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/time/time.h"
#include "engine/base/cancel_token.h"
#include "engine/serve/pipeline_table.h"
#include "server/drain_signal.h"
#include "server/lifecycle.h"

namespace penstock {

// What came of it.
enum class DrainEnd {
  kWhole,      // everything accepted is finished, and what changed is saved
  kCutShort,   // a second signal, or work that took too long
  kStateLost,  // a save failed or took too long
  kUnemptied,  // all is safe, but a journal that should be empty is not
  kAborted,    // it serves on
  kHangs,      // a disk or a run does not answer: nothing was closed, and only the end of the process can do it
};

// Brings a daemon to its end, one phase after another.
//
//   announce ──▶ refuse, finish ──▶ save ──▶ last fetches ──▶ close
//      └────────── a second signal ─────┴───────────────────────▲
//
//            An abort, before work is cut short and before the close, ends all that: the daemon serves on.
// Model:     Each phase ends with its work, or with its time, or with a second signal, whatever is first. A save whose
//            time is over is given up between two pieces, which must happen within `close`; callers have then had their
//            time to fetch. So the longest way takes announce + finish + checkpoint + 2 x close.
// Units:     `checkpoint` of 0: nothing is saved.
struct DrainPlan {
  absl::Duration announce, finish, checkpoint, close;
  // Told of the phases, up to kRefusing; of kReady after an abort.
  Lifecycle* lifecycle = nullptr;
  // Refuses new work; calls back when the accepted work has ended.
  std::function<void(std::function<void()> done)> finish_work;
  // Saves what has changed; calls back when that has ended.
  std::function<void(ServedPipeline::LastSave save, std::shared_ptr<CancelToken> cancel,
                     std::function<void(LastSaves)> done)>
      save;
  // Accepts new work again, after nothing was cancelled.
  std::function<void()> resume;
  // How many calls have ever come in.
  std::function<int64_t()> calls_started;
  // Closes everything; open calls have so long to end.
  std::function<void(absl::Duration patience)> close_all;
};

// Blocks until it is over.
DrainEnd RunDrain(const DrainPlan& plan, const std::shared_ptr<DrainSignal>& signal);

}  // namespace penstock
