#include "client/cli/creation_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/lib/deadline.h"
#include "engine/base/clock.h"

namespace penstock {
namespace {

constexpr int kBarCells = 20;
constexpr absl::Duration kInterval = absl::Milliseconds(250);

}  // namespace

std::string CreationText(const std::string& name, const v1::CreateProgress& progress) {
  const double done = std::clamp(progress.done(), 0.0, 1.0);
  const auto cells = static_cast<int>(done * kBarCells);
  std::string bar(cells, '=');
  if (cells < kBarCells) bar += '>';
  bar.resize(kBarCells, ' ');
  return absl::StrFormat("creating %s: %-10s [%s] %3.0f %%, %.0f s", name, progress.phase(), bar, done * 100,
                         progress.elapsed_seconds());
}

CreationWatch::CreationWatch(Session& session, PipelineClient& client, std::string name)
    : session_(session), client_(client), name_(std::move(name)) {
  const bool terminal = session.err_is_terminal();
  const OutputFormat format = session.options().output;
  if (!terminal && (format == OutputFormat::kJson || format == OutputFormat::kJsonLines)) return;
  thread_ = std::make_unique<Thread>("ps-progress", [this] { Run(); });
}

CreationWatch::~CreationWatch() {
  {
    absl::MutexLock lock(&mu_);
    over_ = true;
  }
  thread_ = nullptr;
}

bool CreationWatch::Wait() {
  absl::MutexLock lock(&mu_);
  return !session_.clock()->AwaitUntil(&mu_, absl::Condition(&over_), DeadlineAfter(session_.clock(), kInterval));
}

void CreationWatch::Run() {
  const bool rewrites = session_.err_is_terminal() && !session_.options().no_color;
  std::string phase;
  while (Wait()) {
    const absl::StatusOr<v1::Pipeline> pipeline = client_.GetPipeline(name_);
    if (!pipeline.ok() || !pipeline->has_progress()) continue;
    const v1::CreateProgress& progress = pipeline->progress();
    if (!rewrites && progress.phase() == phase) continue;
    phase = progress.phase();
    session_.err() << (rewrites ? "\r" : "") << CreationText(name_, progress) << (rewrites ? "\x1b[K" : "\n")
                   << std::flush;
  }
  if (rewrites && !phase.empty()) session_.err() << "\r\x1b[K" << std::flush;
}

}  // namespace penstock
