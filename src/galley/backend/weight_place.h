// SPDX-License-Identifier: Apache-2.0
// Where weights are kept that a step reads parts of: routed experts and Engram's tables.
#pragma once

namespace galley::backend {

enum class WeightPlace {
  kDevice,  // with what computes
  kHost,    // in main memory; for ref and cpu that is the same
  kDisk,    // in the model's files, read when a step needs them
};

}  // namespace galley::backend
