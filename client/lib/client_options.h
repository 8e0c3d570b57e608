#pragma once

// How a client reaches a daemon and how patient it is.

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "client/lib/channel_credentials.h"
#include "client/lib/retry.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace penstock {

class Clock;

// Options of PipelineClient.
struct ClientOptions {
  std::string address = "127.0.0.1:8470";  // HOST:PORT, or unix:PATH
  std::string caller = {};                 // sent as `penstock-caller`; empty: the server says `local`
  CredentialPaths credentials = {};        // all empty: plaintext
  std::string traceparent = {};            // sent with every call, which becomes part of that trace; empty: of none

  // Of one call with all of its attempts; the time that a call asks the server to wait is added.
  absl::Duration call_deadline = absl::Seconds(60);
  // Of one stream of tensors with all of its attempts.
  absl::Duration stream_deadline = absl::Hours(1);
  // Of all calls and streams of the client together, from its creation on, whatever each one may take.
  absl::Duration total_deadline = absl::InfiniteDuration();

  // Whether calls of work share one stream (StreamWork), which costs less of each, instead of being calls of their own.
  bool work_stream = false;

  RetryPolicy retry = {};

  // Usually only tests set these.
  std::shared_ptr<grpc::Channel> channel = {};  // instead of connecting to `address`
  Clock* clock = nullptr;                       // null: the machine's
};

}  // namespace penstock
