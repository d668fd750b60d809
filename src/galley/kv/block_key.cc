// SPDX-License-Identifier: Apache-2.0
#include "galley/kv/block_key.h"

#include <algorithm>

#include "galley/base/check.h"

namespace galley::kv {

BlockKey RootKey(const KeyRoot& root) {
  Sha256 hasher;
  hasher.Field("galley block key 1").U32(kBlockTokens);
  for (const std::string_view field : {root.model, root.weights_digest, root.tokenizer_digest, root.layout, root.dtype,
                                       root.numeric_class, root.shard, root.salt}) {
    hasher.Field(field);
  }
  return hasher.Finish();
}

BlockKey ChildKey(Sha256& hasher, const BlockKey& parent, std::span<const TokenId> tokens, Position begin,
                  std::span<const ImageSpan> images) {
  CHECK(tokens.size() == kBlockTokens) << "a block key covers " << kBlockTokens << " tokens, not " << tokens.size();
  hasher.Bytes(parent.bytes).Tokens(tokens);
  for (const ImageSpan& image : images) {
    if (image.begin >= begin + kBlockTokens || image.end <= begin) continue;
    hasher.I64(image.begin - begin).I64(image.end - begin).Bytes(image.digest.bytes);
  }
  return hasher.Finish();
}

KeyChain MakeKeyChain(const BlockKey& root, std::span<const TokenId> tokens, std::span<const ImageSpan> images) {
  Sha256 hasher;
  KeyChain chain{.root = root, .blocks = {}};
  const std::size_t full = tokens.size() / kBlockTokens;
  chain.blocks.reserve(full);
  for (std::size_t block = 0; block < full; ++block) {
    const std::size_t begin = block * kBlockTokens;
    chain.blocks.push_back(ChildKey(hasher, chain.parent(static_cast<int>(block)), tokens.subspan(begin, kBlockTokens),
                                    static_cast<Position>(begin), images));
  }
  return chain;
}

}  // namespace galley::kv
