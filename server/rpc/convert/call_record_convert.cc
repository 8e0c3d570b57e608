#include "server/rpc/convert/call_record_convert.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/checkpoint_store.h"
#include "engine/journal/journal_errors.h"
#include "engine/tensor/codec.h"
#include "penstock/journal/v1/journal.pb.h"
#include "penstock/v1/pipeline.pb.h"
#include "penstock/v1/state.pb.h"
#include "penstock/v1/work.pb.h"
#include "server/rpc/convert/proto_convert.h"
#include "server/rpc/convert/state_convert.h"
#include "server/rpc/convert/value_convert.h"
#include "server/rpc/convert/work_convert.h"

namespace penstock {
namespace {

namespace rows = penstock::journal::v1;

constexpr int kFirstError = static_cast<int>(absl::StatusCode::kCancelled);
constexpr int kLastError = static_cast<int>(absl::StatusCode::kUnauthenticated);

template <typename Message>
absl::StatusOr<Message> Parse(std::string_view bytes) {
  Message message;
  if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return message;
  return JournalCorrupt(absl::StrCat("a row is no ", message.GetDescriptor()->name()));
}

template <typename Message>
absl::StatusOr<Request> Work(const std::string& bytes) {
  PENSTOCK_ASSIGN_OR_RETURN(const Message message, Parse<Message>(bytes));
  PENSTOCK_ASSIGN_OR_RETURN(auto call, CallOf(message));
  return Request(std::move(call));
}

// What each value of a call is: its inputs, then target and weights where it has some.
rows::CallInput::Role RoleOf(const Call& call, size_t index, size_t count) {
  if (call.As<WriteCall>() != nullptr) return rows::CallInput::ROLE_WRITTEN;
  const ContributionCall* contribution = ContributionOf(call.request);
  const size_t weights = contribution != nullptr && contribution->weights.has_value() ? 1 : 0;
  const size_t target = contribution != nullptr && contribution->target.has_value() ? 1 : 0;
  if (index + weights >= count) return rows::CallInput::ROLE_WEIGHTS;
  if (index + weights + target >= count) return rows::CallInput::ROLE_TARGET;
  return rows::CallInput::ROLE_INPUT;
}

absl::StatusOr<JournalInput> WriteInput(rows::CallInput::Role role, const NamedValue& named) {
  rows::CallInput message;
  message.set_role(role);
  v1::Input* input = message.mutable_input();
  input->set_name(named.name);
  input->set_whole(named.value.is_whole());
  JournalInput written;
  if (const at::Tensor* tensor = named.value.any_tensor()) {
    PENSTOCK_ASSIGN_OR_RETURN(const at::Tensor whole, SendableTensor(*tensor));
    PENSTOCK_ASSIGN_OR_RETURN(const TensorHeader header, HeaderOf("", whole));
    *input->mutable_tensor()->mutable_header() = ToProto(header);
    written.bytes = BytesOf(whole);
    written.owner = std::make_shared<const at::Tensor>(whole);
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(*input->mutable_value(), ToRecord(named.value));
  }
  written.header = message.SerializeAsString();
  return written;
}

absl::StatusOr<InputSource> ReadInput(const v1::Input& input, std::string_view bytes) {
  InputSource source{.name = input.name(), .source = {}, .whole = input.whole()};
  if (input.has_tensor()) {
    WireLimits limits;
    limits.allow_empty_name = true;
    limits.max_tensor_bytes = std::numeric_limits<int64_t>::max();
    PENSTOCK_ASSIGN_OR_RETURN(source.source,
                              DecodeTensor(FromProto(input.tensor().header()), {bytes}, "input", limits));
  } else {
    PENSTOCK_ASSIGN_OR_RETURN(source.source, FromRecord(input.value()));
  }
  return source;
}

// Gives a request its values.
void Give(InputSource source, rows::CallInput::Role role, RepeatedCall& call) {
  if (role == rows::CallInput::ROLE_WRITTEN) {
    if (auto* tensor = std::get_if<at::Tensor>(&source.source))
      call.written.push_back({source.name, std::move(*tensor)});
    return;
  }
  if (auto* forward = std::get_if<ForwardCall>(&call.request)) return forward->inputs.push_back(std::move(source));
  if (auto* backward = std::get_if<BackwardCall>(&call.request))
    return backward->gradients.push_back(std::move(source));
  auto* contribution = std::get_if<ContributionCall>(&call.request);
  if (auto* step = std::get_if<TrainStepCall>(&call.request)) contribution = &step->contribution;
  if (contribution == nullptr) return;
  if (role == rows::CallInput::ROLE_TARGET) {
    contribution->target = std::move(source);
  } else if (role == rows::CallInput::ROLE_WEIGHTS) {
    contribution->weights = std::move(source);
  } else {
    contribution->inputs.push_back(std::move(source));
  }
}

template <typename Number>
std::optional<double> Optional(bool has, Number number) {
  return has ? std::optional<double>(number) : std::nullopt;
}

CallOutcome FromProto(const v1::Outcome& message) {
  CallOutcome outcome{.sequence = message.sequence(), .state_token = message.state_token()};
  RunOutcome& run = outcome.run;
  run.step = message.step();
  run.loss = Optional(message.has_loss(), message.loss());
  run.gradient_norm = Optional(message.has_gradient_norm(), message.gradient_norm());
  if (message.has_applied()) run.applied = message.applied();
  run.learning_rate = Optional(message.has_learning_rate(), message.learning_rate());
  run.rows = message.rows();
  run.micro_batches = static_cast<int>(message.micro_batches());
  run.seconds = message.seconds();
  run.measured_bubble = message.measured_bubble();
  run.counted = Optional(message.has_counted_elements(), message.counted_elements());
  run.metrics.insert(message.metrics().begin(), message.metrics().end());
  run.metric_elements = message.metric_elements();
  return outcome;
}

}  // namespace

std::string WireCallRecords::WriteCall(const Call& call) const {
  rows::Call message;
  message.set_session(call.context.session);
  message.set_request(call.context.record);
  message.set_expiry(call.As<ExpireCall>() != nullptr);
  message.set_expected_state(call.context.expected_state);
  if (call.As<ForwardCall>() != nullptr) message.set_lease_nanos(absl::ToInt64Nanoseconds(call.context.lease));
  return message.SerializeAsString();
}

absl::StatusOr<std::vector<JournalInput>> WireCallRecords::WriteInputs(const Call& call,
                                                                       const NamedValues& values) const {
  std::vector<JournalInput> inputs;
  for (size_t i = 0; i < values.size(); ++i) {
    PENSTOCK_ASSIGN_OR_RETURN(JournalInput input, WriteInput(RoleOf(call, i, values.size()), values[i]));
    inputs.push_back(std::move(input));
  }
  return inputs;
}

absl::StatusOr<Request> WireCallRecords::ReadRequest(const std::string& method, const std::string& bytes) const {
  if (method == "Forward") return Work<v1::ForwardRequest>(bytes);
  if (method == "ForwardBackward") return Work<v1::ForwardBackwardRequest>(bytes);
  if (method == "OptimizerStep") return Work<v1::OptimizerStepRequest>(bytes);
  if (method == "TrainStep") return Work<v1::TrainStepRequest>(bytes);
  if (method == "Backward") {
    PENSTOCK_ASSIGN_OR_RETURN(const auto message, Parse<v1::BackwardRequest>(bytes));
    PENSTOCK_ASSIGN_OR_RETURN(BackwardCall call, SettingsOf(message));
    return Request(std::move(call));
  }
  if (method == "SaveCheckpoint") {
    PENSTOCK_ASSIGN_OR_RETURN(const auto message, Parse<v1::SaveCheckpointRequest>(bytes));
    return Request(CallOf(message));
  }
  if (method == "RestoreCheckpoint") {
    PENSTOCK_ASSIGN_OR_RETURN(const auto message, Parse<v1::RestoreCheckpointRequest>(bytes));
    PENSTOCK_ASSIGN_OR_RETURN(RestoreCall call, CallOf(message));
    return Request(std::move(call));
  }
  if (method == "DeleteCheckpoint") {
    PENSTOCK_ASSIGN_OR_RETURN(const auto message, Parse<v1::DeleteCheckpointRequest>(bytes));
    PENSTOCK_ASSIGN_OR_RETURN(DeleteCall call, CallOf(message));
    return Request(std::move(call));
  }
  if (method == "CopyCheckpoint") {
    PENSTOCK_ASSIGN_OR_RETURN(const auto message, Parse<v1::CopyCheckpointRequest>(bytes));
    PENSTOCK_ASSIGN_OR_RETURN(CopyCall call, CallOf(message, *checkpoints_));
    return Request(std::move(call));
  }
  if (method == "WriteParameters") {
    PENSTOCK_ASSIGN_OR_RETURN(const auto message, Parse<v1::WriteParametersRequest>(bytes));
    return Request(SettingsOf(message));
  }
  if (method == "UpdateOptimizer") {
    PENSTOCK_ASSIGN_OR_RETURN(const auto message, Parse<v1::UpdateOptimizerRequest>(bytes));
    PENSTOCK_ASSIGN_OR_RETURN(OptimizerSpec optimizer, penstock::FromProto(message.optimizer()));
    return Request(UpdateOptimizerCall{std::move(optimizer)});
  }
  return JournalCorrupt(absl::StrCat("a row has an unknown method, ", method));
}

absl::StatusOr<RepeatedCall> WireCallRecords::ReadCall(const std::string& method, std::string_view parameters,
                                                       const std::vector<RecordedInput>& inputs) const {
  PENSTOCK_ASSIGN_OR_RETURN(const rows::Call message, Parse<rows::Call>(parameters));
  RepeatedCall call;
  call.context.session = message.session();
  if (message.expiry()) {
    call.request = ExpireCall();
    return call;
  }
  call.context.record = message.request();
  call.context.lease = absl::Nanoseconds(message.lease_nanos());
  call.context.expected_state = message.expected_state();
  PENSTOCK_ASSIGN_OR_RETURN(call.request, ReadRequest(method, message.request()));
  for (const RecordedInput& input : inputs) {
    PENSTOCK_ASSIGN_OR_RETURN(const rows::CallInput header, Parse<rows::CallInput>(input.header));
    PENSTOCK_ASSIGN_OR_RETURN(InputSource source, ReadInput(header.input(), input.bytes));
    Give(std::move(source), header.role(), call);
  }
  return call;
}

std::string WireCallRecords::WriteAnswer(const CallAnswer& answer) const {
  rows::Answer message;
  message.set_has_outputs(answer.has_outputs);
  message.set_has_graph(answer.has_graph);
  if (answer.outcome.has_value()) *message.mutable_outcome() = ToProto(*answer.outcome);
  if (answer.state.has_value()) {
    rows::Answer::State* state = message.mutable_state();
    state->set_checkpoint(answer.state->checkpoint.id);
    state->set_step(answer.state->step);
    state->set_state_token(answer.state->state_token);
    state->set_sequence(answer.state->sequence);
  }
  if (!answer.error.ok()) {
    rows::Answer::Error* error = message.mutable_error();
    error->set_code(static_cast<int>(answer.error.code()));
    error->set_reason(ReasonOf(answer.error));
    error->set_message(std::string(answer.error.message()));
    for (const auto& [name, value] : ValuesOf(answer.error)) (*error->mutable_values())[name] = value;
  }
  return message.SerializeAsString();
}

absl::StatusOr<CallAnswer> WireCallRecords::ReadAnswer(std::string_view bytes) const {
  PENSTOCK_ASSIGN_OR_RETURN(const rows::Answer message, Parse<rows::Answer>(bytes));
  CallAnswer answer{.has_outputs = message.has_outputs(), .has_graph = message.has_graph()};
  if (message.has_outcome()) answer.outcome = FromProto(message.outcome());
  if (message.has_state()) {
    StateAnswer state;
    state.checkpoint.id = message.state().checkpoint();
    state.checkpoint.step = message.state().step();
    state.step = message.state().step();
    state.state_token = message.state().state_token();
    state.sequence = message.state().sequence();
    answer.state = std::move(state);
  }
  if (message.has_error()) {
    const int code = message.error().code();
    if (code < kFirstError || code > kLastError) {
      return JournalCorrupt(absl::StrCat("the error of an answer has an unknown code, got ", code));
    }
    Error error(static_cast<absl::StatusCode>(code), message.error().reason(), message.error().message());
    for (const auto& [name, value] : message.error().values()) error.With(name, value);
    answer.error = std::move(error);
  }
  return answer;
}

}  // namespace penstock
