// Feeds foreign bytes to the reader of exported programs, and what it takes of them to the graph layer. The first byte
// chooses what they are: a whole archive, or one record of an archive that is otherwise sound. Nothing may crash, leak
// or take much memory; errors must have a reason.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

#include "engine/device/torch_status.h"
#include "engine/program/program_model.h"
#include "engine/program/program_names.h"
#include "tests/fuzz/fuzz_checks.h"
#include "tests/unit/program/program_archives.h"

namespace {

const char* const kRecords[] = {"models/model.json",
                                "data/weights/model_weights_config.json",
                                "data/constants/model_constants_config.json",
                                "data/weights/weight_0",
                                nullptr /* the archive */,
                                penstock::kTrainingRecord,
                                penstock::kNamesRecord};

using penstock::testing::DemandReason;

// Reads, cuts at every operator and builds; no operator runs.
void Check(absl::StatusOr<penstock::ExportedProgram> program) {
  DemandReason(program.status());
  if (!program.ok()) return;
  for (const penstock::ProgramTensor& tensor : program->tensors) (void)penstock::LoadTensor(tensor, false);
  const auto model = penstock::ProgramModel::Create(*std::move(program), penstock::ProgramCuts::kNodes);
  DemandReason(model.status());
  if (model.ok()) DemandReason(penstock::BuildProgramLayers(**model).status());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t choice = data[0] % std::size(kRecords);
  if (kRecords[choice] == nullptr) {
    Check(penstock::ReadExportedProgram(penstock::testing::Shared(bytes)));
    return 0;
  }
  static const auto* const sound = new penstock::testing::Repacked("counting_both.pt2");
  penstock::testing::Repacked changed = *sound;
  changed[kRecords[choice]] = bytes;
  Check(changed.Read());
  return 0;
}
