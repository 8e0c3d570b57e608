#include "engine/program/exported_program.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/map_pages.h"
#include "engine/base/status_macros.h"
#include "engine/program/program_archive.h"
#include "engine/program/program_json.h"
#include "engine/program/program_names.h"

namespace penstock {
namespace {

using nlohmann::json;

constexpr char kModelRecord[] = "models/model.json";
constexpr int kStrided = 7;          // of the serializer's layouts
constexpr int64_t kMaxSharing = 16;  // times a record may be loaded, for different views of it

absl::Status CheckRecordText(const ProgramArchive& archive, const std::string& record, std::string_view wanted) {
  PENSTOCK_ASSIGN_OR_RETURN(const std::string_view content, archive.Read(record));
  if (content == wanted) return absl::OkStatus();
  return ProgramError(record, absl::StrCat("must be ", absl::string_view(wanted.data(), wanted.size())), content);
}

// Elements from the first to behind the last that sizes and strides reach; nothing if that is beyond all memory.
std::optional<int64_t> Extent(const ProgramTensor& tensor) {
  int64_t extent = 1;
  for (size_t d = 0; d < tensor.sizes.size(); ++d) {
    if (tensor.sizes[d] == 0) return 0;
    int64_t reach = 0;
    if (__builtin_mul_overflow(tensor.sizes[d] - 1, tensor.strides[d], &reach) ||
        __builtin_add_overflow(extent, reach, &extent)) {
      return std::nullopt;
    }
  }
  return extent;
}

std::optional<int64_t> Elements(const std::vector<int64_t>& sizes) {
  int64_t elements = 1;
  for (const int64_t size : sizes) {
    if (size == 0) return 0;
  }
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(elements, size, &elements)) return std::nullopt;
  }
  return elements;
}

std::vector<int64_t> FixedNumbers(const json& list, const ProgramLimits& limits, ProgramFields& fields) {
  std::vector<int64_t> numbers;
  if (list.size() > static_cast<size_t>(limits.rank)) {
    fields.Fail(absl::StrCat("must have at most ", limits.rank, " dimensions"), absl::StrCat(list.size()));
    return numbers;
  }
  for (const json& item : list) {
    const json* content = nullptr;
    if (fields.Union(item, content) != "as_int") fields.Fail("a stored tensor must have fixed sizes", "a symbol");
    numbers.push_back(fields.Int(*content));
    if (numbers.back() < 0) fields.Fail("must have sizes and strides from 0", absl::StrCat(numbers.back()));
  }
  return numbers;
}

// One entry of a configuration of weights or constants.
ProgramTensor ReadTensorEntry(const std::string& name, const json& entry, bool weights, const ProgramLimits& limits,
                              ProgramFields& fields, std::string& record) {
  ProgramTensor tensor;
  tensor.name = name;
  fields.Object(entry, {"path_name", "is_param", "use_pickle", "tensor_meta"});
  if (fields.Bool(fields.At(entry, "use_pickle"))) fields.Fail("must be raw elements", "a pickle");
  record = fields.Text(fields.At(entry, "path_name"));
  if (absl::StrContains(record, "/")) fields.Fail("must name a record of its folder", record);
  const json& meta = fields.At(entry, "tensor_meta");
  fields.Object(meta, {"dtype", "sizes", "requires_grad", "device", "strides", "storage_offset", "layout"});
  if (!fields.ok()) return tensor;
  tensor.type = ProgramScalarType(fields.At(meta, "dtype"), fields);
  tensor.sizes = FixedNumbers(fields.List(meta, "sizes"), limits, fields);
  tensor.strides = FixedNumbers(fields.List(meta, "strides"), limits, fields);
  const json* offset = nullptr;
  if (fields.Union(fields.At(meta, "storage_offset"), offset) != "as_int") fields.Fail("must have an offset", "none");
  tensor.offset = fields.Int(*offset);
  if (fields.Int(fields.At(meta, "layout")) != kStrided) fields.Fail("must be strided", "another layout");
  if (tensor.sizes.size() != tensor.strides.size()) fields.Fail("must have as many strides as sizes", "others");
  const bool trained = fields.Bool(fields.At(entry, "is_param")) && fields.Bool(fields.At(meta, "requires_grad")) &&
                       c10::isFloatingType(tensor.type);
  tensor.persistent = weights;
  tensor.kind = trained && weights ? ProgramTensor::Kind::kParameter
                                   : (weights ? ProgramTensor::Kind::kBuffer : ProgramTensor::Kind::kConstant);
  return tensor;
}

// A record with its tensors, and how many bytes of it they reach.
struct StoredRecord {
  std::string_view bytes;
  std::optional<bool> is_bool = {};  // whether every byte is 0 or 1, once a tensor asked
  int64_t reached = 0;
  int64_t held = 0;  // by all of them, once loaded
  std::vector<int> tensors = {};
};

// Adds the tensors of one folder of an archive, entry by entry, and checks each against its record.
class TensorReader {
 public:
  TensorReader(const ProgramArchive& archive, const std::string& folder, bool weights, const ProgramLimits& limits,
               std::vector<ProgramTensor>& tensors)
      : archive_(archive), folder_(folder), weights_(weights), limits_(limits), tensors_(tensors) {}

  absl::Status Add(const std::string& name, const json& entry, ProgramFields& fields) {
    fields.Enter(absl::StrCat("tensor ", name));
    if (name.empty() || name.size() > static_cast<size_t>(limits_.name_bytes)) {
      fields.Fail(absl::StrCat("must have a name of 1 to ", limits_.name_bytes, " bytes"), name);
    }
    std::string path;
    ProgramTensor tensor = ReadTensorEntry(name, entry, weights_, limits_, fields, path);
    PENSTOCK_RETURN_IF_ERROR(fields.status());
    if (records_.count(path) == 0) {
      PENSTOCK_ASSIGN_OR_RETURN(const std::string_view bytes, archive_.Read(folder_ + path));
      records_.emplace(path, StoredRecord{.bytes = bytes});
    }
    StoredRecord& record = records_.at(path);
    tensor.bytes = record.bytes;
    PENSTOCK_RETURN_IF_ERROR(Place(tensor, record, fields));
    FindSharing(tensor, record, fields);
    if (tensor.same_as < 0) record.held += *Extent(tensor) * Width(tensor);
    if (record.held > kMaxSharing * static_cast<int64_t>(record.bytes.size())) {
      fields.Fail(absl::StrCat("must not be one of tensors that reach more than ", kMaxSharing, " times their record"),
                  path);
    }
    record.tensors.push_back(static_cast<int>(tensors_.size()));
    tensors_.push_back(std::move(tensor));
    return fields.status();
  }

  // Records must hold exactly what the tensors on them need.
  absl::Status CheckLengths() const {
    for (const auto& [path, record] : records_) {
      if (static_cast<int64_t>(record.bytes.size()) != record.reached) {
        return ProgramError(folder_ + path, absl::StrCat("must hold the ", record.reached, " bytes of its tensors"),
                            absl::StrCat(record.bytes.size()));
      }
    }
    return absl::OkStatus();
  }

 private:
  static int64_t Width(const ProgramTensor& tensor) { return static_cast<int64_t>(c10::elementSize(tensor.type)); }

  // A tensor must lie within its record, whose bytes must be values of its type.
  static absl::Status Place(const ProgramTensor& tensor, StoredRecord& record, ProgramFields& fields) {
    const std::optional<int64_t> extent = Extent(tensor);
    const std::optional<int64_t> elements = Elements(tensor.sizes);
    const auto stored = static_cast<int64_t>(record.bytes.size()) / Width(tensor);
    if (!extent || !elements || tensor.offset < 0 || tensor.offset > stored || *extent > stored - tensor.offset ||
        *elements > stored) {
      fields.Fail("must lie within its record", absl::StrCat(record.bytes.size(), " bytes"));
      return fields.status();
    }
    if (tensor.type == at::kBool && !record.is_bool.has_value()) {
      const auto is_bool = [](char c) { return c == 0 || c == 1; };
      record.is_bool = std::all_of(record.bytes.begin(), record.bytes.end(), is_bool);
    }
    if (tensor.type == at::kBool && !*record.is_bool) fields.Fail("has a BOOL that is not 0 or 1", "another byte");
    record.reached = std::max(record.reached, (tensor.offset + *extent) * Width(tensor));
    return absl::OkStatus();
  }

  // Of tensors on one record: the first that is the same, and none that shares a part of its elements and learns.
  void FindSharing(ProgramTensor& tensor, const StoredRecord& record, ProgramFields& fields) const {
    for (const int other : record.tensors) {
      const ProgramTensor& before = tensors_[other];
      const bool same = before.kind == tensor.kind && before.type == tensor.type && before.sizes == tensor.sizes &&
                        before.strides == tensor.strides && before.offset == tensor.offset;
      if (same && tensor.same_as < 0) tensor.same_as = before.same_as < 0 ? other : before.same_as;
      const bool trained =
          tensor.kind == ProgramTensor::Kind::kParameter || before.kind == ProgramTensor::Kind::kParameter;
      if (!same && *Elements(tensor.sizes) > 0 && trained) {
        fields.Fail("must not share a part of its elements with another", before.name);
      }
    }
  }

  const ProgramArchive& archive_;
  const std::string& folder_;
  const bool weights_;
  const ProgramLimits& limits_;
  std::vector<ProgramTensor>& tensors_;
  std::map<std::string, StoredRecord> records_;
};

// Adds what one configuration names. Its records must hold exactly what the tensors on them need.
absl::Status ReadTensors(const ProgramArchive& archive, const std::string& folder, const std::string& config,
                         bool weights, const ProgramLimits& limits, std::vector<ProgramTensor>& tensors) {
  const std::string record = folder + config;
  PENSTOCK_ASSIGN_OR_RETURN(const std::string_view text, archive.Read(record));
  PENSTOCK_ASSIGN_OR_RETURN(const json document, ParseProgramJson(text, record, limits));
  ProgramFields fields;
  fields.Enter(record);
  fields.Object(document, {"config"});
  const json& entries = fields.Map(document, "config");
  if (tensors.size() + entries.size() > static_cast<size_t>(limits.tensors)) {
    fields.Fail(absl::StrCat("must have at most ", limits.tensors, " tensors"), absl::StrCat(entries.size()));
  }
  PENSTOCK_RETURN_IF_ERROR(fields.status());
  TensorReader reader(archive, folder, weights, limits, tensors);
  for (const auto& [name, entry] : entries.items()) PENSTOCK_RETURN_IF_ERROR(reader.Add(name, entry, fields));
  return reader.CheckLengths();
}

// Of tied weights, the one that the graph takes first is the one that the others are the same as: PyTorch names
// parameters in this order, too. Then no graph uses another.
void ChooseFirstNames(ExportedProgram& program) {
  std::map<int, int> chosen;  // by what ReadTensors had chosen
  const auto group = [&](int tensor) {
    return program.tensors[tensor].same_as < 0 ? tensor : program.tensors[tensor].same_as;
  };
  std::vector<int> groups;
  for (size_t t = 0; t < program.tensors.size(); ++t) groups.push_back(group(static_cast<int>(t)));
  const auto rename = [&](ProgramGraph& graph) {
    for (auto& [value, tensor] : graph.tensors) tensor = chosen.emplace(groups[tensor], tensor).first->second;
  };
  rename(program.graph);
  if (program.training.has_value()) rename(*program.training);
  for (size_t t = 0; t < program.tensors.size(); ++t) {
    const auto first = chosen.find(groups[t]);
    const int same_as = first == chosen.end() ? groups[t] : first->second;
    program.tensors[t].same_as = same_as == static_cast<int>(t) ? -1 : same_as;
  }
}

}  // namespace

int64_t ProgramTensor::element_bytes() const { return *Elements(sizes) * static_cast<int64_t>(c10::elementSize(type)); }

absl::StatusOr<ExportedProgram> ReadExportedProgram(std::shared_ptr<const std::string> file,
                                                    const ProgramLimits& limits) {
  ExportedProgram program{.file = std::move(file), .tensors = {}, .graph = {}, .training = {}};
  if (program.file->size() > static_cast<uint64_t>(limits.tensor_bytes)) {
    return Error(absl::StatusCode::kResourceExhausted, "TENSOR_TOO_LARGE",
                 absl::StrCat("exported program: must have at most ", limits.tensor_bytes, " bytes, got ",
                              program.file->size()))
        .With("field", "file")
        .With("value", absl::StrCat(program.file->size()));
  }
  PENSTOCK_ASSIGN_OR_RETURN(const ProgramArchive archive, ProgramArchive::Open(*program.file));
  if (archive.Has("data.pkl")) {  // of torch.save and torch.jit.save
    return ProgramError("archive", "must be an exported program (penstock.export, torch.export.save), not a pickle",
                        "data.pkl");
  }
  PENSTOCK_RETURN_IF_ERROR(CheckRecordText(archive, "archive_format", "pt2"));
  PENSTOCK_RETURN_IF_ERROR(CheckRecordText(archive, "archive_version", "0"));
  PENSTOCK_RETURN_IF_ERROR(CheckRecordText(archive, "byteorder", "little"));
  for (const std::string& name : archive.Names()) {
    if (absl::StartsWith(name, "models/") && name != kModelRecord) {
      return ProgramError("archive", absl::StrCat("must hold one model, ", kModelRecord), name);
    }
  }
  PENSTOCK_RETURN_IF_ERROR(
      ReadTensors(archive, "data/weights/", "model_weights_config.json", true, limits, program.tensors));
  PENSTOCK_RETURN_IF_ERROR(
      ReadTensors(archive, "data/constants/", "model_constants_config.json", false, limits, program.tensors));
  const auto read_graph = [&](const std::string& record) -> absl::StatusOr<ProgramGraph> {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string_view text, archive.Read(record));
    PENSTOCK_ASSIGN_OR_RETURN(const json document, ParseProgramJson(text, record, limits));
    return ParseProgramGraph(document, record, program.tensors, limits);
  };
  PENSTOCK_ASSIGN_OR_RETURN(program.graph, read_graph(kModelRecord));
  if (archive.Has(kTrainingRecord)) {
    PENSTOCK_ASSIGN_OR_RETURN(program.training, read_graph(kTrainingRecord));
  }
  if (archive.Has(kNamesRecord)) {
    PENSTOCK_ASSIGN_OR_RETURN(const std::string_view text, archive.Read(kNamesRecord));
    PENSTOCK_ASSIGN_OR_RETURN(const json names, ParseProgramJson(text, kNamesRecord, limits));
    PENSTOCK_RETURN_IF_ERROR(NameProgram(names, program));
  }
  ChooseFirstNames(program);
  return program;
}

at::Tensor LoadTensor(const ProgramTensor& tensor, bool shapes_only) {
  const at::TensorOptions options(tensor.type);
  if (shapes_only) return at::empty(tensor.sizes, options.device(at::kMeta));
  const int64_t extent = *Extent(tensor);
  at::Tensor storage = at::empty({extent}, options);
  const size_t width = c10::elementSize(tensor.type);
  if (extent > 0) {
    MapPages(storage.mutable_data_ptr(), storage.nbytes());
    std::memcpy(storage.mutable_data_ptr(), tensor.bytes.data() + static_cast<size_t>(tensor.offset) * width,
                static_cast<size_t>(extent) * width);
  }
  // The order of dimensions in memory stays: operators choose their way by it.
  const at::Tensor view = storage.as_strided(tensor.sizes, tensor.strides);
  return extent == *Elements(tensor.sizes) ? view : view.clone();
}

}  // namespace penstock
