#include "engine/transport/tensor_message.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/rank_message.h"
#include "engine/base/shape_text.h"
#include "engine/base/status_macros.h"
#include "engine/device/torch_status.h"
#include "engine/tensor/codec.h"
#include "engine/transport/packed_bytes.h"

namespace penstock {
namespace {

constexpr int kMaximumDepth = 32;  // of lists in lists
constexpr size_t kMaximumRank = 64;
constexpr size_t kBoundaryBytes = 64;

// The order of Value's alternatives does not matter here; numbers on the wire stay.
enum class Kind : uint8_t { kNone, kTensor, kWhole, kBool, kInt, kFloat, kText, kList, kTuple, kDict };

bool HasPlainBytes(at::ScalarType type) {
  switch (type) {
    case at::kBool:
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kUInt16:
    case at::kUInt32:
    case at::kUInt64:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
    case at::kComplexHalf:
    case at::kComplexFloat:
    case at::kComplexDouble:
    case at::kFloat8_e5m2:
    case at::kFloat8_e4m3fn:
      return true;
    default:
      return false;
  }
}

// --- Encoding.

absl::Status Unsendable(const std::string& field, std::string_view problem, std::string_view value) {
  return Error(absl::StatusCode::kInvalidArgument, "TENSOR_SIGNATURE",
               field + ": " + std::string(problem) + ", got " + std::string(value))
      .With("field", field)
      .With("value", value);
}

// The same elements without gaps between them, in the order in which they lie.
absl::StatusOr<at::Tensor> Dense(const at::Tensor& tensor, const std::string& field) {
  if (tensor.layout() != at::kStrided || !HasPlainBytes(tensor.scalar_type())) {
    return Unsendable(field, "must be a strided tensor of a type that can be sent",
                      c10::toString(tensor.scalar_type()));
  }
  if (!tensor.is_cpu()) return Unsendable(field, "must be on the host", tensor.device().str());
  if (static_cast<size_t>(tensor.dim()) > kMaximumRank) {
    return Unsendable(field, absl::StrCat("must have at most ", kMaximumRank, " dimensions"),
                      absl::StrCat(tensor.dim()));
  }
  at::Tensor dense;
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] {
    dense = tensor.detach().resolve_conj().resolve_neg();
    if (!dense.is_non_overlapping_and_dense()) dense = dense.clone(at::MemoryFormat::Preserve);
  }));
  return dense;
}

// In elements, how far a tensor begins behind a boundary of the memory that kernels may tell apart.
int64_t SkewOf(const at::Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  return static_cast<int64_t>(address % kBoundaryBytes / tensor.element_size());
}

class Encoder {
 public:
  absl::Status Put(const Value& value, const std::string& field, int depth) {
    if (depth > kMaximumDepth)
      return Unsendable(field, absl::StrCat("must have at most ", kMaximumDepth, " levels"), "more");
    if (value.any_tensor() != nullptr) {
      PutKind(value.is_whole() ? Kind::kWhole : Kind::kTensor);
      return PutTensor(*value.any_tensor(), field);
    }
    if (value.is_none()) PutKind(Kind::kNone);
    if (value.boolean() != nullptr) PutPlain(Kind::kBool, static_cast<uint8_t>(*value.boolean()));
    if (value.integer() != nullptr) PutPlain(Kind::kInt, *value.integer());
    if (value.number() != nullptr) PutPlain(Kind::kFloat, *value.number());
    if (value.text() != nullptr) {
      PutKind(Kind::kText);
      out_.PutText(*value.text());
    }
    if (value.list() != nullptr) return PutItems(Kind::kList, *value.list(), field, depth);
    if (value.tuple() != nullptr) return PutItems(Kind::kTuple, *value.tuple(), field, depth);
    if (value.dict() == nullptr) return absl::OkStatus();
    PutPlain(Kind::kDict, static_cast<uint32_t>(value.dict()->size()));
    for (const auto& [key, item] : *value.dict()) {
      out_.PutText(key);
      PENSTOCK_RETURN_IF_ERROR(Put(item, absl::StrCat(field, "[", key, "]"), depth + 1));
    }
    return absl::OkStatus();
  }

  PackedWriter& out() { return out_; }
  EncodedMessage Take() { return {.header = out_.Take(), .payload = std::move(payload_)}; }

 private:
  void PutKind(Kind kind) { out_.Put(static_cast<uint8_t>(kind)); }
  template <typename T>
  void PutPlain(Kind kind, T value) {
    PutKind(kind);
    out_.Put(value);
  }

  absl::Status PutItems(Kind kind, const ValueList& items, const std::string& field, int depth) {
    PutPlain(kind, static_cast<uint32_t>(items.size()));
    for (size_t i = 0; i < items.size(); ++i) {
      PENSTOCK_RETURN_IF_ERROR(Put(items[i], absl::StrCat(field, "[", i, "]"), depth + 1));
    }
    return absl::OkStatus();
  }

  absl::Status PutTensor(const at::Tensor& tensor, const std::string& field) {
    out_.Put(static_cast<uint8_t>(tensor.defined()));
    if (!tensor.defined()) return absl::OkStatus();
    PENSTOCK_ASSIGN_OR_RETURN(const at::Tensor dense, Dense(tensor, field));
    out_.Put(static_cast<int8_t>(dense.scalar_type()));
    out_.Put(static_cast<uint8_t>(dense.dim()));
    for (int64_t i = 0; i < dense.dim(); ++i) {
      out_.Put(dense.size(i));
      out_.Put(dense.stride(i));
    }
    out_.Put(static_cast<uint8_t>(SkewOf(dense)));
    auto owner = std::make_shared<const at::Tensor>(dense);
    payload_.push_back({.data = const_cast<char*>(static_cast<const char*>(dense.const_data_ptr())),
                        .bytes = static_cast<int64_t>(dense.nbytes()),
                        .owner = std::move(owner)});
    return absl::OkStatus();
  }

  PackedWriter out_;
  std::vector<Piece> payload_;
};

// --- Decoding.

struct TensorPlace {
  std::string field;
  bool defined = false;
  at::ScalarType type = at::ScalarType::Undefined;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  uint8_t skew = 0;
  int64_t bytes = 0;
};

// Whether the elements fill their bytes: each once, none left out.
bool IsDense(const TensorPlace& place) {
  std::vector<size_t> order(place.shape.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return place.strides[a] < place.strides[b]; });
  int64_t elements = 1;
  for (const size_t i : order) {
    if (place.shape[i] == 1) continue;
    if (place.strides[i] != elements) return false;
    elements *= place.shape[i];
  }
  return true;
}

class Decoder {
 public:
  explicit Decoder(std::string_view header) : in_(header) {}

  absl::Status GetKey(MessageKey* key) {
    PENSTOCK_RETURN_IF_ERROR(in_.Get("key.run", &key->run));
    uint8_t kind = 0;
    PENSTOCK_RETURN_IF_ERROR(in_.Get("key.kind", &kind));
    if (kind > static_cast<uint8_t>(MessageKind::kInputGradient)) {
      return BadRankMessage("key.kind", "must be a kind of message", absl::StrCat(kind));
    }
    key->kind = static_cast<MessageKind>(kind);
    PENSTOCK_RETURN_IF_ERROR(in_.Get("key.stage", &key->stage));
    PENSTOCK_RETURN_IF_ERROR(in_.Get("key.micro_batch", &key->micro_batch));
    PENSTOCK_RETURN_IF_ERROR(in_.Get("key.peer", &key->peer));
    for (const auto& [field, value] : {std::pair("key.stage", key->stage), {"key.micro_batch", key->micro_batch}}) {
      if (value < 0) return BadRankMessage(field, "must not be negative", absl::StrCat(value));
    }
    if (key->peer < -1) return BadRankMessage("key.peer", "must be -1 or a stage", absl::StrCat(key->peer));
    return absl::OkStatus();
  }

  absl::Status GetBatch(Batch* batch) {
    bool atomic = false, spread = false;
    PENSTOCK_RETURN_IF_ERROR(in_.GetBool("atomic", &atomic));
    PENSTOCK_RETURN_IF_ERROR(in_.GetBool("spread", &spread));
    ValueList values;
    PENSTOCK_RETURN_IF_ERROR(GetItems("values", 0, &values));
    if (atomic && (spread || values.size() != 1)) {
      return BadRankMessage("atomic", "must have one value that is not spread", absl::StrCat(values.size(), " values"));
    }
    *batch = atomic   ? Batch(std::move(values.front()))
             : spread ? Batch(Value::List(std::move(values))).Spread()
                      : Batch::Tuple(std::move(values));
    if (!in_.rest().empty()) {
      return BadRankMessage("values", "must end with the header", absl::StrCat(in_.rest().size(), " more bytes"));
    }
    return absl::OkStatus();
  }

  const std::vector<TensorPlace>& places() const { return places_; }

 private:
  absl::Status GetItems(const std::string& field, int depth, ValueList* items) {
    uint32_t count = 0;
    PENSTOCK_RETURN_IF_ERROR(GetCount(field, &count));
    items->resize(count);
    for (uint32_t i = 0; i < count; ++i) {
      PENSTOCK_RETURN_IF_ERROR(GetValue(absl::StrCat(field, "[", i, "]"), depth, &(*items)[i]));
    }
    return absl::OkStatus();
  }

  // Each thing that is counted takes a byte at least.
  absl::Status GetCount(const std::string& field, uint32_t* count) {
    PENSTOCK_RETURN_IF_ERROR(in_.Get(field, count));
    if (*count <= in_.rest().size()) return absl::OkStatus();
    return BadRankMessage(field, absl::StrCat("must have at most ", in_.rest().size(), " values"),
                          absl::StrCat(*count));
  }

  template <typename T>
  absl::Status GetPlain(const std::string& field, Value* value) {
    T plain = {};
    PENSTOCK_RETURN_IF_ERROR(in_.Get(field, &plain));
    *value = Value(plain);
    return absl::OkStatus();
  }

  absl::Status GetValue(const std::string& field, int depth, Value* value) {
    if (depth > kMaximumDepth) {
      return BadRankMessage(field, absl::StrCat("must have at most ", kMaximumDepth, " levels"), "more");
    }
    uint8_t kind = 0;
    PENSTOCK_RETURN_IF_ERROR(in_.Get(field, &kind));
    switch (static_cast<Kind>(kind)) {
      case Kind::kNone:
        return absl::OkStatus();
      case Kind::kTensor:
        *value = Value(at::Tensor());
        return GetTensor(field);
      case Kind::kWhole:
        *value = Value(WholeTensor{});
        return GetTensor(field);
      case Kind::kInt:
        return GetPlain<int64_t>(field, value);
      case Kind::kFloat:
        return GetPlain<double>(field, value);
      case Kind::kBool: {
        bool plain = false;
        PENSTOCK_RETURN_IF_ERROR(in_.GetBool(field, &plain));
        *value = Value(plain);
        return absl::OkStatus();
      }
      case Kind::kText: {
        std::string_view text;
        PENSTOCK_RETURN_IF_ERROR(in_.GetText(field, &text));
        *value = Value(std::string(text));
        return absl::OkStatus();
      }
      case Kind::kList:
      case Kind::kTuple: {
        ValueList items;
        PENSTOCK_RETURN_IF_ERROR(GetItems(field, depth + 1, &items));
        *value =
            static_cast<Kind>(kind) == Kind::kList ? Value::List(std::move(items)) : Value::Tuple(std::move(items));
        return absl::OkStatus();
      }
      case Kind::kDict:
        return GetDict(field, depth, value);
    }
    return BadRankMessage(field, "must be of a known kind", absl::StrCat(kind));
  }

  absl::Status GetDict(const std::string& field, int depth, Value* value) {
    uint32_t count = 0;
    PENSTOCK_RETURN_IF_ERROR(GetCount(field, &count));
    ValueDict dict(count);
    for (uint32_t i = 0; i < count; ++i) {
      const std::string item = absl::StrCat(field, "{", i, "}");
      std::string_view key;
      PENSTOCK_RETURN_IF_ERROR(in_.GetText(item, &key));
      dict[i].first = std::string(key);
      PENSTOCK_RETURN_IF_ERROR(GetValue(item, depth + 1, &dict[i].second));
    }
    *value = Value::Dict(std::move(dict));
    return absl::OkStatus();
  }

  absl::Status GetTensor(const std::string& field) {
    TensorPlace place{.field = field};
    PENSTOCK_RETURN_IF_ERROR(in_.GetBool(field + ".defined", &place.defined));
    if (!place.defined) {
      places_.push_back(std::move(place));
      return absl::OkStatus();
    }
    int8_t type = 0;
    uint8_t rank = 0;
    PENSTOCK_RETURN_IF_ERROR(in_.Get(field + ".type", &type));
    place.type = static_cast<at::ScalarType>(type);
    if (type < 0 || type >= static_cast<int8_t>(at::ScalarType::NumOptions) || !HasPlainBytes(place.type)) {
      return BadRankMessage(field + ".type", "must be a type that can be sent", absl::StrCat(type));
    }
    PENSTOCK_RETURN_IF_ERROR(in_.Get(field + ".rank", &rank));
    if (rank > kMaximumRank) {
      return BadRankMessage(field + ".rank", absl::StrCat("must be at most ", kMaximumRank), absl::StrCat(rank));
    }
    place.shape.resize(rank);
    place.strides.resize(rank);
    for (int i = 0; i < rank; ++i) {
      PENSTOCK_RETURN_IF_ERROR(in_.Get(field + ".shape", &place.shape[i]));
      PENSTOCK_RETURN_IF_ERROR(in_.Get(field + ".strides", &place.strides[i]));
    }
    PENSTOCK_RETURN_IF_ERROR(in_.Get(field + ".skew", &place.skew));
    if (place.skew * c10::elementSize(place.type) >= kBoundaryBytes) {
      return BadRankMessage(field + ".skew", absl::StrCat("must be within ", kBoundaryBytes, " bytes"),
                            absl::StrCat(place.skew));
    }
    PENSTOCK_RETURN_IF_ERROR(CheckShape(&place));
    places_.push_back(std::move(place));
    return absl::OkStatus();
  }

  // Sets the bytes, too.
  static absl::Status CheckShape(TensorPlace* place) {
    const auto item_size = static_cast<int64_t>(c10::elementSize(place->type));
    absl::StatusOr<int64_t> elements = ElementCount(place->shape, place->field);
    if (!elements.ok() || *elements > std::numeric_limits<int64_t>::max() / item_size) {
      return BadRankMessage(place->field + ".shape", "must have no negative dimension and fewer than 2^63 bytes",
                            Shortened(ShapeText(place->shape)));
    }
    place->bytes = *elements * item_size;
    // Those of a tensor without elements mean nothing, but the storage that LibTorch takes is made from them.
    if (*elements == 0) {
      int64_t next = 1;
      for (size_t i = place->shape.size(); i-- > 0;) {
        place->strides[i] = next;
        next = std::min(next, int64_t{1} << 31) * std::clamp<int64_t>(place->shape[i], 1, int64_t{1} << 31);
      }
      return absl::OkStatus();
    }
    const bool negative = std::any_of(place->strides.begin(), place->strides.end(), [](int64_t s) { return s < 0; });
    if (!negative && IsDense(*place)) return absl::OkStatus();
    return BadRankMessage(place->field + ".strides", "must leave no gap and let no elements overlap",
                          Shortened(ShapeText(place->strides)));
  }

  PackedReader in_;
  std::vector<TensorPlace> places_;
};

// May throw.
at::Tensor EmptyAt(const TensorPlace& place) {
  if (place.skew == 0 || place.bytes == 0) return at::empty_strided(place.shape, place.strides, place.type);
  const int64_t elements = place.bytes / static_cast<int64_t>(c10::elementSize(place.type));
  return at::empty({elements + place.skew}, place.type).as_strided(place.shape, place.strides, place.skew);
}

bool Matches(const TensorPlace& place, const TensorForm& signature) {
  if (place.type != signature.type || place.shape.size() != signature.shape.size()) return false;
  for (size_t i = 0; i < place.shape.size(); ++i) {
    if (signature.shape[i] != -1 && signature.shape[i] != place.shape[i]) return false;
  }
  return true;
}

std::string SignatureText(at::ScalarType type, const std::vector<int64_t>& shape) {
  return absl::StrCat(c10::toString(type), " ", ShapeText(shape));
}

absl::Status CheckExpected(const std::vector<TensorPlace>& places, const std::vector<TensorForm>& expected) {
  std::vector<const TensorPlace*> defined;
  for (const TensorPlace& place : places) {
    if (place.defined) defined.push_back(&place);
  }
  if (defined.empty()) return absl::OkStatus();
  if (defined.size() != expected.size()) {
    return BadRankMessage("values", absl::StrCat("must have ", expected.size(), " tensors, as the plan says"),
                          absl::StrCat(defined.size()));
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (Matches(*defined[i], expected[i])) continue;
    return BadRankMessage(defined[i]->field,
                          "must be " + SignatureText(expected[i].type, expected[i].shape) + ", as the plan says",
                          SignatureText(defined[i]->type, defined[i]->shape));
  }
  return absl::OkStatus();
}

absl::Status CheckPayload(const std::vector<TensorPlace>& places, int64_t payload_bytes) {
  int64_t left = payload_bytes;
  for (const TensorPlace& place : places) {
    if (place.bytes > left) {
      return BadRankMessage(place.field, absl::StrCat("must fit into what is left of the payload, ", left, " bytes"),
                            absl::StrCat(place.bytes, " bytes"));
    }
    left -= place.bytes;
  }
  if (left == 0) return absl::OkStatus();
  return BadRankMessage("payload_bytes", absl::StrCat("must be ", payload_bytes - left, ", as the tensors say"),
                        absl::StrCat(payload_bytes));
}

}  // namespace

absl::StatusOr<EncodedMessage> EncodeTensorMessage(const MessageKey& key, const Batch& values,
                                                   int64_t max_header_bytes) {
  Encoder encoder;
  PackedWriter& out = encoder.out();
  out.Put(key.run);
  out.Put(static_cast<uint8_t>(key.kind));
  out.Put(key.stage);
  out.Put(key.micro_batch);
  out.Put(key.peer);
  out.Put(static_cast<uint8_t>(values.atomic()));
  out.Put(static_cast<uint8_t>(values.spread()));
  out.Put(static_cast<uint32_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    PENSTOCK_RETURN_IF_ERROR(encoder.Put(values[i], absl::StrCat("values[", i, "]"), 0));
    if (static_cast<int64_t>(out.size()) <= max_header_bytes) continue;
    return Error(absl::StatusCode::kResourceExhausted, "TENSOR_TOO_LARGE",
                 absl::StrCat("values: all but the tensors' elements must take at most ", max_header_bytes,
                              " bytes between ranks, got ", out.size()))
        .With("field", "values")
        .With("value", absl::StrCat(out.size()));
  }
  return encoder.Take();
}

absl::StatusOr<DecodedMessage> DecodeTensorMessage(std::string_view header, int64_t payload_bytes,
                                                   const Admission& admit) {
  Decoder decoder(header);
  DecodedMessage message;
  PENSTOCK_RETURN_IF_ERROR(decoder.GetKey(&message.key));
  const std::vector<TensorForm>* expected = nullptr;
  if (admit) {
    PENSTOCK_ASSIGN_OR_RETURN(expected, admit(message.key));
  }
  Batch shells;
  PENSTOCK_RETURN_IF_ERROR(decoder.GetBatch(&shells));
  PENSTOCK_RETURN_IF_ERROR(CheckPayload(decoder.places(), payload_bytes));
  if (expected != nullptr) PENSTOCK_RETURN_IF_ERROR(CheckExpected(decoder.places(), *expected));
  auto next = decoder.places().begin();
  PENSTOCK_RETURN_IF_ERROR(RunTorch([&] {
    message.values = shells.MapTensors([&](const at::Tensor&) {
      const TensorPlace& place = *next++;
      if (!place.defined) return at::Tensor();
      at::Tensor tensor = EmptyAt(place);
      message.places.push_back({.data = static_cast<char*>(tensor.mutable_data_ptr()),
                                .bytes = place.bytes,
                                .owner = std::make_shared<const at::Tensor>(tensor)});
      return tensor;
    });
  }));
  return message;
}

absl::Status CheckArrived(const Batch& values) {
  const Tensors tensors = values.AllTensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || tensors[i].scalar_type() != at::kBool) continue;
    const auto* bytes = static_cast<const uint8_t*>(tensors[i].const_data_ptr());
    const auto* end = bytes + tensors[i].nbytes();
    const auto* wrong = std::find_if(bytes, end, [](uint8_t byte) { return byte > 1; });
    if (wrong == end) continue;
    return BadRankMessage(absl::StrCat("tensors[", i, "].data"), "every bool must be 0 or 1", absl::StrCat(*wrong));
  }
  return absl::OkStatus();
}

}  // namespace penstock
