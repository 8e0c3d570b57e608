#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/job_thread.h"
#include "engine/transport/carrier.h"

namespace penstock::testing {

// A carrier in memory: to reach another one is to copy.
//
// Model:     each has a thread that takes what the others give it, in their order, and copies it to where it lands.
// Lifecycle: none goes while another one sends to it; what is sent to one that has gone is dropped.
class FakeCarrier : public Carrier {
 public:
  // The ranks of one network reach each other, under the addresses that it makes.
  class Network {
   public:
    std::unique_ptr<FakeCarrier> Make(Rank self);

   private:
    friend class FakeCarrier;
    FakeCarrier* Find(const std::string& address) ABSL_LOCKS_EXCLUDED(mu_);
    void Forget(const std::string& address) ABSL_LOCKS_EXCLUDED(mu_);

    absl::Mutex mu_;
    int made_ ABSL_GUARDED_BY(mu_) = 0;
    std::map<std::string, FakeCarrier*> carriers_ ABSL_GUARDED_BY(mu_);
  };

  ~FakeCarrier() override;

  std::string address() const override { return address_; }
  absl::Status Start(const std::map<Rank, std::string>& peers, Handlers handlers) override ABSL_LOCKS_EXCLUDED(mu_);
  void Send(Rank to, Frame frame) override ABSL_LOCKS_EXCLUDED(mu_);
  void Disconnect(Rank peer, const absl::Status& why) override ABSL_LOCKS_EXCLUDED(mu_);
  void Close() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  FakeCarrier(Network* network, Rank self, std::string address)
      : network_(network), self_(self), address_(std::move(address)) {}
  void Take(Rank from, const Frame& frame);

  Network* const network_;
  const Rank self_;
  const std::string address_;
  Handlers handlers_;  // constant after Start()
  absl::Mutex mu_;
  std::map<Rank, std::string> peers_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  JobThread thread_{"ps-fake"};
};

}  // namespace penstock::testing
