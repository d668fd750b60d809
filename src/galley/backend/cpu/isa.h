// SPDX-License-Identifier: Apache-2.0
// Which instruction sets the cpu backend was compiled for and which of them this processor has. Pure but for reading
// the processor's identification.
#pragma once

#include <span>
#include <string_view>

#include "galley/backend/cpu/kernels.h"
#include "galley/base/error.h"

namespace galley::backend::cpu {

struct IsaEntry {
  std::string_view name;
  bool (*supported)();  // by this processor and operating system
  const Kernels& (*kernels)();
  bool by_name_only = false;  // "auto" does not take it
  bool self_test = false;     // must pass PassesSelfTest before it is used
};

// From the plainest to the fastest.
[[nodiscard]] std::span<const IsaEntry> IsaTable();

// The entry of that name, or for "auto" the fastest that this processor supports. Errors: kUnsupported, naming those
// that would work.
[[nodiscard]] Result<const IsaEntry*> FindIsa(std::string_view name, std::span<const IsaEntry> table = IsaTable());

// `base` with products on the tile unit that `use_tiles` belongs to (kernels/tiles.h).
[[nodiscard]] Kernels WithTiles(const Kernels& base, void (*use_tiles)(Kernels&));

}  // namespace galley::backend::cpu
