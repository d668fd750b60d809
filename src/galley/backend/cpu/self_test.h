// SPDX-License-Identifier: Apache-2.0
// Whether an instruction set computes what it must on this very processor: for those that were written without a
// machine to run them on. Takes milliseconds; any thread.
#pragma once

#include <span>
#include <string_view>

#include "galley/backend/cpu/isa.h"

namespace galley::backend::cpu {

// Products of small integers must be exact, whatever the order of sums; products of other values must be near sums in
// double and have the same bits alone as beside other rows. The processor must be able to run them.
[[nodiscard]] bool PassesSelfTest(const Kernels& kernels);

// What FindIsa finds; or the automatic choice, with a warning, when that fails its self-test. Errors: kUnsupported.
[[nodiscard]] Result<const IsaEntry*> UsableIsa(std::string_view name, std::span<const IsaEntry> table = IsaTable());

}  // namespace galley::backend::cpu
