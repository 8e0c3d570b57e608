#pragma once

// Archives for tests: the files of tests/golden/exported, and zip files made record by record, faults included.

#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/program/exported_program.h"
#include "engine/program/program_archive.h"

namespace penstock::testing {

inline std::string GoldenFile(const std::string& name) {
  std::ifstream file(std::string(PENSTOCK_EXPORTED_FOLDER) + "/" + name, std::ios::binary);
  std::stringstream content;
  content << file.rdbuf();
  PENSTOCK_CHECK(file.good() && !content.str().empty());
  return content.str();
}

inline std::shared_ptr<const std::string> Shared(std::string bytes) {
  return std::make_shared<const std::string>(std::move(bytes));
}

inline uint32_t ZipChecksum(std::string_view bytes) {
  uint32_t rest = 0xffffffff;
  for (const char c : bytes) {
    rest ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? 0xedb88320u : 0u);
  }
  return ~rest;
}

// Writes a zip archive of stored records. What a test wants wrong, it sets.
class ZipWriter {
 public:
  struct Record {
    std::string name;
    std::string data;
    uint16_t method = 0;
    uint16_t flags = 0;
    int64_t stored_size = -1;     // in the directory, if not the data's
    int64_t size = -1;            // the same
    int64_t offset = -1;          // the same
    std::string local_name = {};  // in the record's own header, if another
  };

  void Add(Record record) { records_.push_back(std::move(record)); }

  std::string Bytes() const {
    std::string out;
    std::string directory;
    for (const Record& record : records_) {
      const std::string& local_name = record.local_name.empty() ? record.name : record.local_name;
      const auto real = static_cast<int64_t>(record.data.size());
      const size_t offset = out.size();
      Put(out, 0x04034b50, 4);
      Common(out, record, real, real);
      Put(out, local_name.size(), 2);
      Put(out, 0, 2);
      out += local_name + record.data;
      Put(directory, 0x02014b50, 4);
      Put(directory, 20, 2);
      Common(directory, record, record.stored_size < 0 ? real : record.stored_size,
             record.size < 0 ? real : record.size);
      Put(directory, record.name.size(), 2);
      Put(directory, 0, 2 + 2 + 2 + 2 + 4);
      Put(directory, record.offset < 0 ? offset : static_cast<uint64_t>(record.offset), 4);
      directory += record.name;
    }
    const size_t begin = out.size();
    out += directory;
    Put(out, 0x06054b50, 4);
    Put(out, 0, 4);
    Put(out, records_.size(), 2);
    Put(out, records_.size(), 2);
    Put(out, directory.size(), 4);
    Put(out, begin, 4);
    Put(out, 0, 2);
    return out;
  }

 private:
  static void Put(std::string& out, uint64_t number, int bytes) {
    for (int i = 0; i < bytes; ++i) out.push_back(i < 8 ? static_cast<char>(number >> (8 * i)) : '\0');
  }
  static void Common(std::string& out, const Record& record, int64_t stored, int64_t size) {
    Put(out, 20, 2);
    Put(out, record.flags, 2);
    Put(out, record.method, 2);
    Put(out, 0, 4);
    Put(out, ZipChecksum(record.data), 4);
    Put(out, static_cast<uint64_t>(stored), 4);
    Put(out, static_cast<uint64_t>(size), 4);
  }

  std::vector<Record> records_;
};

// The records of an archive, to change some and pack them again.
class Repacked {
 public:
  explicit Repacked(const std::string& file) {
    const std::string bytes = GoldenFile(file);
    const absl::StatusOr<ProgramArchive> archive = ProgramArchive::Open(bytes);
    PENSTOCK_CHECK(archive.ok());
    for (const std::string& name : archive->Names()) records_[name] = std::string(*archive->Read(name));
  }

  std::string& operator[](const std::string& name) { return records_[name]; }
  void Remove(const std::string& name) { records_.erase(name); }
  // Replaces the first occurrence, which must be there.
  void Replace(const std::string& name, const std::string& from, const std::string& to) {
    const size_t at = records_.at(name).find(from);
    PENSTOCK_CHECK(at != std::string::npos);
    records_[name].replace(at, from.size(), to);
  }
  std::string Bytes() const {
    ZipWriter zip;
    for (const auto& [name, data] : records_) zip.Add({.name = "archive/" + name, .data = data});
    return zip.Bytes();
  }
  absl::StatusOr<ExportedProgram> Read() const { return ReadExportedProgram(Shared(Bytes())); }

 private:
  std::map<std::string, std::string> records_;
};

}  // namespace penstock::testing
