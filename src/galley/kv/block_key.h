// SPDX-License-Identifier: Apache-2.0
// Content addresses of blocks: key = SHA-256(parent key, token ids, extra), 256 bits, never cut. The root of a chain
// binds everything else that decides what the bytes of a block mean, so two processes agree on keys exactly when their
// blocks may be exchanged. Pure functions; computed by whoever submits a request, off the rank thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "galley/base/strong_id.h"
#include "galley/kv/index.h"
#include "galley/kv/sha256.h"

namespace galley::kv {

// Tokens whose history one block holds; the unit of hits.
inline constexpr int kBlockTokens = 128;

using BlockKey = Digest;

// What the bytes of a block depend on besides its tokens. `numeric_class` keeps blocks computed after a bounded replay,
// which are approximate, away from chains that promise a cold run's bits (NumericClass in replay.h).
struct KeyRoot {
  std::string_view model;             // model name as served
  std::string_view weights_digest;    // of the checkpoint
  std::string_view tokenizer_digest;  // token ids mean nothing without it
  std::string_view layout;            // fingerprint of the history slab layout
  std::string_view dtype;             // number formats of records and index keys
  std::string_view numeric_class;
  std::string_view shard;  // "" or the part of the model that this rank's blocks cover
  std::string_view salt;   // tenant isolation; set by the gateway, "" shares with everybody
};

// An image inside a prompt: its rows all carry one token id, so its content enters the keys through its digest.
struct ImageSpan {
  Position begin = 0;
  Position end = 0;  // exclusive
  Digest digest;
};

// Keys of the leading full blocks of a sequence.
struct KeyChain {
  BlockKey root;
  std::vector<BlockKey> blocks;

  // Key under which the block with this index chains: the root for block 0.
  [[nodiscard]] const BlockKey& parent(int block) const { return block == 0 ? root : blocks[Idx(block - 1)]; }
};

[[nodiscard]] BlockKey RootKey(const KeyRoot& root);

// Key of the block that holds `tokens` (exactly kBlockTokens of them), whose first token has position `begin`. `images`
// may hold all images of the prompt; those that overlap the block enter with their offset.
[[nodiscard]] BlockKey ChildKey(Sha256& hasher, const BlockKey& parent, std::span<const TokenId> tokens, Position begin,
                                std::span<const ImageSpan> images);

// Keys of all full blocks of `tokens`.
[[nodiscard]] KeyChain MakeKeyChain(const BlockKey& root, std::span<const TokenId> tokens,
                                    std::span<const ImageSpan> images = {});

}  // namespace galley::kv
