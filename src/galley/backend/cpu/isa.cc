// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cpu/isa.h"

#include <fmt/core.h>

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
#endif

constexpr IsaEntry kTable[] = {
    {"generic", Always, generic::Table},
#if defined(__x86_64__)
    {"avx2", HasAvx2, avx2::Table},
    {"avx512", HasAvx512, avx512::Table},
    {"avx512bf16", HasAvx512Bf16, avx512bf16::Table},
#endif
};

}  // namespace

std::span<const IsaEntry> IsaTable() {
  return kTable;
}

Result<const IsaEntry*> FindIsa(std::string_view name) {
  const IsaEntry* fastest = nullptr;
  std::string usable;
  for (const IsaEntry& entry : kTable) {
    if (!entry.supported()) continue;
    if (entry.name == name) return &entry;
    fastest = &entry;
    usable += fmt::format("{}{}", usable.empty() ? "" : ", ", entry.name);
  }
  CHECK(fastest != nullptr) << "the plain kernels run everywhere";
  if (name == "auto") return fastest;
  return Err(ErrorCode::kUnsupported,
             fmt::format("this processor cannot run \"{}\"; it can run {} (auto takes the last)", name, usable), "isa");
}

}  // namespace galley::backend::cpu
