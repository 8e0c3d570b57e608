#include "engine/base/resource_id.h"

namespace penstock {
namespace {

bool IsLowerOrDigit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

}  // namespace

bool IsResourceId(std::string_view text) {
  if (text.empty() || text.size() > 63) return false;
  if (text.front() < 'a' || text.front() > 'z' || !IsLowerOrDigit(text.back())) return false;
  for (char c : text) {
    if (!IsLowerOrDigit(c) && c != '-' && c != '_') return false;
  }
  return true;
}

}  // namespace penstock
