#include "client/cli/connection_fault.h"

#include <array>
#include <map>
#include <utility>

#include "engine/base/error.h"

namespace penstock {
namespace {

constexpr std::string_view kCompare = "compare";

struct Known {
  std::string_view words;  // in the failure's message
  bool tls;                // of a client that was to speak TLS, or of one in plaintext
  std::string_view what;   // and then the address
  std::string_view hint;
};

constexpr auto kKnown = std::to_array<Known>({
    {"wrong version number", true, "no TLS is spoken at ",
     "name the daemon's TLS port, or leave out --tls-ca, --tls-cert, --tls-key and --token-file"},
    {"certificate verify failed", true, "the certificate was refused of ",
     "give the authority that has signed it: --tls-ca; else it has ended, or somebody else answers there"},
    {"is not in peer certificate", true, "the certificate has another name than ",
     "call the daemon by a name or address in its certificate's SAN"},
    {"metadata from plugin failed", true, "the token could not be read for ",
     "mend the file that --token-file or PENSTOCK_TOKEN_FILE names"},
    {"Socket closed", true, "the connection was closed by ",
     "look whether --tls-cert has ended, and whether the daemon's --tls-client-ca has signed it"},
    {"Connection reset", true, "the connection was closed by ",
     "look whether --tls-cert has ended, and whether the daemon's --tls-client-ca has signed it"},
    {"Socket closed", false, "the connection was closed by ",
     "if it speaks TLS: --tls-ca, and --tls-cert with --tls-key or --token-file"},
    {"Connection reset", false, "the connection was closed by ",
     "if it speaks TLS: --tls-ca, and --tls-cert with --tls-key or --token-file"},
});

}  // namespace

absl::Status OfCompared(absl::Status failure, std::string_view address) {
  return WithValue(std::move(failure), kCompare, address);
}

ConnectionFault FaultOf(const absl::Status& failure, std::string_view server, bool tls) {
  const std::map<std::string, std::string> values = ValuesOf(failure);
  const auto compared = values.find(std::string(kCompare));
  if (compared != values.end()) server = compared->second;
  const std::string message(failure.message());
  for (const Known& known : kKnown) {
    if (known.tls == tls && message.find(known.words) != std::string::npos) {
      return {std::string(known.what) + std::string(server), known.hint};
    }
  }
  return {"no daemon answers at " + std::string(server),
          compared != values.end() ? "start a server there, or name another with --compare"
                                   : "start penstockd, or name its address with --server or PENSTOCK_SERVER"};
}

}  // namespace penstock
