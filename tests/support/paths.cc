// SPDX-License-Identifier: Apache-2.0
#include "support/paths.h"

namespace galley::test_paths {
const char* const kSource = GALLEY_TEST_SOURCE_DIR;
const char* const kShared = GALLEY_TEST_SHARED_DIR;
}  // namespace galley::test_paths
