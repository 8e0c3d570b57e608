#include "engine/ucx/ucx_worker.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/guard.h"
#include "engine/base/status_macros.h"
#include "engine/ucx/ucx_environment.h"
#include "engine/ucx/ucx_library.h"
#include "engine/wire/checksum.h"

namespace penstock {
namespace {

constexpr unsigned kFrames = 1;                 // the number of our active message
constexpr uint32_t kAddressMagic = 0x58435550;  // "PUCX"
constexpr size_t kDescriptors = 32;             // that a worker may open
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// What a UCX call takes for a list of pieces.
struct Buffer {
  explicit Buffer(const std::vector<Piece>& pieces) {
    for (const Piece& piece : pieces) {
      if (piece.bytes > 0) parts.push_back({.buffer = piece.data, .length = static_cast<size_t>(piece.bytes)});
    }
  }
  void* data() { return parts.size() > 1 ? parts.data() : parts.empty() ? nullptr : parts[0].buffer; }
  size_t count() const { return parts.size() > 1 ? parts.size() : parts.empty() ? 0 : parts[0].length; }
  void Describe(ucp_request_param_t* param) const {
    param->op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param->datatype = parts.size() > 1 ? ucp_dt_make_iov() : ucp_dt_make_contig(1);
    param->memory_type = UCS_MEMORY_TYPE_HOST;
  }

  std::vector<ucp_dt_iov_t> parts;
};

// An address as peers are told it. UCX reads one without looking how long it is, and ends the process where it makes no
// sense: nothing may come to it that no UcxWorker has told.
constexpr size_t kAddressFrame = 2 * sizeof(uint32_t);

std::string Framed(std::string_view address) {
  const uint32_t frame[] = {kAddressMagic, Crc32c(address)};
  static_assert(sizeof(frame) == kAddressFrame);
  std::string framed(reinterpret_cast<const char*>(frame), sizeof(frame));
  framed.append(address);
  return framed;
}

bool IsAddress(std::string_view framed) {
  return framed.size() > kAddressFrame && framed == Framed(framed.substr(kAddressFrame));
}

// UCX ends the process where it finds none for its sockets.
absl::Status CheckDescriptors() {
  std::array<int, kDescriptors> held;
  for (int& one : held) one = eventfd(0, EFD_CLOEXEC);
  const bool all = held.back() >= 0;
  for (const int one : held) {
    if (one >= 0) close(one);
  }
  return all ? absl::OkStatus()
             : Error(absl::StatusCode::kResourceExhausted, "HOST_MEMORY",
                     absl::StrCat("fewer than ", kDescriptors, " descriptors are left for UCX"));
}

}  // namespace

struct UcxWorker::Peer {
  UcxWorker* worker = nullptr;
  Rank rank;
  ucp_ep_h endpoint = nullptr;  // null once it is closed
  Frames sends;                 // in the order of their deadlines
  absl::Status failure;         // not OK: nothing can be sent any more
  bool told = false;
  bool connected[2] = {};  // frames without and with a rendezvous have ended
};

struct UcxWorker::SendOperation {
  SendOperation(Peer* its_peer, Frame its_frame, int64_t deadline)
      : peer(its_peer),
        frame(std::move(its_frame)),
        buffer(frame.payload),
        rendezvous(ByteSize(frame.payload) > kEagerBytes),
        deadline_nanos(deadline) {}

  Peer* const peer;
  const Frame frame;
  Buffer buffer;
  const bool rendezvous;
  const int64_t deadline_nanos;
  Frames::iterator place;
};

struct UcxWorker::ReceiveOperation {
  ReceiveOperation(UcxWorker* its_worker, const std::vector<Piece>& places) : worker(its_worker), buffer(places) {}

  UcxWorker* const worker;
  Landing landing;
  Buffer buffer;
  std::list<std::unique_ptr<ReceiveOperation>>::iterator place;
};

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create() {
  PENSTOCK_RETURN_IF_ERROR(CheckUcxEnvironment());
  PENSTOCK_ASSIGN_OR_RETURN(const UcxLibrary* const ucx, LoadUcxLibrary());
  std::unique_ptr<UcxWorker> worker(new UcxWorker(ucx));
  PENSTOCK_RETURN_IF_ERROR(worker->Open());
  return worker;
}

UcxWorker::UcxWorker(const UcxLibrary* ucx)
    : ucx_(ucx),
      lost_(Error(absl::StatusCode::kUnavailable, "RANK_LOST", "its edge has failed")),
      late_(Error(absl::StatusCode::kUnavailable, "RANK_LOST", "it has not taken a frame in time")),
      closed_(absl::CancelledError("closed")) {}

UcxWorker::~UcxWorker() { Close(); }

// What became of a peer, or of a frame of its. Throws nothing.
absl::Status UcxWorker::Lost(std::string_view what, ucs_status_t status) const {
  absl::Status lost = lost_;
  Guarded("the loss of an edge", [&] { lost = LostBecause(what, status); }).IgnoreError();
  return lost;
}

absl::Status UcxWorker::LostBecause(std::string_view what, ucs_status_t status) const {
  return Error(absl::StatusCode::kUnavailable, "RANK_LOST",
               absl::StrCat(absl::string_view(what.data(), what.size()), ": ", ucx_->ucs_status_string(status)));
}

// What this process lacks.
absl::Status UcxWorker::Unusable(std::string_view what, ucs_status_t status) const {
  const std::string text =
      absl::StrCat(absl::string_view(what.data(), what.size()), ": ", ucx_->ucs_status_string(status));
  if (status == UCS_ERR_NO_MEMORY) return Error(absl::StatusCode::kResourceExhausted, "HOST_MEMORY", text);
  const char* const devices = std::getenv("UCX_NET_DEVICES");
  return Error(absl::StatusCode::kFailedPrecondition, "LISTEN_FAILED",
               devices == nullptr ? text : absl::StrCat(text, " (UCX_NET_DEVICES=", devices, ")"));
}

absl::Status UcxWorker::Open() {
  PENSTOCK_RETURN_IF_ERROR(CheckDescriptors());
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucx_->ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return Unusable("UCX's settings can't be read", status);
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  status = ucx_->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  ucx_->ucp_config_release(config);
  if (status != UCS_OK) return Unusable("UCX can't start", status);

  ucp_worker_params_t worker_params = {};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  status = ucx_->ucp_worker_create(context_, &worker_params, &worker_);
  if (status != UCS_OK) return Unusable("UCX can't open a network device", status);
  status = ucx_->ucp_worker_get_efd(worker_, &event_descriptor_);
  if (status != UCS_OK) return Unusable("UCX has no event descriptor", status);

  ucp_worker_attr_t attributes = {};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  status = ucx_->ucp_worker_query(worker_, &attributes);
  if (status != UCS_OK) return Unusable("UCX does not tell its address", status);
  address_ = Framed({reinterpret_cast<const char*>(attributes.address), attributes.address_length});
  ucx_->ucp_worker_release_address(worker_, attributes.address);
  if (static_cast<int64_t>(attributes.max_am_header) < kMaximumFrameHeaderBytes) {
    return Error(absl::StatusCode::kFailedPrecondition, "FEATURE_DISABLED",
                 absl::StrCat("UCX takes headers of at most ", attributes.max_am_header, " bytes, ",
                              kMaximumFrameHeaderBytes, " are needed: its environment is not UcxEnvironment()"));
  }

  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG |
                       UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = kFrames;
  handler.cb = &FrameCallback;
  handler.arg = this;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  status = ucx_->ucp_worker_set_am_recv_handler(worker_, &handler);
  return status == UCS_OK ? absl::OkStatus() : Unusable("UCX can't receive", status);
}

absl::Status UcxWorker::Start(const std::map<Rank, std::string>& peers, Carrier::Handlers handlers) {
  handlers_ = std::move(handlers);
  requests_.reserve(2 * peers.size());
  for (const auto& [rank, address] : peers) {
    auto peer = std::make_unique<Peer>();
    peer->worker = this;
    peer->rank = rank;
    PENSTOCK_ASSIGN_OR_RETURN(peer->endpoint, Connect(peer.get(), address));
    peers_[rank] = std::move(peer);
  }
  return absl::OkStatus();
}

absl::StatusOr<ucp_ep_h> UcxWorker::Connect(Peer* peer, const std::string& address) {
  if (!IsAddress(address)) {
    return Error(
               absl::StatusCode::kUnavailable, "RANK_LOST",
               absl::StrCat("rank ", peer->rank.value(), " has told no address of UCX, but ", address.size(), " bytes"))
        .With("rank", ToString(peer->rank));
  }
  ucp_ep_params_t params = {};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data() + kAddressFrame);
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = &ErrorCallback, .arg = peer};
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = ucx_->ucp_ep_create(worker_, &params, &endpoint);
  if (status == UCS_OK) return endpoint;
  const std::string what = absl::StrCat("rank ", peer->rank.value(), " can't be reached");
  // Else it is this process that lacks something.
  const bool of_peer = status == UCS_ERR_UNREACHABLE || status == UCS_ERR_INVALID_ADDR;
  return of_peer ? WithValue(Lost(what, status), "rank", ToString(peer->rank)) : Unusable(what, status);
}

bool UcxWorker::Arm() { return ucx_->ucp_worker_arm(worker_) == UCS_OK; }

// --- Sending.

bool UcxWorker::Send(Rank to, Frame&& frame, int64_t deadline_nanos) {
  const auto found = peers_.find(to);
  if (found == peers_.end() || !found->second->failure.ok()) return false;
  Peer& peer = *found->second;
  peer.sends.push_back(std::make_shared<SendOperation>(&peer, std::move(frame), deadline_nanos));
  SendOperation& operation = *peer.sends.back();
  operation.place = std::prev(peer.sends.end());
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = &SendCallback;
  param.user_data = &operation;
  param.flags = operation.rendezvous ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  operation.buffer.Describe(&param);
  const std::string& header = operation.frame.header;  // UCX reads it until the operation ends
  const ucs_status_ptr_t request = ucx_->ucp_am_send_nbx(peer.endpoint, kFrames, header.data(), header.size(),
                                                         operation.buffer.data(), operation.buffer.count(), &param);
  const bool rendezvous = operation.rendezvous;
  const bool pending = UCS_PTR_IS_PTR(request);
  if (!pending) EndSend(&operation, UCS_PTR_STATUS(request));
  // While it connects, UCX leaves steps to the next Turn() of which no event tells.
  return !peer.failure.ok() || (pending && !peer.connected[rendezvous]);
}

void UcxWorker::SendCallback(void* request, ucs_status_t status, void* operation) {
  auto* const send = static_cast<SendOperation*>(operation);
  UcxWorker* const worker = send->peer->worker;
  worker->ucx_->ucp_request_free(request);
  worker->EndSend(send, status);
}

// A frame that the peer turned away has come to it all the same.
void UcxWorker::EndSend(SendOperation* operation, ucs_status_t status) {
  Peer& peer = *operation->peer;
  ended_.splice(ended_.end(), peer.sends, operation->place);
  if (status == UCS_OK) peer.connected[operation->rendezvous] = true;
  if (status != UCS_OK && status != UCS_ERR_REJECTED) GiveUp(peer, Lost("a frame can't be sent", status));
}

// --- Receiving.

ucs_status_t UcxWorker::FrameCallback(void* worker, const void* header, size_t header_bytes, void* data, size_t bytes,
                                      const ucp_am_recv_param_t* param) {
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const std::string_view text(static_cast<const char*>(header), header_bytes);
  return static_cast<UcxWorker*>(worker)->OnFrame(header_bytes == 0 ? std::string_view() : text, data, bytes,
                                                  rendezvous);
}

// What is returned but OK is what the sender's operation ends with.
ucs_status_t UcxWorker::OnFrame(std::string_view header, void* data, size_t bytes, bool rendezvous) {
  // Before Start() only strangers send, and members that have given this generation up.
  if (!handlers_.on_header) return rendezvous ? UCS_ERR_REJECTED : UCS_OK;
  absl::StatusOr<Landing> landing = handlers_.on_header(header, static_cast<int64_t>(bytes));
  if (!landing.ok()) return rendezvous ? UCS_ERR_REJECTED : UCS_OK;
  if (!landing->on_ended && bytes == 0) return UCS_OK;
  PENSTOCK_CHECK(ByteSize(landing->places) == static_cast<int64_t>(bytes));  // UCX aborts where a place is too small
  if (!rendezvous) {
    const char* from = static_cast<const char*>(data);
    for (const Piece& place : landing->places) {
      if (place.bytes > 0) std::memcpy(place.data, from, place.bytes);
      from += place.bytes;
    }
    landing->on_ended(absl::OkStatus());
    return UCS_OK;
  }
  const absl::Status kept =
      Guarded("a frame", [&] { receives_.push_back(std::make_unique<ReceiveOperation>(this, landing->places)); });
  if (!kept.ok()) {  // costs the edge: nobody may wait for a payload that was dropped
    landing->on_ended(kept);
    return UCS_ERR_NO_MEMORY;
  }
  ReceiveOperation& operation = *receives_.back();
  operation.landing = *std::move(landing);
  operation.place = std::prev(receives_.end());
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = &ReceiveCallback;
  param.user_data = &operation;
  operation.buffer.Describe(&param);
  const ucs_status_ptr_t request =
      ucx_->ucp_am_recv_data_nbx(worker_, data, operation.buffer.data(), operation.buffer.count(), &param);
  if (!UCS_PTR_IS_PTR(request)) EndReceive(&operation, UCS_PTR_STATUS(request));
  return UCS_OK;
}

void UcxWorker::ReceiveCallback(void* request, ucs_status_t status, size_t, void* operation) {
  auto* const receive = static_cast<ReceiveOperation*>(operation);
  receive->worker->ucx_->ucp_request_free(request);
  receive->worker->EndReceive(receive, status);
}

void UcxWorker::EndReceive(ReceiveOperation* operation, ucs_status_t status) {
  const std::unique_ptr<ReceiveOperation> ended = std::move(*operation->place);
  receives_.erase(operation->place);
  ended->landing.on_ended(status == UCS_OK ? absl::OkStatus() : Lost("a payload did not come whole", status));
}

// --- Peers that are lost.

void UcxWorker::ErrorCallback(void* peer, ucp_ep_h, ucs_status_t status) {
  auto* const failed = static_cast<Peer*>(peer);
  failed->worker->GiveUp(*failed, failed->worker->Lost("its edge has failed", status));
}

void UcxWorker::Disconnect(Rank peer, const absl::Status& why) {
  const auto found = peers_.find(peer);
  if (found != peers_.end()) GiveUp(*found->second, why);
}

void UcxWorker::DisconnectAll(const absl::Status& why) {
  for (const auto& [rank, peer] : peers_) GiveUp(*peer, why);
}

// Only notes it: UCX's callbacks are no place to end an endpoint.
void UcxWorker::GiveUp(Peer& peer, const absl::Status& why) {
  if (peer.failure.ok()) peer.failure = why;
}

// By force: what is under way ends as cancelled.
void UcxWorker::CloseEndpoint(Peer& peer) {
  const ucp_ep_h endpoint = std::exchange(peer.endpoint, nullptr);
  if (endpoint == nullptr) return;
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucx_->ucp_ep_close_nbx(endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) requests_.push_back(request);
}

// --- Turns.

bool UcxWorker::Turn(int64_t now_nanos) {
  bool more = ucx_->ucp_worker_progress(worker_) != 0;
  TakeEnded();
  std::erase_if(requests_, [this](ucs_status_ptr_t request) {
    if (ucx_->ucp_request_check_status(request) == UCS_INPROGRESS) return false;
    ucx_->ucp_request_free(request);
    return true;
  });
  for (const auto& [rank, peer] : peers_) {
    if (peer->failure.ok() && !peer->sends.empty() && peer->sends.front()->deadline_nanos <= now_nanos) {
      GiveUp(*peer, late_);
    }
    if (peer->failure.ok() || std::exchange(peer->told, true)) continue;
    CloseEndpoint(*peer);
    handlers_.on_lost(rank, peer->failure);
    more = true;
  }
  return more;
}

int64_t UcxWorker::NextDeadline() const {
  int64_t next = kNever;
  for (const auto& [rank, peer] : peers_) {
    if (peer->failure.ok() && !peer->sends.empty()) next = std::min(next, peer->sends.front()->deadline_nanos);
  }
  return next;
}

bool UcxWorker::Drained() const {
  const auto idle = [](const auto& entry) { return entry.second->sends.empty(); };
  return requests_.empty() && std::all_of(peers_.begin(), peers_.end(), idle);
}

void UcxWorker::Flush() {
  for (const auto& [rank, peer] : peers_) {
    if (!peer->failure.ok()) continue;
    ucp_request_param_t param = {};
    const ucs_status_ptr_t request = ucx_->ucp_ep_flush_nbx(peer->endpoint, &param);
    if (UCS_PTR_IS_PTR(request)) requests_.push_back(request);
  }
}

void UcxWorker::Close() {
  for (const auto& [rank, peer] : peers_) {
    GiveUp(*peer, closed_);
    peer->told = true;
    CloseEndpoint(*peer);
  }
  while (!Drained() || !receives_.empty()) Turn(/*now_nanos=*/0);
  if (worker_ != nullptr) ucx_->ucp_worker_destroy(std::exchange(worker_, nullptr));
  if (context_ != nullptr) ucx_->ucp_cleanup(std::exchange(context_, nullptr));
}

}  // namespace penstock
