// SPDX-License-Identifier: Apache-2.0
// Where tests find data: GALLEY_SOURCE_DIR is the checkout, GALLEY_SHARED_DIR the read-only material beside it, which
// may be absent. Every test is compiled with this header in front. The values stand in one translation unit, so a
// compiler cache serves the tests' objects to every checkout.
#pragma once

namespace galley::test_paths {
extern const char* const kSource;
extern const char* const kShared;
}  // namespace galley::test_paths

#define GALLEY_SOURCE_DIR galley::test_paths::kSource
#define GALLEY_SHARED_DIR galley::test_paths::kShared
