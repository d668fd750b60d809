// SPDX-License-Identifier: Apache-2.0
// What computes a model, and where it keeps weights that not every step reads whole. Values. Bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace galley::engine {

enum class WeightPlace {
  kDevice,  // with what computes
  kHost,    // in main memory; for ref and cpu that is the same
  kDisk,    // in the model's files, read when a step needs them
};

struct DeviceOptions {
  std::string backend = "ref";  // "ref", "cpu", in CUDA builds "cuda", or "auto", which is BackendName's choice
  std::string isa = "auto";     // instruction set of the cpu backend
  int threads = 0;              // of the processor; 0: as many as the process may use
  bool cuda_graphs = true;      // decode steps of the cuda backend are recorded and replayed
  WeightPlace experts = WeightPlace::kDevice;  // routed ones
  std::int64_t expert_memory = 0;              // main memory for experts on disk; 0: half of the memory limit
  // Engram's tables. On disk they count for nothing in the memory plan, and a step's rows are asked for when its tokens
  // are known.
  WeightPlace engram = WeightPlace::kDevice;
  std::filesystem::path weight_cache = {};  // OpenWithCache; empty: weights are read from the model's own files
};

}  // namespace galley::engine
