#include "server/identity/certificate_files.h"

#include <utility>
#include <vector>

#include "engine/base/clock.h"
#include "engine/base/status_macros.h"
#include "server/identity/followed_files.h"

namespace penstock {

absl::StatusOr<std::shared_ptr<const CertificateFiles>> CertificateFiles::Create(const Paths& paths,
                                                                                 FollowedFiles* files, Clock* clock,
                                                                                 std::function<void(absl::Time)> told) {
  std::shared_ptr<CertificateFiles> made(new CertificateFiles);
  std::vector<std::string> names = {paths.certificate, paths.key};
  if (!paths.client_ca.empty()) names.push_back(paths.client_ca);
  const auto take = [made, clock, told = std::move(told)](const std::vector<std::string>& contents) -> absl::Status {
    // An empty file of authorities must not turn off what it is there for.
    if (contents.size() == 3 && contents[2].empty()) {
      return ServerCertificate::Check(contents[0], contents[1], "empty", clock->WallNow()).status();
    }
    PENSTOCK_ASSIGN_OR_RETURN(
        ServerCertificate certificate,
        ServerCertificate::Check(contents[0], contents[1], contents.size() == 3 ? contents[2] : "", clock->WallNow()));
    if (told) told(certificate.end);
    made->published_.Set(std::move(certificate));
    return absl::OkStatus();
  };
  PENSTOCK_RETURN_IF_ERROR(files->Follow("--tls-cert", std::move(names), take));
  return std::shared_ptr<const CertificateFiles>(std::move(made));
}

}  // namespace penstock
