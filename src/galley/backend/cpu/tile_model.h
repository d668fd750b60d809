// SPDX-License-Identifier: Apache-2.0
// The kernels of `--isa amx` on a software model of the tile unit, for tests on machines without one. Not part of the
// program.
#pragma once

#include "galley/backend/cpu/isa.h"

namespace galley::backend::cpu {

// "tile_model" (plain C++), "tile_model_wide" (decoded and packed as amx does, with AVX-512), or what FindIsa finds.
// Errors: kUnsupported.
[[nodiscard]] Result<const IsaEntry*> FindIsaOrModel(std::string_view name);

}  // namespace galley::backend::cpu
