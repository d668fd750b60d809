// SPDX-License-Identifier: Apache-2.0
// The conformance table: every op on sizes odd and true. A backend passes a case when its outputs are within the stated
// distance of `ref` on the same inputs, in bits where the output is promised so.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "op_rig.h"

namespace galley::conformance {

struct OpCase {
  std::string name;
  std::function<void(OpRig&)> run;
};

[[nodiscard]] const std::vector<OpCase>& OpCases();

// Draws, for OpCases.
void AddDrawCases(std::vector<OpCase>& cases);

}  // namespace galley::conformance
