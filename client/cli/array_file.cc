#include "client/cli/array_file.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/cli/exit_code.h"
#include "client/cli/npy_header.h"
#include "client/cli/safetensors_file.h"
#include "client/cli/zip_file.h"
#include "engine/base/status_macros.h"

namespace penstock {
namespace {

constexpr int64_t kStartBytes = 8;
constexpr absl::string_view kMemberStart("PK\x03\x04", 4);
constexpr absl::string_view kEmptyArchive("PK\x05\x06", 4);
constexpr absl::string_view kArrayEnding = ".npy";

absl::StatusOr<FileArray> OpenMember(const std::shared_ptr<const InputFile>& file, const ZipMember& member,
                                     const std::string& name) {
  PENSTOCK_ASSIGN_OR_RETURN(ByteRange bytes, OpenZipMember(file, member));
  PENSTOCK_ASSIGN_OR_RETURN(NpyHeader header, ReadNpyHeader(name, bytes));
  return FileArray::Create(std::move(header.tensor), std::move(bytes), header.data_begin);
}

}  // namespace

absl::StatusOr<FileArray> FileArray::Create(TensorHeader header, ByteRange bytes, int64_t data_begin) {
  const absl::StatusOr<int64_t> needed = PayloadBytes(header.type, header.shape, header.name);
  if (!needed.ok()) return UsageError(bytes.path(), std::string(needed.status().message()));
  if (const int64_t held = bytes.size() - data_begin; held != *needed) {
    return UsageError(bytes.path(), absl::StrCat(header.name, ": must hold ", *needed,
                                                 " bytes, as its type and shape say, holds ", held));
  }
  const int64_t rows = header.shape.empty() ? 1 : header.shape[0];
  const int64_t row_bytes = rows == 0 ? 0 : *needed / rows;
  return FileArray(std::move(header), std::move(bytes), data_begin, row_bytes);
}

absl::StatusOr<HostTensor> FileArray::Rows(const std::string& name, std::span<const int64_t> rows) const {
  TensorHeader header = {name, header_.type, header_.shape, 0};
  header.shape[0] = static_cast<int64_t>(rows.size());
  PENSTOCK_ASSIGN_OR_RETURN(HostTensor tensor, HostTensor::Allocate(std::move(header)));
  char* into = tensor.mutable_bytes();
  for (const int64_t row : rows) {
    PENSTOCK_RETURN_IF_ERROR(
        bytes_.Read(data_begin_ + row * row_bytes_, std::span(into, static_cast<size_t>(row_bytes_))));
    into += row_bytes_;
  }
  return tensor;
}

absl::StatusOr<HostTensor> FileArray::All() const {
  TensorHeader header = header_;
  absl::StrReplaceAll({{"/", "."}},
                      &header.name);  // that of a slot of an optimizer has slashes; else it is as on the wire
  PENSTOCK_ASSIGN_OR_RETURN(HostTensor tensor, HostTensor::Allocate(std::move(header)));
  tensor.set_name(header_.name);
  PENSTOCK_RETURN_IF_ERROR(bytes_.Read(data_begin_, std::span(tensor.mutable_bytes(), tensor.bytes().size())));
  return tensor;
}

absl::StatusOr<ArrayFile> ArrayFile::Open(const std::string& path) {
  PENSTOCK_ASSIGN_OR_RETURN(std::shared_ptr<const InputFile> file, InputFile::Open(path));
  ArrayFile arrays(std::move(file));
  const ByteRange whole(arrays.file_, 0, arrays.file_->size());
  PENSTOCK_ASSIGN_OR_RETURN(const std::string start, whole.Read(0, std::min(kStartBytes, whole.size())));
  const bool archive = absl::StartsWith(start, kMemberStart) || absl::StartsWith(start, kEmptyArchive);
  PENSTOCK_RETURN_IF_ERROR(archive ? arrays.AddMembers() : arrays.AddTensors());
  return arrays;
}

absl::Status ArrayFile::AddMembers() {
  PENSTOCK_ASSIGN_OR_RETURN(const std::vector<ZipMember> members, ReadZipDirectory(file_));
  for (const ZipMember& member : members) {
    if (!absl::EndsWith(member.name, kArrayEnding)) continue;
    const std::string name(absl::StripSuffix(member.name, kArrayEnding));
    const auto open = [file = file_, member, name] { return OpenMember(file, member, name); };
    if (!openers_.emplace(name, open).second) return UsageError(path(), absl::StrCat(name, ": is there twice"));
  }
  return absl::OkStatus();
}

absl::Status ArrayFile::AddTensors() {
  const auto refused = [&](const absl::Status& status) {
    return UsageError(path(), absl::StrCat("is neither .npz nor safetensors: ", status.message()));
  };
  const ByteRange whole(file_, 0, file_->size());
  PENSTOCK_ASSIGN_OR_RETURN(const std::string start, whole.Read(0, std::min(kStartBytes, whole.size())));
  const absl::StatusOr<uint64_t> found = SafetensorsHeaderBytes(start, static_cast<uint64_t>(whole.size()));
  if (!found.ok()) return refused(found.status());
  const auto header_bytes = static_cast<int64_t>(*found);
  PENSTOCK_ASSIGN_OR_RETURN(const std::string header, whole.Read(0, header_bytes));
  const absl::StatusOr<std::vector<SafetensorsEntry>> entries =
      ReadSafetensorsHeader(header, static_cast<uint64_t>(whole.size() - header_bytes));
  if (!entries.ok()) return refused(entries.status());
  for (const SafetensorsEntry& entry : *entries) {
    const ByteRange bytes(file_, header_bytes + static_cast<int64_t>(entry.begin),
                          static_cast<int64_t>(entry.end - entry.begin));
    openers_.emplace(entry.header.name, [entry, bytes] { return FileArray::Create(entry.header, bytes, 0); });
  }
  return absl::OkStatus();
}

std::vector<std::string> ArrayFile::names() const {
  std::vector<std::string> names;
  for (const auto& [name, opener] : openers_) names.push_back(name);
  return names;
}

}  // namespace penstock
