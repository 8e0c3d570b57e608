#include "client/cli/gzip_stream.h"

#include <isa-l/igzip_lib.h>

#include <array>
#include <vector>

#include "engine/base/check.h"

namespace penstock {

struct GzipStream::State {
  isal_zstream stream = {};
  std::vector<uint8_t> work = std::vector<uint8_t>(ISAL_DEF_LVL1_DEFAULT);
};

GzipStream::GzipStream() : state_(std::make_unique<State>()) {
  isal_deflate_init(&state_->stream);
  state_->stream.level = 1;
  state_->stream.level_buf = state_->work.data();
  state_->stream.level_buf_size = static_cast<uint32_t>(state_->work.size());
  state_->stream.gzip_flag = IGZIP_GZIP;
}

GzipStream::~GzipStream() = default;

std::string GzipStream::Add(std::string_view bytes) { return Deflate(bytes, false); }

std::string GzipStream::Finish() { return Deflate("", true); }

std::string GzipStream::Deflate(std::string_view bytes, bool last) {
  isal_zstream& stream = state_->stream;
  // The library reads only; its type says otherwise.
  stream.next_in = const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(bytes.data()));
  stream.avail_in = static_cast<uint32_t>(bytes.size());
  stream.end_of_stream = last ? 1 : 0;
  std::string out;
  std::array<uint8_t, 16 << 10> piece;
  do {
    stream.next_out = piece.data();
    stream.avail_out = piece.size();
    PENSTOCK_CHECK(isal_deflate(&stream) == COMP_OK);
    out.append(reinterpret_cast<const char*>(piece.data()), piece.size() - stream.avail_out);
  } while (stream.avail_out == 0);
  return out;
}

}  // namespace penstock
