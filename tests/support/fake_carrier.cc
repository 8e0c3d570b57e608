#include "tests/support/fake_carrier.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace penstock::testing {

std::unique_ptr<FakeCarrier> FakeCarrier::Network::Make(Rank self) {
  absl::MutexLock lock(&mu_);
  const std::string address = absl::StrCat("fake-", made_++);
  std::unique_ptr<FakeCarrier> carrier(new FakeCarrier(this, self, address));
  carriers_[address] = carrier.get();
  return carrier;
}

FakeCarrier* FakeCarrier::Network::Find(const std::string& address) {
  absl::MutexLock lock(&mu_);
  const auto found = carriers_.find(address);
  return found == carriers_.end() ? nullptr : found->second;
}

void FakeCarrier::Network::Forget(const std::string& address) {
  absl::MutexLock lock(&mu_);
  carriers_.erase(address);
}

FakeCarrier::~FakeCarrier() {
  Close();
  network_->Forget(address_);
}

absl::Status FakeCarrier::Start(const std::map<Rank, std::string>& peers, Handlers handlers) {
  handlers_ = std::move(handlers);
  absl::MutexLock lock(&mu_);
  peers_ = peers;
  return absl::OkStatus();
}

void FakeCarrier::Send(Rank to, Frame frame) {
  FakeCarrier* receiver = nullptr;
  {
    absl::MutexLock lock(&mu_);
    const auto peer = peers_.find(to);
    if (closed_ || peer == peers_.end()) return;
    receiver = network_->Find(peer->second);
  }
  if (receiver == nullptr) return;
  receiver->thread_.Post([receiver, from = self_, frame = std::move(frame)] { receiver->Take(from, frame); });
}

void FakeCarrier::Take(Rank from, const Frame& frame) {
  {
    absl::MutexLock lock(&mu_);
    if (!peers_.contains(from)) return;
  }
  const absl::StatusOr<Landing> landing = handlers_.on_header(frame.header, ByteSize(frame.payload));
  if (!landing.ok() || !landing->on_ended) return;
  std::string bytes;
  for (const Piece& piece : frame.payload) bytes.append(piece.data, piece.bytes);
  const char* next = bytes.data();
  for (const Piece& place : landing->places) {
    if (place.bytes > 0) std::memcpy(place.data, next, place.bytes);
    next += place.bytes;
  }
  landing->on_ended(absl::OkStatus());
}

// The other side notices as if this one's process had ended.
void FakeCarrier::Disconnect(Rank peer, const absl::Status& why) {
  FakeCarrier* other = nullptr;
  {
    absl::MutexLock lock(&mu_);
    const auto found = peers_.find(peer);
    if (found == peers_.end()) return;
    other = network_->Find(found->second);
    peers_.erase(found);
  }
  thread_.Post([this, peer, why] { handlers_.on_lost(peer, why); });
  if (other == nullptr) return;
  other->thread_.Post(
      [other, self = self_] { other->Disconnect(self, absl::UnavailableError("the connection ended")); });
}

void FakeCarrier::Close() {
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  thread_.Close();
}

}  // namespace penstock::testing
