// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/oracle_for_test.h"

namespace galley::engine {
namespace {

// A few engines each time; oracle_slow_test runs many.
TEST(Oracle, ADrawDoesNotDependOnTheEngine) {
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Oracle({.model = kProbe, .seed = seed, .requests = 4, .longest = 150, .output = 6, .variants = 2}).Run();
}

}  // namespace
}  // namespace galley::engine
