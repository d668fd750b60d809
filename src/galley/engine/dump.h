// SPDX-License-Identifier: Apache-2.0
// Intermediate tensors of one prompt, under the names and with the shapes of the golden files, so that any checkpoint
// and any ids can be compared with any other implementation. The tensors are described in docs/goldens.md.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "galley/base/error.h"
#include "galley/base/strong_id.h"
#include "galley/engine/device_options.h"
#include "galley/io/weight_file.h"
#include "galley/tensor/tensor_view.h"

namespace galley::engine {

// A tensor that owns its bytes.
struct HostTensor {
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<std::byte> data;

  [[nodiscard]] TensorView view() const { return {dtype, shape, data.data()}; }
};
using TensorMap = std::map<std::string, HostTensor>;

// The positions that the golden files store of a prompt of `length`: all of a short one, else both sides of the borders
// of windows, pairs and the truncated decoder, and the end.
[[nodiscard]] std::vector<Position> GoldenRows(Position length);

struct DumpOptions {
  std::filesystem::path model_dir;
  std::vector<TokenId> ids;
  DeviceOptions device = {};
  io::Progress on_load = {};  // LoadOptions::on_load
  int chunk = 0;              // rows of a prefill step; 0: the whole prompt in one step
  int truncate_decoder = 0;   // > 0: a second run with the decoder on the last rows only, as tensors replay.*
  int greedy = 32;            // length of the greedy continuation
  int drafts = -1;            // positions of the continuation at which the draft head is run, as tensors dspark.*;
                              // -1: as the golden files have it, 4 or, for at most 8 ids, 2
  int replay_greedy = 16;     // the same after the truncated prefill
  // Attention lists as the official prefill has them, which for prompts shorter than the window differs from what the
  // engine runs (AttentionArgs::window_places). Longer prompts are the same either way.
  bool official_window = true;
  std::vector<Position> rows;    // positions to store, ascending; empty: GoldenRows
  std::vector<int> full_layers;  // layers whose h and pre are stored for every position (h_all, pre_all)
};

// Errors: those of LoadedModel::Load; kInvalidArgument (no ids, ids outside the vocabulary, longer than the context).
[[nodiscard]] Result<TensorMap> Dump(const DumpOptions& options);

// Atomic; errors of io::WriteFileAtomic.
[[nodiscard]] Status WriteTensors(const std::filesystem::path& path, const TensorMap& tensors);
[[nodiscard]] Result<TensorMap> ReadTensors(const std::filesystem::path& path);

// Values of an I32 tensor; CHECKs the dtype.
[[nodiscard]] std::vector<std::int32_t> Int32Values(const HostTensor& tensor);

}  // namespace galley::engine
