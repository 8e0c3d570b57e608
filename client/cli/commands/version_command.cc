// penstock version

#include <grpcpp/grpcpp.h>

#include "client/cli/command_table.h"
#include "google/protobuf/stubs/common.h"

namespace penstock {
namespace {

absl::Status Version(Session& session) {
  const std::string protobuf = google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION);
  Document document;
  document.json = {{"version", PENSTOCK_VERSION},
                   {"api", "penstock.v1"},
                   {"versions", {{"grpc", grpc::Version()}, {"protobuf", protobuf}}}};
  document.names = {PENSTOCK_VERSION};
  document.text = std::string("penstock ") + PENSTOCK_VERSION + " (penstock.v1, gRPC " + grpc::Version() +
                  ", protobuf " + protobuf + ")\n";
  session.Print(document);
  return absl::OkStatus();
}

}  // namespace

void AddVersionCommand(CommandTable& table) {
  CLI::App* command = table.Add(table.root(), "version", "Show the version of this program; needs no daemon",
                                "penstock version\npenstock version -o name");
  table.Run(command, Version);
}

}  // namespace penstock
