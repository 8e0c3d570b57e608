#pragma once

// A journal of a pipeline on a disk that loses what was not synced, and calls to put into it.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/journal/pipeline_journal.h"
#include "tests/support/fake_clock.h"
#include "tests/support/unsynced_disk.h"

namespace penstock::testing {

inline CallRow MakeCall(int64_t sequence) {
  return {.sequence = sequence,
          .identity = "ann",
          .method = "TrainStep",
          .request_id = absl::StrCat("request-", sequence),
          .payload_digest = absl::StrCat("digest-", sequence),
          .parameters = absl::StrCat("parameters of ", sequence),
          .micro_batches = 4,
          .accepted_unix_nanos = sequence * 1000};
}

// An input of its own for each call; `bytes` long.
inline std::string ContentOf(int64_t sequence, size_t bytes) {
  std::string content(bytes, static_cast<char>('a' + sequence % 26));
  return content.replace(0, std::min<size_t>(bytes, 8), absl::StrCat(sequence, "........").substr(0, bytes));
}

inline JournalInput MakeInput(std::string content) {
  auto owner = std::make_shared<const std::string>(std::move(content));
  return {.header = "x", .bytes = *owner, .owner = owner};
}

// What a callback says, once it does.
class Told {
 public:
  PipelineJournal::Done done() {
    return [state = state_](const absl::Status& status) {
      state->status = status;
      state->told.Notify();
    };
  }
  absl::Status Wait() const {
    state_->told.WaitForNotification();
    return state_->status;
  }
  bool told() const { return state_->told.HasBeenNotified(); }

 private:
  struct State {
    absl::Notification told;
    absl::Status status;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// One folder on one disk, and the journal that is open there.
struct JournalLife {
  static constexpr char kFolder[] = "/state/pipe";
  static constexpr char kDatabase[] = "/state/pipe/journal.db";
  static constexpr char kLog[] = "/state/pipe/journal.db-wal";
  static constexpr char kMark[] = "/state/pipe/journal.db-acknowledged";
  static constexpr char kBlobs[] = "/state/pipe/blobs";

  JournalLife() {
    PENSTOCK_CHECK(disk.CreateDirectories("/state").ok());
    PENSTOCK_CHECK(disk.CreateDirectories("/copies").ok());
    // The two stand before any crash.
    PENSTOCK_CHECK(disk.CreateDirectories("/sync").ok() && disk.Rename("/sync", "/synced").ok());
    options.max_inline_bytes = 1000;
    options.files = &disk;
    options.vfs = disk.vfs();
    options.headroom_bytes = 0;
    options.free_bytes = [this] { return disk.free_bytes(); };
  }

  absl::Status Open() {
    absl::StatusOr<std::unique_ptr<PipelineJournal>> opened = PipelineJournal::Open(kFolder, &clock, options);
    if (opened.ok()) journal = *std::move(opened);
    return opened.status();
  }
  // The process dies with the machine.
  void Crash() {
    disk.Crash();
    journal.reset();
  }
  absl::Status Reopen() {
    journal.reset();
    return Open();
  }

  absl::Status Append(int64_t sequence, size_t input_bytes = 10) {
    return AppendContents(sequence, {ContentOf(sequence, input_bytes)});
  }
  absl::Status AppendContents(int64_t sequence, std::vector<std::string> contents) {
    std::vector<JournalInput> inputs;
    for (std::string& content : contents) inputs.push_back(MakeInput(std::move(content)));
    Told told;
    journal->Append(MakeCall(sequence), std::move(inputs), told.done());
    return told.Wait();
  }
  absl::Status Settle(int64_t sequence, std::string outcome = "done") {
    Told told;
    journal->RecordOutcome(sequence, {.status = CallStatus::kDone, .run_nanos = 5, .bytes = std::move(outcome)},
                           told.done());
    return told.Wait();
  }
  absl::Status Cut(int64_t up_to) {
    Told told;
    journal->Cut(up_to, told.done());
    return told.Wait();
  }
  // The sequences that are there, with each input compared; an error instead of a wrong one.
  absl::StatusOr<std::vector<int64_t>> Sequences() const {
    std::vector<int64_t> sequences;
    const absl::Status read = journal->Read(0, [&](CallRow row) -> absl::Status {
      sequences.push_back(row.sequence);
      for (const StoredInput& input : row.inputs) {
        const absl::StatusOr<std::string> content = journal->ReadInput(input);
        if (!content.ok()) return content.status();
        if (static_cast<int64_t>(content->size()) != input.size) return absl::InternalError("another size");
      }
      return absl::OkStatus();
    });
    if (!read.ok()) return read;
    return sequences;
  }
  absl::StatusOr<std::optional<RecordedCall>> Find(int64_t sequence) const {
    return journal->FindRequest("ann", "TrainStep", absl::StrCat("request-", sequence));
  }

  UnsyncedDisk disk;
  FakeClock clock;
  PipelineJournal::Options options;
  std::unique_ptr<PipelineJournal> journal;  // last: it uses all of the above
};

// 1, 2, …, n.
inline std::vector<int64_t> UpTo(int64_t n) {
  std::vector<int64_t> numbers;
  for (int64_t i = 1; i <= n; ++i) numbers.push_back(i);
  return numbers;
}

}  // namespace penstock::testing
