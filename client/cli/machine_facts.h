#pragma once

// What this machine is like, as far as a daemon cares. Reading only; judging is doctor_checks.h's.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

// Where a daemon listens by default: API, metrics, status pages.
inline constexpr std::array<int, 3> kDefaultPorts = {8470, 8473, 8474};

// Facts about a machine. Negative numbers and empty texts: not known.
struct MachineFacts {
  int gpus = 0;                      // devices of NVIDIA's driver
  int open_gpus = 0;                 // of these, those whose device file this user may open
  std::string driver_version;        // "580.65.06"
  int64_t shared_memory_bytes = -1;  // size of /dev/shm
  int64_t locked_memory_bytes = -1;  // limit; INT64_MAX: none
  int64_t open_files = -1;           // hard limit
  int64_t memory_bytes = -1;         // of the machine, or what its control group may use
  bool clock_synchronised = false;
  bool clock_known = false;
  std::string state_dir;  // the folder that was asked about, or the nearest one above that exists
  bool state_dir_writable = false;
  int64_t state_free_bytes = -1;
  double state_sync_seconds = -1;  // to write 4 KiB and have the disk say that it holds them
  std::vector<int> taken_ports;    // of kDefaultPorts, those on which somebody listens at 127.0.0.1
  std::string daemon_path;         // "": no penstockd was found
  std::string daemon_version;      // its answer to --version; "": it can't run
  std::string daemon_problem;      // what it said instead
  std::string daemon_torch;        // "torch 2.11.0 of FOLDER", which it loads; "": not known
  std::string torch_version;       // "2.11.0" of it; "": not known
  bool daemon_packed = false;      // it is of a wheel or archive, and so its user has no sources to build
  std::string no_torch_reason;     // why the launcher of a packed daemon would not start it; "": it would
  std::string no_torch_command;    // and what mends it
};

// Reads them; writes and removes one small file in the state folder. `daemon` is a path or a name; a name is looked for
// beside this program and on the path.
MachineFacts ReadMachineFacts(const std::string& state_dir, const std::string& daemon);

// The torch that a program loads, by the dynamic linker's list of its libraries; "" if it loads none. `version` gets the
// number alone, or "" where none is told.
std::string TorchOf(const std::string& libraries, std::string* version = nullptr);

// Where the daemon keeps its state by default: the default of its --state-dir.
std::string DefaultStateDir();

}  // namespace penstock
