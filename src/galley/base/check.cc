// SPDX-License-Identifier: Apache-2.0
#include "galley/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace galley::internal {

CheckFailure::CheckFailure(const char* file, int line, const char* expression) {
  message_ << file << ":" << line << ": CHECK(" << expression << ") failed ";
}

CheckFailure::~CheckFailure() {
  std::fprintf(stderr, "%s\n", message_.str().c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace galley::internal
