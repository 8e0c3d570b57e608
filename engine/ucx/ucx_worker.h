#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/ids.h"
#include "engine/transport/carrier.h"

namespace penstock {

struct UcxLibrary;

// UCX's side of a carrier: one context, one worker, one endpoint for each peer.
//
// Model:     A frame is an active message: its header travels with the request, a payload of more than kEagerBytes by
//            rendezvous, so that nothing of it moves before the receiver has named the place. To a smaller one the two
//            messages more, which wake a thread each, cost more than that.
// Owns:      frames and landings until UCX is done with them: their memory is in use until then, also after an error.
// Threads:   any, one at a time. Handlers run within Turn() alone, and a frame that is done with ends within Turn() or after
//            TakeEnded(), so that Send() runs nobody's code. UCX's callbacks throw nothing.
// Lifecycle: Create(), Start(); Send(), Disconnect() and Turn() in turns; Flush(), then Turn() until Drained(); Close().
// Units:     nanoseconds of the owner's clock.
// Fails:     as UcxCarrier.
class UcxWorker {
 private:
  struct SendOperation;

 public:
  static constexpr int64_t kEagerBytes = int64_t{256} << 10;  // a segment of UcxEnvironment() has room for it

  using Frames = std::list<std::shared_ptr<SendOperation>>;

  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create();
  ~UcxWorker();

  const std::string& address() const { return address_; }
  // Becomes readable when there is something to do, once Arm() has said that there is nothing now.
  int event_descriptor() const { return event_descriptor_; }
  bool Arm();

  absl::Status Start(const std::map<Rank, std::string>& peers, Carrier::Handlers handlers);
  // Whether a Turn() must follow: otherwise what is left to do comes with an event of the descriptor. A frame that is
  // dropped stays the caller's. Throws where there is no memory for it.
  bool Send(Rank to, Frame&& frame, int64_t deadline_nanos);
  // Frames that UCX is done with since the last Turn().
  Frames TakeEnded() { return std::exchange(ended_, {}); }
  void Disconnect(Rank peer, const absl::Status& why);
  void DisconnectAll(const absl::Status& why);

  // Does what there is to do for the moment; whether there may be more. Gives peers up whose frames are too late.
  bool Turn(int64_t now_nanos);
  // When the next frame will be too late; INT64_MAX if none is under way.
  int64_t NextDeadline() const;

  // Whether every frame has left, and every Flush() has ended.
  bool Drained() const;
  // Asks for everything to be handed to the network.
  void Flush();
  // Ends the edges, waits until UCX is done with all memory of frames and landings, which comes at once, and closes
  // UCX, so that the peers see it.
  void Close();

 private:
  struct Peer;
  struct ReceiveOperation;

  explicit UcxWorker(const UcxLibrary* ucx);
  absl::Status Open();
  absl::StatusOr<ucp_ep_h> Connect(Peer* peer, const std::string& address);
  absl::Status LostBecause(std::string_view what, ucs_status_t status) const;
  absl::Status Lost(std::string_view what, ucs_status_t status) const;
  absl::Status Unusable(std::string_view what, ucs_status_t status) const;
  void EndSend(SendOperation* operation, ucs_status_t status);
  void EndReceive(ReceiveOperation* operation, ucs_status_t status);
  void GiveUp(Peer& peer, const absl::Status& why);
  void CloseEndpoint(Peer& peer);
  ucs_status_t OnFrame(std::string_view header, void* data, size_t bytes, bool rendezvous);

  static ucs_status_t FrameCallback(void* worker, const void* header, size_t header_bytes, void* data, size_t bytes,
                                    const ucp_am_recv_param_t* param);
  static void SendCallback(void* request, ucs_status_t status, void* operation);
  static void ReceiveCallback(void* request, ucs_status_t status, size_t bytes, void* operation);
  static void ErrorCallback(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  const UcxLibrary* const ucx_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_descriptor_ = -1;
  std::string address_;
  Carrier::Handlers handlers_;
  std::map<Rank, std::unique_ptr<Peer>> peers_;
  Frames ended_;
  std::list<std::unique_ptr<ReceiveOperation>> receives_;
  std::vector<ucs_status_ptr_t> requests_;  // flushes and closes; there is room for those of each peer

  // Why peers are lost, made before: a loss takes no memory that it needs.
  const absl::Status lost_;
  const absl::Status late_;
  const absl::Status closed_;
};

}  // namespace penstock
