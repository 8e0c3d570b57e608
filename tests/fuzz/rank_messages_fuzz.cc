// Feeds foreign bytes to the readers of what ranks say to each other: the parts of a message, its tensors, its commands
// and reports. Nothing may crash, leak or take more memory than a message may have.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "penstock/peer/v1/rank.pb.h"
#include "server/ranks/build_convert.h"
#include "server/ranks/rank_conversation.h"
#include "server/ranks/rank_convert.h"
#include "server/ranks/trace_convert.h"
#include "tests/fuzz/fuzz_checks.h"

namespace penstock {
namespace {

using testing::DemandReason;

constexpr int64_t kMostBytes = 1 << 20;

class Deaf final : public RankEvents {
 public:
  void Failed(Rank, int64_t, const absl::Status& why) override { testing::Demand(!why.ok(), "a failure says OK"); }
  void HasTies(Rank, int64_t, TiedGradients) override {}
  void HasNorms(Rank, int64_t, std::vector<NormsOfStage>, Measures) override {}
  void Left(Rank, int64_t, bool, Measures) override {}
  void Lost(Rank, const absl::Status&) override {}
};

void Read(const peer::v1::Report& report, NamedTensors tensors) {
  if (report.has_facts()) DemandReason(FromProto(report.facts()).status());
  if (report.has_states()) DemandReason(IncomingTensors(tensors).TakeStates(report.states()).status());
  if (report.has_ties()) DemandReason(IncomingTensors(tensors).TakeTies(report.ties()).status());
  if (report.has_links()) DemandReason(FromProto(Rank(1), report.links()).status());
  if (report.has_trace()) {
    IncomingTensors arrived(tensors);
    DemandReason(TakeTrace(report.trace(), arrived).status());
  }
  Deaf events;
  RankConversation conversation(Rank(1), 1, nullptr, &events);
  DemandReason(conversation.OnReport(report, std::move(tensors)));
  conversation.Close();
}

void Read(const peer::v1::Command& command, NamedTensors tensors) {
  IncomingTensors arrived(std::move(tensors));
  if (command.has_build()) DemandReason(FromProto(command.build()).status());
  if (command.has_start()) DemandReason(FromProto(command.start()).status());
  if (command.has_put_ties()) DemandReason(arrived.TakeTies(command.put_ties().ties()).status());
  if (command.has_read_gradients()) DemandReason(arrived.TakeTies(command.read_gradients()).status());
  if (command.has_grant()) FromProto(command.grant());
}

// The first byte: how many bytes of the message's own stand in the first part, so that tensors may follow; the second:
// how many bytes a part has.
template <typename Message>
void ReadAll(std::string_view bytes) {
  if (bytes.size() < 3) return;
  MessageReader<Message> reader(kMostBytes);
  MessagePart part{.head_bytes =
                       std::min<int64_t>(static_cast<uint8_t>(bytes[0]), static_cast<int64_t>(bytes.size()) - 2)};
  const size_t part_bytes = static_cast<uint8_t>(bytes[1]) + size_t{1};
  bytes.remove_prefix(2);
  while (!bytes.empty()) {
    part.data = bytes.substr(0, part_bytes);
    bytes.remove_prefix(part.data.size());
    part.last = bytes.empty();
    auto whole = reader.Take(part);
    DemandReason(whole.status());
    if (!whole.ok()) return;
    if (whole->has_value()) Read((*whole)->message, std::move((*whole)->tensors));
    part = {};
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  penstock::ReadAll<penstock::peer::v1::Report>(bytes);
  penstock::ReadAll<penstock::peer::v1::Command>(bytes);
  return 0;
}
