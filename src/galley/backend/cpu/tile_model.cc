// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cpu/tile_model.h"

namespace galley::backend::cpu {

namespace tile_model {
void UseTiles(Kernels& kernels);
}
#if defined(__x86_64__)
namespace tile_model_wide {
void UseTiles(Kernels& kernels);
}
#endif

Result<const IsaEntry*> FindIsaOrModel(std::string_view name) {
  static const IsaEntry& plain = **FindIsa("generic");
  static const IsaEntry model = {"tile_model", plain.supported, []() -> const Kernels& {
                                   static const Kernels kernels = WithTiles(plain.kernels(), tile_model::UseTiles);
                                   return kernels;
                                 }};
  if (name == model.name) return &model;
#if defined(__x86_64__)
  if (name == "tile_model_wide") {
    ASSIGN_OR_RETURN(const IsaEntry* base, FindIsa("avx512bf16"));
    static const Kernels kernels = WithTiles(base->kernels(), tile_model_wide::UseTiles);
    static const IsaEntry wide = {"tile_model_wide", base->supported, []() -> const Kernels& { return kernels; }};
    return &wide;
  }
#endif
  return FindIsa(name);
}

}  // namespace galley::backend::cpu
