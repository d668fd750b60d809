// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cpu/isa.h"

#include <fmt/core.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <string>

#include "galley/base/check.h"

namespace galley::backend::cpu {

namespace generic {
const Kernels& Table();
}
#if defined(__x86_64__)
namespace avx2 {
const Kernels& Table();
}
namespace avx512 {
const Kernels& Table();
}
namespace avx512bf16 {
const Kernels& Table();
}
namespace amx {
void UseTiles(Kernels& kernels);
}
#endif

namespace {

bool Always() {
  return true;
}

#if defined(__x86_64__)
// These ask the operating system, too, whether it keeps the wide registers.
bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool HasAvx512Bf16() {
  return HasAvx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512vnni");
}
// Tile registers are large, so a process must ask the system for them; the answer holds for all of its threads.
bool HasAmx() {
  constexpr unsigned kTiles = 1u << 24, kBf16Products = 1u << 22;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!HasAvx512Bf16() || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kTiles) == 0 || (d & kBf16Products) == 0) return false;
  constexpr long kAskForState = 0x1023, kTileData = 18;  // of arch_prctl
  return syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}
const Kernels& AmxTable() {
  static const Kernels kernels = WithTiles(avx512bf16::Table(), amx::UseTiles);
  return kernels;
}
#endif

constexpr IsaEntry kTable[] = {
    {"generic", Always, generic::Table},
#if defined(__x86_64__)
    {"avx2", HasAvx2, avx2::Table},
    {"avx512", HasAvx512, avx512::Table},
    {"avx512bf16", HasAvx512Bf16, avx512bf16::Table},
    // By name only until a machine with it has shown what it gains.
    {"amx", HasAmx, AmxTable, true, true},
#endif
};

}  // namespace

std::span<const IsaEntry> IsaTable() {
  return kTable;
}

Result<const IsaEntry*> FindIsa(std::string_view name, std::span<const IsaEntry> table) {
  const IsaEntry* fastest = nullptr;
  std::string usable;
  for (const IsaEntry& entry : table) {
    if (!entry.supported()) continue;
    if (entry.name == name) return &entry;
    if (!entry.by_name_only) fastest = &entry;
    usable += fmt::format("{}{}", usable.empty() ? "" : ", ", entry.name);
  }
  CHECK(fastest != nullptr) << "the plain kernels run everywhere";
  if (name == "auto") return fastest;
  return Err(
      ErrorCode::kUnsupported,
      fmt::format("this processor cannot run \"{}\"; it can run {} (auto takes {})", name, usable, fastest->name),
      "isa");
}

Kernels WithTiles(const Kernels& base, void (*use_tiles)(Kernels&)) {
  Kernels kernels = base;
  use_tiles(kernels);
  return kernels;
}

}  // namespace galley::backend::cpu
