// Feeds foreign bytes to the readers of a journal's rows: calls with their inputs, answers, and specifications. The
// first byte says which; of a call, two bytes with the length of its parameters follow, then these and the column of its
// inputs.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/checkpoint/checkpoint_store.h"
#include "engine/journal/call_row.h"
#include "engine/journal/journal_inspection.h"
#include "engine/journal_view/journal_messages.h"
#include "penstock/journal/v1/journal.pb.h"
#include "server/rpc/convert/call_record_convert.h"
#include "server/rpc/convert/recipe_convert.h"
#include "tests/fuzz/fuzz_checks.h"
#include "tests/support/fake_clock.h"
#include "tests/support/unsynced_disk.h"

namespace {

using penstock::testing::Demand;
using penstock::testing::DemandReason;

constexpr std::array kMethods = {"Forward",        "Backward",        "ForwardBackward",   "OptimizerStep",
                                 "TrainStep",      "SaveCheckpoint",  "RestoreCheckpoint", "DeleteCheckpoint",
                                 "CopyCheckpoint", "WriteParameters", "UpdateOptimizer"};

void ReadCall(const penstock::WireCallRecords& records, const char* method, std::string_view bytes) {
  if (bytes.size() < 2) return;
  const size_t length = size_t{static_cast<unsigned char>(bytes[0])} << 8 | static_cast<unsigned char>(bytes[1]);
  const std::string_view parameters = bytes.substr(2, length);
  const auto inputs = penstock::ParseInputs(bytes.substr(2 + parameters.size()));
  DemandReason(inputs.status());
  if (!inputs.ok()) return;
  std::vector<penstock::RecordedInput> recorded;
  for (const penstock::StoredInput& input : *inputs) {
    if (!input.in_file()) recorded.push_back({.header = input.header, .bytes = input.bytes});
  }
  const auto call = records.ReadCall(method, parameters, recorded);
  DemandReason(call.status());
  if (!call.ok()) return;
  const auto* copy = std::get_if<penstock::CopyCall>(&call->request);
  Demand(copy == nullptr || (copy->source != nullptr && !copy->source_id.empty()), "a copy has no source");
}

void ReadAnswer(const penstock::WireCallRecords& records, std::string_view bytes) {
  penstock::ListedCall listed;
  listed.outcome = {.status = penstock::CallStatus::kDone, .bytes = std::string(bytes)};
  DemandReason(penstock::MessageOf(listed).status());
  DemandReason(penstock::StepOf(listed).status());
  const auto answer = records.ReadAnswer(bytes);
  DemandReason(answer.status());
  if (!answer.ok()) return;
  penstock::journal::v1::Answer message;
  Demand(message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())), "an answer was read that is none");
  Demand(message.has_error() != answer->error.ok(), "an answer has lost its error");
  const auto again = records.ReadAnswer(records.WriteAnswer(*answer));
  Demand(again.ok() && again->error == answer->error, "an error is another one after it was written and read");
  Demand(again->outcome.has_value() == answer->outcome.has_value() &&
             again->state.has_value() == answer->state.has_value(),
         "an answer is another one after it was written and read");
}

// The checkpoints of one pipeline, "source".
const penstock::CheckpointStore& Checkpoints() {
  static penstock::testing::UnsyncedDisk disk;
  static penstock::testing::FakeClock clock;
  static const std::unique_ptr<penstock::CheckpointStore> store = [] {
    auto opened = penstock::CheckpointStore::Open(&disk, &clock, "/state", nullptr);
    Demand(opened.ok() && (*opened)->FolderOf("source").ok(), "there is no folder of checkpoints");
    return *std::move(opened);
  }();
  return *store;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static const penstock::WireCallRecords records(&Checkpoints());
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t kind = data[0] % (kMethods.size() + 2);
  if (kind < kMethods.size()) {
    ReadCall(records, kMethods[kind], bytes);
  } else if (kind == kMethods.size()) {
    ReadAnswer(records, bytes);
  } else if (kind == kMethods.size() + 1) {
    DemandReason(penstock::RecipeFrom(std::string(bytes)).status());
  }
  return 0;
}
