// What a HandlePin gives of the content that it keeps.

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/handles/handle_entry.h"
#include "engine/handles/handle_store.h"

namespace penstock {

HandlePin::HandlePin(HandleStore* store, std::shared_ptr<HandleEntry> entry)
    : store_(store), entry_(std::move(entry)) {}

HandlePin& HandlePin::operator=(HandlePin&& other) noexcept {
  HandlePin old(std::move(*this));
  store_ = other.store_;
  entry_ = std::move(other.entry_);
  return *this;
}

HandlePin::~HandlePin() {
  if (entry_ != nullptr) store_->Unpin(entry_);
}

const HandleName& HandlePin::name() const { return entry_->name; }
HandleKind HandlePin::kind() const { return entry_->kind; }

bool HandlePin::settled() const {
  absl::MutexLock lock(&store_->mu_);
  return entry_->result.has_value();
}

absl::StatusOr<HandleContent> HandlePin::Content(HandleKind kind) const {
  if (entry_->kind != kind) {
    return HandleStore::HandleError(absl::StatusCode::kInvalidArgument, "HANDLE_KIND",
                                    kind == HandleKind::kGraph
                                        ? "the handle holds no graph, which goes to Backward only"
                                        : "the handle holds no tensors",
                                    entry_->name);
  }
  absl::MutexLock lock(&store_->mu_);
  if (!entry_->result.has_value()) {
    return HandleStore::HandleError(absl::StatusCode::kDeadlineExceeded, "HANDLE_PENDING",
                                    "the handle has no result yet", entry_->name);
  }
  return *entry_->result;
}

absl::StatusOr<std::shared_ptr<const HeldValues>> HandlePin::values() const {
  PENSTOCK_ASSIGN_OR_RETURN(HandleContent content, Content(HandleKind::kValue));
  return std::get<std::shared_ptr<const HeldValues>>(std::move(content));
}

absl::StatusOr<NamedTensors> HandlePin::tensors() const {
  PENSTOCK_ASSIGN_OR_RETURN(const std::shared_ptr<const HeldValues> held, values());
  return held->tensors;
}

absl::StatusOr<std::shared_ptr<Graph>> HandlePin::graph() const {
  PENSTOCK_ASSIGN_OR_RETURN(HandleContent content, Content(HandleKind::kGraph));
  return std::get<std::shared_ptr<Graph>>(std::move(content));
}

absl::StatusOr<CallOutcome> HandlePin::outcome() const {
  PENSTOCK_ASSIGN_OR_RETURN(HandleContent content, Content(HandleKind::kOutcome));
  return std::get<CallOutcome>(std::move(content));
}

}  // namespace penstock
