#include "client/cli/tensor_file.h"

#include <isa-l/crc.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/array_file.h"
#include "client/cli/exit_code.h"
#include "client/cli/input_bytes.h"
#include "client/cli/npy_header.h"
#include "client/cli/safetensors_file.h"
#include "engine/base/status_macros.h"
#include "engine/wire/tensor_header.h"

// The formats: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, version 1.0; and APPNOTE.TXT of PKWARE,
// stored entries without extensions.

namespace penstock {
namespace {

constexpr char kArchiveEnding[] = ".npz";
constexpr size_t kNpyAlignment = 64;
constexpr uint16_t kFirstDay = (1 << 5) | 1;  // 1980-01-01: the same content is the same file

void Number(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i, value >>= 8) out += static_cast<char>(value & 0xff);
}

// What stands before an array's elements.
std::string NpyHead(const HostTensor& tensor) {
  const std::vector<int64_t>& shape = tensor.header().shape;
  const std::string type(NumpyType(tensor.header().type));
  std::string words =
      absl::StrCat("{'descr': '", type.back() == '1' ? "|" : "<", type, "', 'fortran_order': False, 'shape': (",
                   absl::StrJoin(shape, ", "), shape.size() == 1 ? ",), }" : "), }");
  std::string head = "\x93NUMPY";
  Number(head, 0x0001, 2);
  words.append((kNpyAlignment - (head.size() + 2 + words.size() + 1) % kNpyAlignment) % kNpyAlignment, ' ');
  Number(head, words.size() + 1, 2);
  return head + words + "\n";
}

// The fields that an entry and its line in the directory share.
std::string ZipFacts(uint32_t crc, uint64_t size, const std::string& name) {
  std::string facts;
  Number(facts, 20, 2);  // version that is needed
  Number(facts, 0, 2);   // flags
  Number(facts, 0, 2);   // stored
  Number(facts, 0, 2);   // midnight
  Number(facts, kFirstDay, 2);
  Number(facts, crc, 4);
  Number(facts, size, 4);
  Number(facts, size, 4);
  Number(facts, name.size(), 2);
  Number(facts, 0, 2);  // no extra fields
  return facts;
}

uint32_t Crc(uint32_t crc, std::string_view bytes) {
  return crc32_gzip_refl(crc, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

absl::StatusOr<std::string> NpzFile(const std::string& argument, std::span<const HostTensor> tensors) {
  constexpr uint64_t kMost = uint64_t{1} << 32;
  std::string file;
  std::string directory;
  for (const HostTensor& tensor : tensors) {
    if (NumpyType(tensor.header().type).empty()) {
      return UsageError(argument, absl::StrCat("numpy has no bfloat16, the type of ", tensor.name(),
                                               ": use a file that ends in .safetensors"));
    }
    const std::string name = tensor.name() + ".npy";
    const std::string head = NpyHead(tensor);
    const uint64_t size = head.size() + tensor.bytes().size();
    if (file.size() + size + directory.size() >= kMost) {
      return UsageError(argument, "an .npz holds less than 4 GiB: use a file that ends in .safetensors");
    }
    const std::string facts = ZipFacts(Crc(Crc(0, head), tensor.bytes()), size, name);
    Number(directory, 0x02014b50, 4);
    Number(directory, 20, 2);  // version that made it
    directory += facts;
    Number(directory, 0, 2 + 2 + 2 + 4);  // comment, disk, attributes
    Number(directory, file.size(), 4);
    directory += name;
    Number(file, 0x04034b50, 4);
    file += facts;
    file += name;
    file += head;
    file += tensor.bytes();
  }
  const uint64_t start = file.size();
  file += directory;
  Number(file, 0x06054b50, 4);
  Number(file, 0, 4);  // one disk
  Number(file, tensors.size(), 2);
  Number(file, tensors.size(), 2);
  Number(file, directory.size(), 4);
  Number(file, start, 4);
  Number(file, 0, 2);
  return file;
}

// Reads as much as the header says, and a byte more if there is one: what follows may have no end.
absl::Status ReadSafetensorsBytes(InputBytes& input, std::string* bytes) {
  constexpr uint64_t kLengthBytes = 8;
  const auto refused = [&](const absl::Status& status) {
    return UsageError(input.name(), std::string(status.message()));
  };
  PENSTOCK_RETURN_IF_ERROR(input.Read(kLengthBytes, bytes));
  const absl::StatusOr<uint64_t> header_bytes = SafetensorsHeaderBytes(*bytes, std::nullopt);
  if (!header_bytes.ok()) return refused(header_bytes.status());
  PENSTOCK_RETURN_IF_ERROR(input.Read(*header_bytes, bytes));
  if (bytes->size() < *header_bytes) return absl::OkStatus();
  const absl::StatusOr<std::vector<SafetensorsEntry>> entries = ReadSafetensorsHeader(*bytes, std::nullopt);
  if (!entries.ok()) return refused(entries.status());
  const auto most = static_cast<uint64_t>(WireLimits().max_tensor_bytes);
  for (const SafetensorsEntry& entry : *entries) {
    if (entry.end - entry.begin <= most) continue;
    return UsageError(input.name(), absl::StrCat(Shortened(entry.header.name), ": has more than ", most,
                                                 " bytes, the most of a tensor"));
  }
  return input.Read(*header_bytes + (entries->empty() ? 0 : entries->back().end) + 1, bytes);
}

}  // namespace

absl::StatusOr<std::string> TensorFile(const std::string& path, const std::string& argument,
                                       std::span<const HostTensor> tensors,
                                       const std::map<std::string, std::string>& metadata) {
  if (absl::EndsWith(path, kArchiveEnding)) return NpzFile(argument, tensors);
  return WriteSafetensors(tensors, metadata);
}

absl::StatusOr<std::vector<HostTensor>> ReadTensorFile(const std::string& path, Session& session) {
  if (!absl::EndsWith(path, kArchiveEnding)) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::unique_ptr<InputBytes> input,
                              InputBytes::Open(path, session.in(), session.stop()));
    std::string bytes;
    PENSTOCK_RETURN_IF_ERROR(ReadSafetensorsBytes(*input, &bytes));
    absl::StatusOr<std::vector<HostTensor>> tensors = ReadSafetensors(bytes);
    if (tensors.ok()) return tensors;
    return UsageError(input->name(), std::string(tensors.status().message()));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const ArrayFile file, ArrayFile::Open(path));
  std::vector<HostTensor> tensors;
  for (const std::string& name : file.names()) {
    PENSTOCK_ASSIGN_OR_RETURN(const FileArray array, file.Array(name));
    PENSTOCK_ASSIGN_OR_RETURN(HostTensor tensor, array.All());
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace penstock
