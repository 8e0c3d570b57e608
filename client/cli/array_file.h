#pragma once

// Arrays of a file, `.npz` or safetensors.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/input_file.h"
#include "client/lib/host_tensor.h"

namespace penstock {

// An array of a file; its first dimension, if it has one, counts rows.
//
// Threads:   any method from any thread.
class FileArray {
 public:
  // Fails: a usage error if the bytes are not what type and shape need.
  static absl::StatusOr<FileArray> Create(TensorHeader header, ByteRange bytes, int64_t data_begin);

  const std::string& name() const { return header_.name; }
  bool has_rows() const { return !header_.shape.empty(); }
  int64_t rows() const { return header_.shape[0]; }  // where it has rows

  // These rows, in this order, as a tensor [n, ...] of that name; each is 0 to rows() - 1.
  //
  // Fails: TENSOR_TOO_LARGE; usage errors of a file that has become shorter.
  absl::StatusOr<HostTensor> Rows(const std::string& name, std::span<const int64_t> rows) const;
  absl::StatusOr<HostTensor> All() const;  // fails as Rows()

 private:
  FileArray(TensorHeader header, ByteRange bytes, int64_t data_begin, int64_t row_bytes)
      : header_(std::move(header)), bytes_(std::move(bytes)), data_begin_(data_begin), row_bytes_(row_bytes) {}

  TensorHeader header_;
  ByteRange bytes_;
  int64_t data_begin_;  // where the elements begin in `bytes_`
  int64_t row_bytes_;
};

// A file of named arrays: what numpy.savez or numpy.savez_compressed wrote, or safetensors, by its first bytes.
//
// Model:     Of an array only the rows that are asked for are read. One of an archive is read once as a whole before, for
//            its checksum; one that is deflated is in memory as a whole, from Array() on.
// Fails:     usage errors that name the file, and the array.
class ArrayFile {
 public:
  static absl::StatusOr<ArrayFile> Open(const std::string& path);

  const std::string& path() const { return file_->path(); }
  std::vector<std::string> names() const;  // sorted
  bool Has(const std::string& name) const { return openers_.count(name) != 0; }

  // An array that the file has.
  absl::StatusOr<FileArray> Array(const std::string& name) const { return openers_.at(name)(); }

 private:
  explicit ArrayFile(std::shared_ptr<const InputFile> file) : file_(std::move(file)) {}
  absl::Status AddMembers();  // of an archive
  absl::Status AddTensors();  // of safetensors

  std::shared_ptr<const InputFile> file_;
  std::map<std::string, std::function<absl::StatusOr<FileArray>()>> openers_;  // by name
};

}  // namespace penstock
