#include "engine/transport/group_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/rank_message.h"
#include "engine/base/status_macros.h"
#include "engine/device/copy_tensors.h"

namespace penstock {
namespace {

// Complete on the host when it returns.
absl::StatusOr<Batch> OnHost(Batch values, DeviceStreams& from) {
  PENSTOCK_ASSIGN_OR_RETURN(ValuesInFlight copies, Carry(std::move(values), from, CpuStreams()));
  PENSTOCK_RETURN_IF_ERROR(
      AwaitTensors({.tensors = copies.values.AllTensors(), .ready = copies.ready}, CpuStreams()).status());
  return std::move(copies.values);
}

constexpr size_t kEarlyRuns = 1000;

}  // namespace

StreamName StreamOf(const MessageKey& key) {
  const auto kind = static_cast<int64_t>(key.kind);
  return {.run = key.run, .number = (kind << 48) | (int64_t{key.stage} << 24) | int64_t{key.peer + 1}};
}

GroupTransport::GroupTransport(PeerEdges* edges, Options options)
    : options_(std::move(options)),
      mailboxes_(static_cast<int>(options_.rank_of_stage.size()), Mailboxes::Early::kPossible) {
  channel_ = edges->OpenChannel(
      options_.channel, options_.credits,
      {.on_message =
           [this](Rank from, const StreamName& stream, std::string_view content, int64_t payload_bytes,
                  Receipt receipt) { return OnMessage(from, stream, content, payload_bytes, std::move(receipt)); },
       .on_failed =
           [this](Rank peer, const absl::Status& why) {
             if (options_.on_failed) options_.on_failed(peer, why);
           }});
}

// Receipts in the mailboxes are void once the channel is closed, so nothing is sent for them.
GroupTransport::~GroupTransport() { channel_->Close(); }

void GroupTransport::Open(int64_t run) {
  mailboxes_.Open(run);
  absl::MutexLock lock(&mu_);
  sent_.try_emplace(run);
  early_.erase(run);
}

void GroupTransport::Close(int64_t run) {
  channel_->DropRun(run);
  mailboxes_.Close(run);
  absl::MutexLock lock(&mu_);
  sent_.erase(run);
  early_.erase(run);
}

Rank GroupTransport::ReceiverOf(const MessageKey& key) const {
  return IsToLeader(key.kind) ? options_.leader : options_.rank_of_stage.at(key.stage);
}

DeviceStreams& GroupTransport::StreamsOfSender(const MessageKey& key) const {
  if (IsFromLeader(key.kind)) return CpuStreams();
  return *options_.streams.at(IsToLeader(key.kind) ? key.stage : SenderOf(key));
}

// What the leader gives stays on the host, as inputs do in its own process.
DeviceStreams& GroupTransport::StreamsOfReceiver(const MessageKey& key) const {
  const bool between_stages = !IsFromLeader(key.kind) && !IsToLeader(key.kind);
  return between_stages ? *options_.streams.at(key.stage) : CpuStreams();
}

absl::Status GroupTransport::Send(const MessageKey& key, Batch values) {
  const Rank to = ReceiverOf(key);
  return to == options_.self ? SendLocally(key, std::move(values)) : SendToRank(to, key, std::move(values));
}

absl::Status GroupTransport::SendLocally(const MessageKey& key, Batch values) {
  PENSTOCK_ASSIGN_OR_RETURN(ValuesInFlight message,
                            Carry(std::move(values), StreamsOfSender(key), StreamsOfReceiver(key)));
  PENSTOCK_ASSIGN_OR_RETURN(const bool kept, mailboxes_.Put(key, std::move(message)));
  if (kept && options_.on_arrival) options_.on_arrival(key);
  return absl::OkStatus();
}

absl::Status GroupTransport::SendToRank(Rank to, const MessageKey& key, Batch values) {
  {
    absl::MutexLock lock(&mu_);
    const auto run = sent_.find(key.run);
    if (run == sent_.end()) return absl::OkStatus();
    if (!run->second.insert(key).second) {
      return Error(absl::StatusCode::kInternal, "BUG", ToString(key) + " was sent twice");
    }
  }
  PENSTOCK_ASSIGN_OR_RETURN(const Batch on_host, OnHost(std::move(values), StreamsOfSender(key)));
  PENSTOCK_ASSIGN_OR_RETURN(EncodedMessage message, EncodeTensorMessage(key, on_host));
  return channel_->Send(to, StreamOf(key), message.header, std::move(message.payload), options_.send_timeout_nanos,
                        ToString(key));
}

absl::StatusOr<const std::vector<TensorForm>*> GroupTransport::Admit(Rank from, const StreamName& stream,
                                                                     const MessageKey& key) {
  const auto stages = static_cast<int>(options_.rank_of_stage.size());
  const Rank of_stage = IsToLeader(key.kind) ? from : options_.self;
  if (key.stage >= stages || options_.rank_of_stage[key.stage] != of_stage) {
    return BadRankMessage("key.stage", absl::StrCat("must be a stage of rank ", of_stage.value()),
                          absl::StrCat(key.stage));
  }
  if (IsFromLeader(key.kind) || IsToLeader(key.kind)) {
    const Rank other = IsToLeader(key.kind) ? options_.self : from;
    if (other != options_.leader) {
      return BadRankMessage("key.kind",
                            absl::StrCat("must be one between stages, for rank ", other.value(), " is not the leader"),
                            ToString(key));
    }
  } else {
    const int sender = SenderOf(key);
    if (sender < 0 || sender >= stages || options_.rank_of_stage[sender] != from) {
      return BadRankMessage("key.peer", absl::StrCat("must name a stage of rank ", from.value()), absl::StrCat(sender));
    }
  }
  if (stream != StreamOf(key)) {
    return BadRankMessage("stream", "must be that of the message", absl::StrCat(stream.run, "/", stream.number));
  }
  {
    absl::MutexLock lock(&mu_);
    if (mailboxes_.IsClosed(key.stage, key.run)) return absl::CancelledError("the run has ended");
    if (!sent_.contains(key.run) && early_.insert(key.run).second && early_.size() > kEarlyRuns) {
      early_.erase(key.run);
      return BadRankMessage("key.run", absl::StrCat("must be one of at most ", kEarlyRuns, " that are not open here"),
                            absl::StrCat(key.run));
    }
  }
  return options_.expected ? options_.expected(key) : nullptr;
}

absl::StatusOr<Landing> GroupTransport::OnMessage(Rank from, const StreamName& stream, std::string_view content,
                                                  int64_t payload_bytes, Receipt receipt) {
  PENSTOCK_ASSIGN_OR_RETURN(
      DecodedMessage message,
      DecodeTensorMessage(content, payload_bytes, [&](const MessageKey& key) { return Admit(from, stream, key); }));
  return Landing{.places = std::move(message.places),
                 .on_ended = [this, from, key = message.key, values = std::move(message.values),
                              receipt = std::move(receipt)](const absl::Status& landed) mutable {
                   if (!landed.ok()) return;  // the peer is lost, which is told for itself
                   absl::Status status = CheckArrived(values);
                   if (status.ok()) status = Deliver(key, std::move(values), std::move(receipt));
                   if (!status.ok()) channel_->Refuse(from, status);
                 }};
}

absl::Status GroupTransport::Deliver(const MessageKey& key, Batch values, Receipt receipt) {
  PENSTOCK_ASSIGN_OR_RETURN(ValuesInFlight message, Carry(std::move(values), CpuStreams(), StreamsOfReceiver(key)));
  PENSTOCK_ASSIGN_OR_RETURN(const bool kept,
                            mailboxes_.Put(key, std::move(message), /*may_be_early=*/true, std::move(receipt)));
  if (kept && options_.on_arrival) options_.on_arrival(key);
  return absl::OkStatus();
}

}  // namespace penstock
