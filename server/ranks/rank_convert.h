#pragma once

// What ranks say to each other of pipelines, as messages and back. A reader believes nothing: sizes and numbers are
// checked against the plan, or against what is there.

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/ids.h"
#include "engine/device/link.h"
#include "engine/exec/rank_commands.h"
#include "penstock/peer/v1/rank.pb.h"
#include "server/ranks/message_parts.h"

namespace penstock {

// A message on its way: its tensors are listed in it, in order.
template <typename Message>
class Outgoing {
 public:
  Message& message() { return message_; }

  // Fails:     as ListTensor and SendableTensor.
  absl::Status Add(const std::string& name, const at::Tensor& tensor);
  absl::Status AddAll(const NamedTensors& tensors);
  std::vector<MessagePart> ToParts() const { return penstock::ToParts(message_, tensors_); }

 private:
  Message message_;
  Tensors tensors_;
};

// The tensors of a message that has arrived, taken in order.
//
// Fails:     RANK_MESSAGE where the message speaks of more than there are.
class IncomingTensors {
 public:
  explicit IncomingTensors(NamedTensors tensors) : tensors_(std::move(tensors)) {}

  absl::StatusOr<NamedTensors> Take(int64_t count);
  absl::StatusOr<TiedGradients> TakeTies(const peer::v1::TiedGradients& layout);
  absl::StatusOr<StatesOfStages> TakeStates(const peer::v1::StageStates& layout);
  NamedTensors TakeAll() { return std::move(tensors_); }

 private:
  NamedTensors tensors_;
  size_t next_ = 0;
};

using OutgoingCommand = Outgoing<peer::v1::Command>;
using OutgoingReport = Outgoing<peer::v1::Report>;

// Ties and states: their layout, and their tensors into the message. Fails: as Outgoing::Add.
template <typename Message>
absl::Status AddTies(const TiedGradients& ties, peer::v1::TiedGradients* layout, Outgoing<Message>* to);
absl::Status AddStates(const StatesOfStages& states, peer::v1::StageStates* layout, OutgoingReport* to);

// The links of a rank to its peers. Fails: RANK_MESSAGE.
peer::v1::MeasuredLinks ToProto(Rank self, const std::vector<Link>& links);
absl::StatusOr<std::vector<Link>> FromProto(Rank self, const peer::v1::MeasuredLinks& message);

peer::v1::StartRun ToProto(const RunOrder& order);
absl::StatusOr<RunOrder> FromProto(const peer::v1::StartRun& message);

peer::v1::Decision ToProto(int64_t run, const StepDecision& decision);
StepDecision FromProto(const peer::v1::Decision& message);

peer::v1::Measures ToProto(const Measures& measures);
absl::StatusOr<Measures> FromProto(const peer::v1::Measures& message);

// Shapes have no elements.
absl::Status SetFacts(const FactsOfRank& facts, peer::v1::Facts* message);
absl::StatusOr<FactsOfRank> FromProto(const peer::v1::Facts& message);

}  // namespace penstock
