// SPDX-License-Identifier: Apache-2.0
// What computes a model, and where it keeps weights that not every step reads whole. Values. Bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "galley/backend/weight_place.h"

namespace galley::engine {

using backend::WeightPlace;

// Rows of the largest step: so many are the second dimension of a CUDA launch at most. The same for every backend.
inline constexpr int kStepRowsMax = 65'535;

struct DeviceOptions {
  std::string backend = "ref";  // "ref", "cpu", in CUDA builds "cuda", or "auto", which is BackendName's choice
  std::string isa = "auto";     // instruction set of the cpu backend
  int threads = 0;              // of the processor; 0: as many as the process may use
  bool cuda_graphs = true;      // decode steps of the cuda backend are recorded and replayed
  WeightPlace experts = WeightPlace::kDevice;  // routed ones
  std::int64_t expert_memory = 0;              // main memory for experts on disk; 0: ExpertMemoryThatFits
  // Device memory of the cuda backend for those of experts that are elsewhere which are used most. 0: on the host none,
  // so that kernels read experts there; on disk those of one layer, which is the least.
  std::int64_t expert_cache = 0;
  // Engram's tables. On disk they count for nothing in the memory plan, and a step's rows are asked for when its tokens
  // are known.
  WeightPlace engram = WeightPlace::kDevice;
  std::filesystem::path weight_cache = {};  // OpenWithCache; empty: weights are read from the model's own files
  bool check_weight_cache = false;          // all its bytes, before they are used
};

// What computes after all: the choices that "auto" and 0 came to.
struct Compute {
  std::string backend;
  std::string isa = {};  // of the cpu backend, else empty
  int threads = 0;       // of the processor, for its ops; 0: a device's

  // "cpu avx2, 4 threads", "ref, 4 threads", "cuda".
  [[nodiscard]] std::string ToText() const;
};

}  // namespace galley::engine
