// Perfetto's trace format: TracePackets in protobuf's wire form, names interned. Field numbers are those of
// protos/perfetto/trace in Perfetto's source, v49; tests/unit/observe/perfetto_trace.proto repeats them and reads this
// back.

#include <bit>
#include <string_view>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "engine/observe/trace_writer.h"

namespace penstock {
namespace {

// A message of protobuf in the making: fields are appended as they are written.
class Message {
 public:
  void Number(int field, uint64_t value) {
    Tag(field, 0);
    Varint(value);
  }
  void Fixed(int field, uint64_t value) {
    Tag(field, 1);
    for (int i = 0; i < 8; ++i) bytes_.push_back(static_cast<char>(value >> 8 * i));
  }
  void Double(int field, double value) { Fixed(field, std::bit_cast<uint64_t>(value)); }
  void Bytes(int field, std::string_view bytes) {
    Tag(field, 2);
    Varint(bytes.size());
    bytes_.append(bytes);
  }
  void Put(int field, const Message& message) { Bytes(field, message.bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  void Tag(int field, int wire_type) { Varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire_type)); }
  void Varint(uint64_t value) {
    while (value >= 0x80) {
      bytes_.push_back(static_cast<char>(value | 0x80));
      value >>= 7;
    }
    bytes_.push_back(static_cast<char>(value));
  }

  std::string bytes_;
};

namespace trace {
constexpr int kPacket = 1;
}
namespace packet {
constexpr int kClockSnapshot = 6;
constexpr int kTimestamp = 8;
constexpr int kSequenceId = 10;
constexpr int kTrackEvent = 11;
constexpr int kInternedData = 12;
constexpr int kSequenceFlags = 13;
constexpr int kPreviousPacketDropped = 42;
constexpr int kDefaults = 59;
constexpr int kTrackDescriptor = 60;
}  // namespace packet
namespace defaults {
constexpr int kTimestampClockId = 58;
}
namespace clock_snapshot {
constexpr int kClocks = 1;
constexpr int kPrimaryTraceClock = 2;
}  // namespace clock_snapshot
namespace clock_reading {
constexpr int kId = 1;
constexpr int kTimestamp = 2;
}  // namespace clock_reading
namespace descriptor {
constexpr int kUuid = 1;
constexpr int kName = 2;
constexpr int kParent = 5;
constexpr int kCounter = 8;
constexpr int kChildOrdering = 11;
constexpr int kSiblingOrderRank = 12;
}  // namespace descriptor
namespace counter {
constexpr int kUnit = 3;
}
namespace event {
constexpr int kCategoryIds = 3;
constexpr int kAnnotations = 4;
constexpr int kType = 9;
constexpr int kNameId = 10;
constexpr int kTrack = 11;
constexpr int kDoubleCounterValue = 44;
constexpr int kFlows = 47;
constexpr int kEndingFlows = 48;
}  // namespace event
namespace annotation {
constexpr int kNameId = 1;
constexpr int kBool = 2;
constexpr int kInt = 4;
constexpr int kText = 6;
}  // namespace annotation
namespace interned {
constexpr int kCategories = 1;
constexpr int kNames = 2;
constexpr int kAnnotationNames = 3;
constexpr int kId = 1;    // of an entry
constexpr int kText = 2;  // of an entry
}  // namespace interned

constexpr uint64_t kMonotonic = 3;  // BUILTIN_CLOCK_MONOTONIC
constexpr uint64_t kRealtime = 1;
constexpr uint64_t kExplicitOrder = 3;
constexpr uint64_t kCountUnit = 2;
constexpr uint64_t kStateCleared = 1;
constexpr uint64_t kNeedsState = 2;
constexpr uint64_t kSequence = 1;
enum EventType : uint64_t { kSliceBegin = 1, kSliceEnd = 2, kInstant = 3, kCounterValue = 4 };

// Texts that stand once in the file, by number; new ones are told in the packet that uses them first.
class Interned {
 public:
  explicit Interned(int field) : field_(field) {}
  uint64_t Id(const std::string& text, Message* told) {
    const auto [place, is_new] = ids_.try_emplace(text, ids_.size() + 1);
    if (is_new) {
      Message entry;
      entry.Number(interned::kId, place->second);
      entry.Bytes(interned::kText, text);
      told->Put(field_, entry);
    }
    return place->second;
  }

 private:
  const int field_;
  std::unordered_map<std::string, uint64_t> ids_;
};

class PerfettoTraceWriter final : public TraceWriter {
 public:
  void Begin(const TraceCapture& capture, std::string* out) override {
    capture_ = &capture;
    Message clocks;
    const auto reading = [&](uint64_t clock, int64_t nanos) {
      Message one;
      one.Number(clock_reading::kId, clock);
      one.Number(clock_reading::kTimestamp, static_cast<uint64_t>(nanos));
      clocks.Put(clock_snapshot::kClocks, one);
    };
    reading(kMonotonic, capture.begin_nanos);
    reading(kRealtime, capture.begin_nanos + capture.wall_offset_nanos);
    clocks.Number(clock_snapshot::kPrimaryTraceClock, kMonotonic);
    Message first;
    first.Number(packet::kSequenceId, kSequence);
    first.Number(packet::kSequenceFlags, kStateCleared);
    if (capture.incomplete) first.Number(packet::kPreviousPacketDropped, 1);
    Message all;
    all.Number(defaults::kTimestampClockId, kMonotonic);
    first.Put(packet::kDefaults, all);
    first.Put(packet::kClockSnapshot, clocks);
    Append(first, out);
  }

  void Track(const TraceTrack& track, std::string* out) override {
    Message one;
    one.Number(descriptor::kUuid, track.id);
    one.Bytes(descriptor::kName, track.name);
    if (track.parent != 0) one.Number(descriptor::kParent, track.parent);
    if (track.counter) {
      Message count;
      count.Number(counter::kUnit, kCountUnit);
      one.Put(descriptor::kCounter, count);
    }
    one.Number(descriptor::kChildOrdering, kExplicitOrder);
    one.Number(descriptor::kSiblingOrderRank, static_cast<uint64_t>(track.order));
    Message packet;
    packet.Number(packet::kSequenceId, kSequence);
    packet.Put(packet::kTrackDescriptor, one);
    Append(packet, out);
    if (track.parent == 0) Facts(track, out);
    if (track.lane != nullptr) {
      Counters(track, "counters_begin", capture_->begin_nanos, track.lane->before, out);
      Counters(track, "counters_end", capture_->end_nanos, track.lane->after, out);
    }
    if (track.rank != nullptr) Facts(track, *track.rank, out);
  }

  void Slice(const TraceTrack& track, const TraceSlice& slice, std::string* out) override {
    Message told;
    Message begin = Event(kSliceBegin, track);
    begin.Number(event::kNameId, names_.Id(slice.name, &told));
    begin.Number(event::kCategoryIds, categories_.Id(slice.category, &told));
    for (const auto& [name, value] : slice.arguments) Annotate(name, value, &begin, &told);
    for (const auto& [name, text] : slice.texts) Annotate(name, text, &begin, &told);
    for (const FlowPoint& point : slice.flows) {
      begin.Fixed(point.kind == FlowPoint::Kind::kEnd ? event::kEndingFlows : event::kFlows, point.flow);
    }
    AppendEvent(begin, slice.begin_nanos, told, out);
    AppendEvent(Event(kSliceEnd, track), slice.end_nanos, Message(), out);
  }

  void Count(const TraceTrack& track, int64_t at_nanos, double value, std::string* out) override {
    Message one = Event(kCounterValue, track);
    one.Double(event::kDoubleCounterValue, value);
    AppendEvent(one, at_nanos, Message(), out);
  }

  void End(std::string*) override {}

 private:
  static Message Event(EventType type, const TraceTrack& track) {
    Message one;
    one.Number(event::kType, type);
    one.Number(event::kTrack, track.id);
    return one;
  }

  void Annotate(const std::string& name, int64_t value, Message* event, Message* told) {
    Message one;
    one.Number(annotation::kNameId, annotations_.Id(name, told));
    one.Number(annotation::kInt, static_cast<uint64_t>(value));
    event->Put(event::kAnnotations, one);
  }

  void Annotate(const std::string& name, const std::string& text, Message* event, Message* told) {
    Message one;
    one.Number(annotation::kNameId, annotations_.Id(name, told));
    one.Bytes(annotation::kText, text);
    event->Put(event::kAnnotations, one);
  }

  // What a viewer shows beside the file's name in others: an instant at the begin.
  void Facts(const TraceTrack& track, std::string* out) {
    Message told;
    Message one = Event(kInstant, track);
    one.Number(event::kNameId, names_.Id("trace", &told));
    Annotate("incomplete", capture_->incomplete ? 1 : 0, &one, &told);
    Annotate("lost_records", static_cast<int64_t>(capture_->lost), &one, &told);
    Annotate("rank", capture_->rank, &one, &told);
    Annotate("clock_offset_nanos", capture_->wall_offset_nanos, &one, &told);
    Annotate("clock_uncertainty_nanos", capture_->wall_uncertainty_nanos, &one, &told);
    AppendEvent(one, capture_->begin_nanos, told, out);
  }

  void Facts(const TraceTrack& track, const RankClock& rank, std::string* out) {
    Message told;
    Message one = Event(kInstant, track);
    one.Number(event::kNameId, names_.Id("rank", &told));
    Annotate("rank", rank.rank, &one, &told);
    Annotate("clock_ahead_nanos", rank.ahead_nanos, &one, &told);
    Annotate("clock_uncertainty_nanos", rank.uncertainty_nanos, &one, &told);
    Annotate("missing", rank.missing ? 1 : 0, &one, &told);
    AppendEvent(one, capture_->begin_nanos, told, out);
  }

  void Counters(const TraceTrack& track, const char* name, int64_t at_nanos, const StateTimes& times,
                std::string* out) {
    Message told;
    Message one = Event(kInstant, track);
    one.Number(event::kNameId, names_.Id(name, &told));
    for (const StageStateInfo& info : StageStates()) Annotate(std::string(info.name), times[info.state], &one, &told);
    AppendEvent(one, at_nanos, told, out);
  }

  static void AppendEvent(const Message& event, int64_t at_nanos, const Message& told, std::string* out) {
    Message one;
    one.Number(packet::kTimestamp, static_cast<uint64_t>(at_nanos));
    one.Number(packet::kSequenceId, kSequence);
    one.Number(packet::kSequenceFlags, kNeedsState);
    if (!told.bytes().empty()) one.Put(packet::kInternedData, told);
    one.Put(packet::kTrackEvent, event);
    Append(one, out);
  }

  static void Append(const Message& packet, std::string* out) {
    Message trace;
    trace.Put(trace::kPacket, packet);
    out->append(trace.bytes());
  }

  const TraceCapture* capture_ = nullptr;  // of the export, which outlives this
  Interned names_{interned::kNames};
  Interned categories_{interned::kCategories};
  Interned annotations_{interned::kAnnotationNames};
};

}  // namespace

std::unique_ptr<TraceWriter> MakePerfettoTraceWriter() { return std::make_unique<PerfettoTraceWriter>(); }

}  // namespace penstock
