#include "engine/base/log_scope.h"

namespace penstock {
namespace {

thread_local const LogScope* innermost = nullptr;

}  // namespace

LogScope::LogScope(Fields fields) : fields_(std::move(fields)), outer_(innermost) { innermost = this; }

LogScope::~LogScope() { innermost = outer_; }

const LogScope* LogScope::Innermost() { return innermost; }

}  // namespace penstock
