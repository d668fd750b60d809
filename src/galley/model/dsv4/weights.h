// SPDX-License-Identifier: Apache-2.0
// A V4.1 checkpoint's tensors, placed on a backend and named by what they are. Views into the checkpoint (or the
// device's copy): they live as long as both do.
#pragma once

#include <vector>

#include "galley/backend/backend.h"
#include "galley/base/error.h"
#include "galley/model/checkpoint.h"

namespace galley::model {

struct MhcWeights {
  const float* fn = nullptr;
  const float* base = nullptr;
  const float* scale = nullptr;
};

struct CompressorWeights {
  backend::Weight wkv, wgate;
  const BFloat16* norm = nullptr;
  backend::Weight index_wk;
  const BFloat16* index_norm = nullptr;
};

struct IndexerWeights {
  backend::Weight wq_b, weights_proj;
};

struct AttentionWeights {
  backend::Weight wq_a, wq_b, wkv, wo_a, wo_b;
  const BFloat16* q_norm = nullptr;
  const BFloat16* kv_norm = nullptr;
  const float* sink = nullptr;
  CompressorWeights compressor;  // of KV owners only
  IndexerWeights indexer;        // of index sources only
};

struct EngramWeights {
  const std::uint8_t* codes = nullptr;
  const std::uint8_t* scales = nullptr;
  backend::Weight wkv;
  const BFloat16* q_weight = nullptr;
  const BFloat16* k_weight = nullptr;
};

struct MoeWeights {
  backend::Weight gate;
  const float* bias = nullptr;
  const float* image_bias = nullptr;
  std::vector<backend::ExpertWeights> routed;
  backend::ExpertWeights shared;
};

struct LayerWeights {
  MhcWeights hc_attn, hc_ffn;
  const BFloat16* attn_norm = nullptr;
  const BFloat16* ffn_norm = nullptr;
  AttentionWeights attention;
  MoeWeights moe;
  EngramWeights engram;  // of Engram layers only
};

struct DraftWeights {
  std::vector<LayerWeights> stages;
  backend::Weight main_proj;
  const BFloat16* main_norm = nullptr;
  const BFloat16* norm = nullptr;
  backend::Weight markov_embed, markov_head, confidence;
};

struct Weights {
  const BFloat16* embed = nullptr;
  const BFloat16* norm = nullptr;
  backend::Weight head;
  std::vector<LayerWeights> layers;
  DraftWeights draft;  // without stages when the checkpoint has no draft head

  // Errors: those of Backend::Upload and Backend::FinishUploads. The checkpoint has been checked against its config, so
  // every name is there.
  [[nodiscard]] static Result<Weights> Load(const Checkpoint& checkpoint, backend::Backend& backend);
};

}  // namespace galley::model
