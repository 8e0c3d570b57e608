#include "server/tracing/tracer.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/check.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

void MachineRandom(std::span<uint8_t> bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::getrandom(bytes.data() + done, bytes.size() - done, 0);
    PENSTOCK_CHECK(got > 0 || errno == EINTR);
    if (got > 0) done += static_cast<size_t>(got);
  }
}

template <typename Id>
Id RandomId(const RequestTrace::RandomBytes& random) {
  Id id{};
  while (std::all_of(id.begin(), id.end(), [](uint8_t byte) { return byte == 0; })) random(id);
  return id;
}

// Whether a trace belongs to the share, decided by the random half of its id: every daemon decides alike.
bool InShare(const TraceId& id, double ratio) {
  uint64_t number = 0;
  for (size_t i = 8; i < id.size(); ++i) number = number << 8 | id[i];
  return static_cast<double>(number >> 11) * 0x1p-53 < ratio;
}

// Codes that are the server's fault. Source: OpenTelemetry semantic conventions for gRPC.
bool IsServerFault(int code) {
  constexpr std::array<int, 6> kFaults = {2, 4, 12, 13, 14, 15};  // UNKNOWN to DATA_LOSS
  return std::find(kFaults.begin(), kFaults.end(), code) != kFaults.end();
}

}  // namespace

RequestTrace::RequestTrace(Options options)
    : options_(std::move(options)),
      begin_nanos_(options_.clock->NowNanos()),
      unix_offset_nanos_(absl::ToUnixNanos(options_.clock->WallNow()) - begin_nanos_) {}

std::vector<std::pair<std::string, std::string>> RequestTrace::Ids() const {
  return {{"trace_id", ToHex(options_.context.trace_id)}, {"span_id", ToHex(options_.context.span_id)}};
}

void RequestTrace::Set(std::string key, SpanValue value) {
  if (!options_.context.sampled) return;
  absl::MutexLock lock(&mu_);
  if (!finished_) attributes_.emplace_back(std::move(key), std::move(value));
}

void RequestTrace::Finish(int code, std::string_view message) {
  if (!options_.context.sampled) return;
  SpanAttributes ended;
  {
    absl::MutexLock lock(&mu_);
    if (finished_) return;
    finished_ = true;
    ended = attributes_;
  }
  Span span{.context = options_.context,
            .parent = options_.parent,
            .name = options_.name,
            .kind = Span::Kind::kServer,
            .begin_unix_nanos = ToUnix(begin_nanos_),
            .end_unix_nanos = ToUnix(options_.clock->NowNanos()),
            .attributes = options_.attributes,
            .failed = IsServerFault(code)};
  span.attributes.insert(span.attributes.end(), ended.begin(), ended.end());
  span.attributes.emplace_back("rpc.grpc.status_code", int64_t{code});
  if (span.failed) span.message = std::string(message);
  options_.send(std::move(span));
}

Span RequestTrace::Child(std::string name, int64_t begin_nanos, int64_t end_nanos,
                         const SpanAttributes& attributes) const {
  Span span{.context = options_.context,
            .parent = options_.context.span_id,
            .name = std::move(name),
            .begin_unix_nanos = ToUnix(begin_nanos),
            .end_unix_nanos = ToUnix(end_nanos),
            .attributes = attributes};
  span.context.span_id = RandomId<SpanId>(options_.random);
  return span;
}

void RequestTrace::OnEnded(const CallEnd& end) {
  if (!options_.context.sampled) return;
  {
    absl::MutexLock lock(&mu_);
    if (ended_) return;
    ended_ = true;
  }
  SpanAttributes attributes = {{"penstock.pipeline", std::string(end.pipeline)},
                               {"penstock.method", std::string(end.method)}};
  if (!end.mode.empty()) attributes.emplace_back("penstock.mode", std::string(end.mode));
  if (end.step > 0) attributes.emplace_back("penstock.step", end.step);
  const bool ran = end.started_nanos > 0;
  Span queue = Child("queue", end.accepted_nanos, ran ? end.started_nanos : end.ended_nanos, attributes);
  std::optional<Span> run;
  if (ran) run = Child("run", end.started_nanos, end.ended_nanos, attributes);
  if (!end.status.ok()) {
    Span& last = ran ? *run : queue;
    last.failed = true;
    last.message = std::string(end.status.message());
    last.attributes.emplace_back("penstock.reason", ReasonOf(end.status));
  }
  options_.send(std::move(queue));
  if (run.has_value()) options_.send(*std::move(run));
}

Tracer::Tracer(Options options, Clock* clock)
    : options_([&options] {
        if (!options.random) options.random = &MachineRandom;
        return std::move(options);
      }()),
      clock_(clock) {}

std::shared_ptr<RequestTrace> Tracer::Begin(std::string_view path, const std::optional<TraceContext>& caller) const {
  if (!caller.has_value() && !options_.exports) return nullptr;
  RequestTrace::Options options{.send = options_.send, .random = options_.random, .clock = clock_};
  if (caller.has_value()) {
    options.context = *caller;
    options.parent = caller->span_id;
  } else {
    options.context.trace_id = RandomId<TraceId>(options_.random);
    options.context.sampled = InShare(options.context.trace_id, options_.sample_ratio);
  }
  options.context.span_id = RandomId<SpanId>(options_.random);
  if (!options_.exports) options.context.sampled = false;
  if (!path.empty() && path.front() == '/') path.remove_prefix(1);
  const size_t slash = std::min(path.find('/'), path.size());
  const std::string service(path.substr(0, slash));
  const std::string method(slash < path.size() ? path.substr(slash + 1) : "");
  options.name = absl::StrCat("Recv.", service, ".", method);
  if (options.context.sampled) {
    options.attributes = {{"rpc.system", std::string("grpc")}, {"rpc.service", service}, {"rpc.method", method}};
  }
  return std::make_shared<RequestTrace>(std::move(options));
}

}  // namespace penstock
