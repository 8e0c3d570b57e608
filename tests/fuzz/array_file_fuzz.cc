// Feeds foreign bytes to the command line's reader of arrays in files: ZIP directories, deflated members, numpy's headers
// and those of safetensors. Of what it takes, each row must be readable.

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "client/cli/array_file.h"
#include "tests/fuzz/fuzz_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using penstock::testing::Demand;
  using penstock::testing::DemandReason;
  static const int descriptor = memfd_create("arrays", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  Demand(descriptor >= 0 && ftruncate(descriptor, 0) == 0 &&
             pwrite(descriptor, data, size, 0) == static_cast<ssize_t>(size),
         "the file can't be written");
  const auto file = penstock::ArrayFile::Open(path);
  DemandReason(file.status());
  if (!file.ok()) return 0;
  for (const std::string& name : file->names()) {
    const auto array = file->Array(name);
    DemandReason(array.status());
    if (!array.ok()) continue;
    const auto all = array->All();
    DemandReason(all.status());
    if (!all.ok() || !array->has_rows() || array->rows() == 0) continue;
    const int64_t last[] = {array->rows() - 1};
    const auto row = array->Rows("row", last);
    DemandReason(row.status());
    Demand(!row.ok() || all->bytes().substr(all->bytes().size() - row->bytes().size()) == row->bytes(),
           "a row is not what it is in all of them");
  }
  return 0;
}
