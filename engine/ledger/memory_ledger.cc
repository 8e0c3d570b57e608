#include "engine/ledger/memory_ledger.h"

#include <algorithm>
#include <utility>

#include "engine/base/caller_share.h"
#include "engine/base/check.h"
#include "engine/base/status_macros.h"
#include "engine/ledger/memory_refused.h"

namespace penstock {
namespace {

size_t IndexOf(MemoryClass kind) { return static_cast<size_t>(kind); }

}  // namespace

int64_t DefaultMemoryLimit(int64_t bound_bytes, int64_t process_bytes) {
  return std::max<int64_t>(0, bound_bytes / 10 * 9 - process_bytes);
}

absl::StatusOr<MemoryReservation> TakeMemory(MemoryLedger* ledger, MemoryHolder holder, int64_t bytes) {
  if (ledger == nullptr) return MemoryReservation();
  return ledger->Take(std::move(holder), bytes);
}

MemoryReservation TakeMemoryAnyway(MemoryLedger* ledger, MemoryHolder holder, int64_t bytes) {
  return ledger == nullptr ? MemoryReservation() : ledger->TakeAnyway(std::move(holder), bytes);
}

MemoryLedger::MemoryLedger(Options options) : options_(std::move(options)) {
  pools_.fill(kNoPool);
  for (size_t i = 0; i < options_.pools.size(); ++i) {
    for (const MemoryClass kind : options_.pools[i].classes) {
      PENSTOCK_CHECK(pools_[IndexOf(kind)] == kNoPool);
      pools_[IndexOf(kind)] = i;
      classes_[IndexOf(kind)].limit_bytes = options_.pools[i].limit_bytes;
      classes_[IndexOf(kind)].kept_bytes = options_.pools[i].kept_bytes;
    }
  }
}

MemoryLedger::~MemoryLedger() {
  absl::MutexLock lock(&mu_);
  PENSTOCK_CHECK(accounts_.empty());  // a reservation would give back to what is gone
}

const MemoryPool* MemoryLedger::PoolOf(MemoryClass kind) const {
  const size_t pool = pools_[IndexOf(kind)];
  return pool == kNoPool ? nullptr : &options_.pools[pool];
}

int64_t MemoryLedger::UsedOf(const MemoryPool& pool) const {
  int64_t bytes = 0;
  for (const MemoryClass kind : pool.classes) bytes += classes_[IndexOf(kind)].bytes;
  return bytes;
}

int64_t MemoryLedger::OwnedOf(const Owned& owned, const MemoryPool& pool) const {
  int64_t bytes = 0;
  for (const MemoryClass kind : pool.classes) bytes += owned.bytes[IndexOf(kind)];
  return bytes;
}

MemoryLedger::AccountEntry MemoryLedger::Open(MemoryHolder holder) {
  // Where there is no memory for the account, the identity goes with its next one.
  const auto owned = identities_.try_emplace(holder.identity).first;
  const auto [account, fresh] = accounts_.try_emplace(std::move(holder));
  if (fresh) {
    account->second.owned = owned;
    ++owned->second.accounts;
  }
  ++account->second.reservations;
  ++classes_[IndexOf(account->first.kind)].reservations;
  return account;
}

void MemoryLedger::Close(AccountEntry account) {
  --classes_[IndexOf(account->first.kind)].reservations;
  if (--account->second.reservations > 0) return;
  PENSTOCK_CHECK(account->second.bytes == 0);
  const auto owned = account->second.owned;
  accounts_.erase(account);
  if (--owned->second.accounts == 0) identities_.erase(owned);
}

bool MemoryLedger::Fits(const AccountEntry& account, int64_t more, Refused* refused) const {
  const MemoryPool* const own = PoolOf(account->first.kind);
  const auto refuse = [&](const MemoryPool* pool, bool share, int64_t limit, int64_t free) {
    refused->pool = pool;
    refused->share = share;
    refused->limit = limit;
    refused->free = std::max<int64_t>(0, free);
    refused->used = limit - refused->free;
    return false;
  };
  if (own != nullptr) {
    const int64_t used = UsedOf(*own);
    const int64_t held = OwnedOf(account->second.owned->second, *own);
    const int64_t share =
        own->identity_bytes > 0 ? own->identity_bytes : CallerShare(own->limit_bytes, /*others=*/used > held);
    if (more > own->limit_bytes - used) return refuse(own, false, own->limit_bytes, own->limit_bytes - used);
    // The first of each needs room only.
    const bool first = own->identity_bytes == 0 && held == 0;
    if (!first && more > share - held) return refuse(own, true, share, share - held);
  }
  int64_t kept = 0;
  for (const MemoryPool& pool : options_.pools) {
    if (&pool != own) kept += std::max<int64_t>(0, pool.kept_bytes - UsedOf(pool));
  }
  const int64_t free = options_.limit_bytes - bytes_ - kept;
  return more <= free || refuse(nullptr, false, options_.limit_bytes, free);
}

void MemoryLedger::Add(AccountEntry account, int64_t more) {
  const MemoryClass kind = account->first.kind;
  ClassUse& use = classes_[IndexOf(kind)];
  account->second.bytes += more;
  account->second.owned->second.bytes[IndexOf(kind)] += more;
  use.bytes += more;
  use.peak_bytes = std::max(use.peak_bytes, use.bytes);
  bytes_ += more;
  if (options_.changed && more != 0) options_.changed(kind, use.bytes);
}

absl::Status MemoryLedger::Grow(AccountEntry account, int64_t more) {
  Refused refused;
  {
    absl::MutexLock lock(&mu_);
    if (Fits(account, more, &refused)) {
      Add(account, more);
      return absl::OkStatus();
    }
    ++classes_[IndexOf(account->first.kind)].refusals;
    refused.asking = account->first;
    refused.asked = more;
    for (const auto& [holder, other] : accounts_) {
      const bool counts = refused.pool == nullptr || PoolOf(holder.kind) == refused.pool;
      if (counts && other.bytes > 0) refused.holders.emplace_back(holder, other.bytes);
    }
  }
  if (options_.refused) options_.refused(refused.asking.kind);
  return Refusal(refused);
}

absl::StatusOr<MemoryReservation> MemoryLedger::Take(MemoryHolder holder, int64_t bytes) {
  PENSTOCK_CHECK(bytes >= 0);
  MemoryReservation taken = TakeAnyway(std::move(holder), 0);
  PENSTOCK_RETURN_IF_ERROR(taken.Resize(bytes));
  return taken;
}

MemoryReservation MemoryLedger::TakeAnyway(MemoryHolder holder, int64_t bytes) {
  PENSTOCK_CHECK(bytes >= 0);
  absl::MutexLock lock(&mu_);
  const AccountEntry account = Open(std::move(holder));
  Add(account, bytes);
  return MemoryReservation(this, account, bytes);
}

MemoryLedger::Statement MemoryLedger::State() const {
  Statement state{.limit_bytes = options_.limit_bytes};
  {
    absl::MutexLock lock(&mu_);
    state.bytes = bytes_;
    state.classes = classes_;
    for (const auto& [holder, account] : accounts_) {
      if (account.bytes > 0) state.holders.emplace_back(holder, account.bytes);
    }
  }
  std::stable_sort(state.holders.begin(), state.holders.end(),
                   [](const auto& one, const auto& other) { return one.second > other.second; });
  return state;
}

int64_t MemoryLedger::bytes() const {
  absl::MutexLock lock(&mu_);
  return bytes_;
}

int64_t MemoryLedger::BytesOf(MemoryClass kind) const {
  absl::MutexLock lock(&mu_);
  return classes_[IndexOf(kind)].bytes;
}

MemoryReservation::MemoryReservation(MemoryReservation&& other) noexcept
    : ledger_(std::exchange(other.ledger_, nullptr)),
      account_(other.account_),
      bytes_(std::exchange(other.bytes_, 0)) {}

MemoryReservation& MemoryReservation::operator=(MemoryReservation&& other) noexcept {
  if (this == &other) return *this;
  Release();
  ledger_ = std::exchange(other.ledger_, nullptr);
  account_ = other.account_;
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

absl::Status MemoryReservation::Resize(int64_t bytes) {
  PENSTOCK_CHECK(bytes >= 0);
  if (bytes <= bytes_) {
    ShrinkTo(bytes);
    return absl::OkStatus();
  }
  if (ledger_ != nullptr) PENSTOCK_RETURN_IF_ERROR(ledger_->Grow(account_, bytes - bytes_));
  bytes_ = bytes;
  return absl::OkStatus();
}

void MemoryReservation::ResizeAnyway(int64_t bytes) {
  PENSTOCK_CHECK(bytes >= 0);
  if (ledger_ != nullptr) {
    absl::MutexLock lock(&ledger_->mu_);
    ledger_->Add(account_, bytes - bytes_);
  }
  bytes_ = bytes;
}

void MemoryReservation::ShrinkTo(int64_t bytes) {
  if (bytes < bytes_) ResizeAnyway(bytes);
}

absl::Status MemoryReservation::Become(MemoryClass kind) {
  if (ledger_ == nullptr || account_->first.kind == kind) return absl::OkStatus();
  MemoryHolder holder = account_->first;
  holder.kind = kind;
  // Within a pool nothing is taken that is not held already.
  if (ledger_->PoolOf(kind) != nullptr && ledger_->PoolOf(kind) == ledger_->PoolOf(account_->first.kind)) {
    MemoryReservation moved = ledger_->TakeAnyway(std::move(holder), 0);
    absl::MutexLock lock(&ledger_->mu_);
    ledger_->Add(account_, -bytes_);
    ledger_->Add(moved.account_, bytes_);
    std::swap(account_, moved.account_);
    moved.bytes_ = 0;
    return absl::OkStatus();
  }
  PENSTOCK_ASSIGN_OR_RETURN(MemoryReservation moved, ledger_->Take(std::move(holder), bytes_));
  *this = std::move(moved);
  return absl::OkStatus();
}

void MemoryReservation::GiveTo(MemoryReservation& other) {
  PENSTOCK_CHECK(other.ledger_ == ledger_);
  if (ledger_ != nullptr) {
    absl::MutexLock lock(&ledger_->mu_);
    const MemoryClass kind = account_->first.kind;
    PENSTOCK_CHECK(other.account_->first.kind == kind);
    const auto add = [&](MemoryLedger::AccountEntry account, int64_t more) {
      account->second.bytes += more;
      account->second.owned->second.bytes[IndexOf(kind)] += more;
    };
    add(account_, -bytes_);
    add(other.account_, bytes_);
  }
  other.bytes_ += std::exchange(bytes_, 0);
}

void MemoryReservation::Release() {
  if (ledger_ == nullptr) return;
  absl::MutexLock lock(&ledger_->mu_);
  ledger_->Add(account_, -bytes_);
  ledger_->Close(account_);
  ledger_ = nullptr;
  bytes_ = 0;
}

}  // namespace penstock
