#pragma once

// A group of ranks for people.

#include <string>

#include "penstock/v1/admin.pb.h"

namespace penstock {

// "2 of 3 ranks, not complete, generation 4, re-formed 1 time".
std::string GroupLine(const v1::GroupInfo& group);

// One line per rank. Times are against `now_seconds` since 1970.
std::string RanksText(const v1::GroupInfo& group, double now_seconds, bool wide);

// One line per link; with `seconds` above 0 also what went by it in that time, since `before`. Empty without links.
std::string LinksText(const v1::GroupInfo& before, const v1::GroupInfo& after, double seconds);

}  // namespace penstock
