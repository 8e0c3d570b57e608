#pragma once

// Bytes from rank to rank. Carriers differ in what they stand on (UCX, gRPC, memory); what a message means, whether it
// may come, and how many may be under way is decided above them, once for all (peer_edges.h).

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/ids.h"

namespace penstock {

inline constexpr int64_t kMaximumFrameHeaderBytes = 8000;  // what UCX takes with a message

// Bytes of a payload, to send or to be filled. `owner` keeps them where they are.
struct Piece {
  char* data = nullptr;
  int64_t bytes = 0;
  std::shared_ptr<const void> owner = nullptr;
};

int64_t ByteSize(const std::vector<Piece>& pieces);

// What moves as one: a small header, which the receiver judges first, and then the payload.
struct Frame {
  std::string header;  // at most kMaximumFrameHeaderBytes
  std::vector<Piece> payload;
};

// Where the payload of an arriving frame goes.
struct Landing {
  std::vector<Piece> places;                   // together as long as the payload; none of it is written before
  std::function<void(absl::Status)> on_ended;  // called once: the places are full, or will never be
};

// Moves frames from this rank to others.
//
// Model:     One edge per pair of ranks and direction. Frames of an edge arrive in the order of their Send() calls, as far
//            as their headers go; payloads end in any order.
// Threads:   Any method from any thread. Handlers run on the carrier's threads, one at a time for each edge, without a
//            lock; they may call Send() and Disconnect(), must not block, and throw nothing.
// Lifecycle: Start() once, with the addresses that the other ranks' carriers told; then Send() at will. Close() takes no
//            more frames, waits until those under way have left, each until its deadline, and returns when no handler runs
//            or will run. The destructor closes.
// Units:     bytes; a frame that its peer has not taken within Options of the carrier costs the peer.
// Fails:     Nothing is reported to the sender of a frame alone. An edge that fails is lost: `on_lost` tells once, with
//            UNAVAILABLE / RANK_LOST; frames of a lost edge, and frames after Close(), are dropped.
class Carrier {
 public:
  struct Handlers {
    // Judges a header before memory is taken for its payload. An error turns the payload away; the edge stays.
    std::function<absl::StatusOr<Landing>(std::string_view header, int64_t payload_bytes)> on_header;
    std::function<void(Rank peer, const absl::Status& why)> on_lost;
  };

  virtual ~Carrier() = default;

  // What Start() of other ranks' carriers needs to reach this one.
  virtual std::string address() const = 0;
  virtual absl::Status Start(const std::map<Rank, std::string>& peers, Handlers handlers) = 0;
  // Never blocks. Keeps the payload's owners until its bytes have been read, which may be before it returns: an owner's end
  // must need no lock that the caller holds.
  virtual void Send(Rank to, Frame frame) = 0;
  // Gives an edge up, as if it had failed; `on_lost` is called with `why`. What the peer sends may still come, and the
  // peer itself may not notice.
  virtual void Disconnect(Rank peer, const absl::Status& why) = 0;
  virtual void Close() = 0;
};

}  // namespace penstock
