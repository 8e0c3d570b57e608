// Feeds foreign bytes to the reader of exported programs. The first byte chooses what they are: a whole archive, or one record
// of an archive that is otherwise sound. Nothing may crash, leak or take much memory; errors must have a reason.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "engine/base/error.h"
#include "engine/device/torch_status.h"
#include "tests/unit/exported/program_archives.h"

namespace {

const char* const kRecords[] = {"models/model.json", "data/weights/model_weights_config.json",
                                "data/constants/model_constants_config.json", "data/weights/weight_0"};

void Check(const absl::StatusOr<penstock::ExportedProgram>& program) {
  if (!program.ok()) {
    if (penstock::ReasonOf(program.status()).empty()) std::abort();
    return;
  }
  for (const penstock::ProgramTensor& tensor : program->tensors) (void)penstock::LoadTensor(tensor, false);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t choice = data[0] % 5;
  if (choice == 4) {
    Check(penstock::ReadExportedProgram(penstock::testing::Shared(bytes)));
    return 0;
  }
  static const auto* const sound = new penstock::testing::Repacked("counting_both.pt2");
  penstock::testing::Repacked changed = *sound;
  changed[kRecords[choice]] = bytes;
  Check(changed.Read());
  return 0;
}
