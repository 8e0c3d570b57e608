#include "engine/journal/network_file_system.h"

#include <sys/statvfs.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace penstock {
namespace {

struct NamedType {
  int64_t type;
  std::string_view name;
};

// Linux's numbers, statfs(2). Cluster file systems are among them: their locks reach over the network, too.
constexpr NamedType kNetworkTypes[] = {
    {0x6969, "NFS"},       {0x517B, "SMB"},      {0xFE534D42, "SMB2"},   {0xFF534D42, "CIFS"},
    {0x00C36400, "Ceph"},  {0x5346414F, "AFS"},  {0x6B414653, "kAFS"},   {0x73757245, "Coda"},
    {0x564C, "NCP"},       {0x01021997, "9P"},   {0x0BD00BD0, "Lustre"}, {0x47504653, "GPFS"},
    {0x7461636F, "OCFS2"}, {0x01161970, "GFS2"}, {0x19830326, "BeeGFS"}, {0x20030528, "OrangeFS"},
};

}  // namespace

std::string_view NetworkFileSystemName(int64_t type) {
  for (const NamedType& known : kNetworkTypes) {
    if ((type & 0xFFFFFFFF) == known.type) return known.name;
  }
  return "";
}

absl::Status RefuseNetworkFileSystem(const std::string& folder) {
  struct statfs info;
  if (::statfs(folder.c_str(), &info) != 0) {
    const absl::StatusCode code = errno == ENOENT ? absl::StatusCode::kNotFound : absl::StatusCode::kInternal;
    return WithValue(absl::Status(code, absl::StrCat("stat of the file system: ", std::strerror(errno))), "path",
                     folder);
  }
  const std::string_view name = NetworkFileSystemName(static_cast<int64_t>(info.f_type));
  if (name.empty()) return absl::OkStatus();
  return InvalidField("state_dir", "must stand on a local disk, as a journal needs its locks and syncs", name);
}

int64_t FreeDiskBytes(const std::string& folder) {
  struct statvfs info;
  if (::statvfs(folder.c_str(), &info) != 0) return std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

}  // namespace penstock
