#pragma once

// Who of several owners has the next turn on something that they share.

#include <cstdint>
#include <map>
#include <string>

namespace penstock {

// Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): over any while in which two owners both wait, they get
// the same sum of costs, but for the largest of one turn.
//
// Model:     A virtual time, which is the start of the latest turn that has been served. A new turn starts where the
//            owner's last one ends, or now if that is past: who was away has saved nothing up. Of those that wait, the
//            one with the least start goes first.
// Units:     costs and times are in any one unit; a cost is above 0.
// Threads:   those of the lock around it.
class FairTurns {
 public:
  struct Turn {
    int64_t start = 0;
    int64_t cost = 0;
  };

  // A further turn of an owner.
  Turn Add(const std::string& owner, int64_t cost);
  // It is not wanted any more, and was not served. One that others of its owner stand behind counts all the same.
  void Withdraw(const std::string& owner, const Turn& turn);
  void Served(const Turn& turn);

 private:
  int64_t now_ = 0;
  std::map<std::string, int64_t> ends_;  // of owners whose last turn ends behind `now_`
};

}  // namespace penstock
