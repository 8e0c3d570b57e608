#include "engine/transport/frame_header.h"

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/rank_message.h"
#include "engine/base/status_macros.h"
#include "engine/transport/packed_bytes.h"

namespace penstock {
namespace {

constexpr uint32_t kMagic = 0x6b747350;  // "Pstk"
constexpr size_t kMaximumNameBytes = 256;
constexpr size_t kMaximumTextBytes = 4096;

}  // namespace

std::string EncodeFrameHeader(const FrameHeader& header) {
  PackedWriter out;
  out.Put(kMagic);
  for (const char byte : header.group.key) out.Put(byte);
  out.Put(header.group.epoch.value());
  out.Put(header.group.generation);
  out.Put(header.from.value());
  out.Put(header.to.value());
  out.Put(static_cast<uint8_t>(header.kind));
  out.PutText(header.channel.pipeline);
  out.Put(header.channel.epoch.value());
  out.Put(header.stream.run);
  out.Put(header.stream.number);
  out.Put(header.payload_bytes);
  out.Put(header.messages);
  std::string bytes = out.Take();
  bytes.append(header.content);
  return bytes;
}

absl::StatusOr<FrameHeader> DecodeFrameHeader(std::string_view bytes) {
  PackedReader in(bytes);
  uint32_t magic = 0;
  PENSTOCK_RETURN_IF_ERROR(in.Get("magic", &magic));
  if (magic != kMagic) return BadRankMessage("magic", absl::StrCat("must be ", kMagic), absl::StrCat(magic));
  FrameHeader header;
  for (char& byte : header.group.key) PENSTOCK_RETURN_IF_ERROR(in.Get("key", &byte));
  uint32_t epoch = 0, channel_epoch = 0;
  int32_t from = 0, to = 0;
  uint8_t kind = 0;
  std::string_view pipeline;
  PENSTOCK_RETURN_IF_ERROR(in.Get("epoch", &epoch));
  PENSTOCK_RETURN_IF_ERROR(in.Get("generation", &header.group.generation));
  PENSTOCK_RETURN_IF_ERROR(in.Get("from", &from));
  PENSTOCK_RETURN_IF_ERROR(in.Get("to", &to));
  PENSTOCK_RETURN_IF_ERROR(in.Get("kind", &kind));
  PENSTOCK_RETURN_IF_ERROR(in.GetText("pipeline", &pipeline));
  PENSTOCK_RETURN_IF_ERROR(in.Get("pipeline_epoch", &channel_epoch));
  PENSTOCK_RETURN_IF_ERROR(in.Get("stream.run", &header.stream.run));
  PENSTOCK_RETURN_IF_ERROR(in.Get("stream.number", &header.stream.number));
  PENSTOCK_RETURN_IF_ERROR(in.Get("payload_bytes", &header.payload_bytes));
  PENSTOCK_RETURN_IF_ERROR(in.Get("messages", &header.messages));
  if (kind < 1 || kind > static_cast<uint8_t>(FrameKind::kEcho)) {
    return BadRankMessage("kind", "must be known", absl::StrCat(kind));
  }
  if (pipeline.size() > kMaximumNameBytes) {
    return BadRankMessage("pipeline", absl::StrCat("must have at most ", kMaximumNameBytes, " bytes"),
                          absl::StrCat(pipeline.size()));
  }
  for (const auto& [field, value] : {std::pair("payload_bytes", header.payload_bytes), {"messages", header.messages}}) {
    if (value < 0) return BadRankMessage(field, "must not be negative", absl::StrCat(value));
  }
  header.group.epoch = Epoch(epoch);
  header.from = Rank(from);
  header.to = Rank(to);
  header.kind = static_cast<FrameKind>(kind);
  header.channel = {std::string(pipeline), Epoch(channel_epoch)};
  header.content = in.rest();
  return header;
}

std::string EncodeError(const absl::Status& status) {
  PackedWriter out;
  out.Put(static_cast<int32_t>(status.code()));
  out.PutText(ReasonOf(status));
  const absl::string_view text = status.message().substr(0, kMaximumTextBytes);
  out.PutText({text.data(), text.size()});
  const std::map<std::string, std::string> values = ValuesOf(status);
  out.Put(static_cast<uint32_t>(values.size()));
  for (const auto& [name, value] : values) {
    out.PutText(std::string_view(name).substr(0, kMaximumNameBytes));
    out.PutText(std::string_view(value).substr(0, kMaximumNameBytes));
  }
  return out.Take();
}

absl::Status DecodeError(std::string_view bytes) {
  PackedReader in(bytes);
  int32_t code = 0;
  std::string_view reason, text;
  uint32_t values = 0;
  PENSTOCK_RETURN_IF_ERROR(in.Get("refusal.code", &code));
  PENSTOCK_RETURN_IF_ERROR(in.GetText("refusal.reason", &reason));
  PENSTOCK_RETURN_IF_ERROR(in.GetText("refusal.message", &text));
  PENSTOCK_RETURN_IF_ERROR(in.Get("refusal.values", &values));
  const bool known = code > 0 && code <= static_cast<int32_t>(absl::StatusCode::kUnauthenticated);
  Error error(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown, reason, text);
  for (uint32_t i = 0; i < values; ++i) {
    std::string_view name, value;
    PENSTOCK_RETURN_IF_ERROR(in.GetText("refusal.values", &name));
    PENSTOCK_RETURN_IF_ERROR(in.GetText("refusal.values", &value));
    error.With(name, value);
  }
  return error;
}

}  // namespace penstock
