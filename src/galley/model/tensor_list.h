// SPDX-License-Identifier: Apache-2.0
// The tensors that a config implies: the official names, dtypes and shapes of a DeepSeek-V4.1 checkpoint. A pure
// function of the config, and the one place that knows the layout: the loader checks files against it, inspect counts
// with it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "galley/model/config.h"
#include "galley/tensor/dtype.h"
#include "galley/tensor/tensor_view.h"

namespace galley::model {

enum class Part : std::uint8_t {
  kEmbedding,
  kHead,
  kNorms,
  kAttention,
  kCompressor,
  kIndexer,
  kMhc,
  kRouter,
  kRoutedExperts,
  kSharedExperts,
  kEngram,        // projection and weights
  kEngramTables,  // the rows that a token looks up
  kDraft,         // everything of the DSpark stages
  kVision,
};
inline constexpr int kParts = static_cast<int>(Part::kVision) + 1;
[[nodiscard]] std::string_view Name(Part part);  // "routed experts"

struct ImpliedTensor {
  std::string name;
  DType dtype;
  Shape shape;
  Part part;
  int layer;                // backbone layer, draft stage or vision block; -1 outside of one
  std::int64_t parameters;  // values that it stands for: two a byte for packed MXFP4, none for scales
};

// In checkpoint order: embedding, layers, norm, head, draft stages, vision.
[[nodiscard]] std::vector<ImpliedTensor> ImpliedTensors(const Config& config);

}  // namespace galley::model
