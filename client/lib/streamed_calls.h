#pragma once

// Calls of many threads on one StreamWork.

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/lib/call_error.h"
#include "penstock/v1/work_service.grpc.pb.h"

namespace penstock {

// Makes calls on a stream that is opened with the first one, and anew with the first one after it has ended.
//
// Model:     a call waits until the stream has room for it (StreamWorkOpened.requests), is sent under a tag, and waits for
//            the answer that has it. A call that is given up is given up in the daemon, too (WorkCancel).
// Owns:      the stream.
// Threads:   any method from any thread; Call() blocks its own.
// Lifecycle: outlives every Call(). After Cancel() each call ends with CANCELLED, now and later.
// Fails:     as the daemon answers; as the stream has ended, of all calls that are under way; DEADLINE_EXCEEDED.
class StreamedCalls {
 public:
  // `prepare` adds the caller's metadata to the context of a stream. The stub outlives this.
  StreamedCalls(v1::WorkService::Stub* stub, std::function<void(grpc::ClientContext*)> prepare)
      : stub_(stub), prepare_(std::move(prepare)) {}
  ~StreamedCalls();

  // One attempt of a call, until the deadline of `context`, which has no other use. The tag is set here.
  CallError Call(const grpc::ClientContext& context, v1::StreamWorkRequest request, v1::StreamWorkResponse* response)
      ABSL_LOCKS_EXCLUDED(mu_);

  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Stream;
  // The one that is open; null after Cancel().
  std::shared_ptr<Stream> Open() ABSL_LOCKS_EXCLUDED(mu_);

  v1::WorkService::Stub* const stub_;
  const std::function<void(grpc::ClientContext*)> prepare_;

  absl::Mutex mu_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace penstock
