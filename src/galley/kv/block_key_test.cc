// SPDX-License-Identifier: Apache-2.0
#include "galley/kv/block_key.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace galley::kv {
namespace {

constexpr KeyRoot kRoot{.model = "nano",
                        .weights_digest = "weights",
                        .tokenizer_digest = "tokenizer",
                        .layout = "layout-1",
                        .dtype = "fp4",
                        .numeric_class = "bounded",
                        .shard = "",
                        .salt = ""};

std::vector<TokenId> Counting(int count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

Digest Bytes0To31() {
  Digest digest;
  std::iota(digest.bytes.begin(), digest.bytes.end(), std::uint8_t{0});
  return digest;
}

// The published vectors of SHA-256 for the empty message and for "abc" (FIPS 180-4 examples); one hasher, reused.
TEST(Sha256, KnownAnswers) {
  Sha256 hasher;
  const std::uint8_t abc[] = {'a', 'b', 'c'};
  EXPECT_EQ(hasher.Bytes(abc).Finish().ToHex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hasher.Finish().ToHex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

// Golden keys, computed with another SHA-256 from the layout in block_key.h: two processes must agree on them.
// root = H(u32 18 "galley block key 1", u32 128, each root field as u32 length and bytes); key 0 = H(root, ids 0..127).
TEST(BlockKey, K7_GoldenKeysAreTheSameInEveryProcess) {
  const KeyChain chain = MakeKeyChain(RootKey(kRoot), Counting(300));
  EXPECT_EQ(chain.root.ToHex(), "733a7018272a2d19c409a4939c670dbaaad2c2db07a3441e3946df712c028a7c");
  ASSERT_EQ(chain.blocks.size(), 2u);  // 300 / 128
  EXPECT_EQ(chain.blocks[0].ToHex(), "4a3f98b186a1db180e47dc84778bc58099732e5c402dd3b54e187cacbc2cf03b");
  EXPECT_EQ(chain.blocks[1].ToHex(), "430c47dfcbb6635aba5b10c3a0182233a76227921197053c59dc87a560bb6d94");
  const ImageSpan image{.begin = 100, .end = 200, .digest = Bytes0To31()};
  EXPECT_EQ(MakeKeyChain(chain.root, Counting(128), {&image, 1}).blocks[0].ToHex(),
            "7bf61a50c519a25037366f91faf7f8dd67b771971f28c4cba3dabee41568d74e");
}

// Every field of the root separates caches: another layout (K6), another tenant (K9), other weights and so on.
TEST(BlockKey, K6_K9_EveryRootFieldSeparates) {
  std::set<Digest> roots{RootKey(kRoot)};
  std::string_view KeyRoot::*const fields[] = {&KeyRoot::model,
                                               &KeyRoot::weights_digest,
                                               &KeyRoot::tokenizer_digest,
                                               &KeyRoot::layout,
                                               &KeyRoot::dtype,
                                               &KeyRoot::numeric_class,
                                               &KeyRoot::shard,
                                               &KeyRoot::salt};
  for (std::string_view KeyRoot::*const field : fields) {
    KeyRoot other = kRoot;
    other.*field = "other";
    EXPECT_TRUE(roots.insert(RootKey(other)).second);
  }
  EXPECT_EQ(roots.size(), 9u);
  // A byte that moves from one field to its neighbour is a difference too.
  KeyRoot left = kRoot, right = kRoot;
  left.shard = "ab", left.salt = "c";
  right.shard = "a", right.salt = "bc";
  EXPECT_NE(RootKey(left), RootKey(right));
}

TEST(BlockKey, AKeyDependsOnEveryTokenBeforeItsEnd) {
  const BlockKey root = RootKey(kRoot);
  const std::vector<TokenId> tokens = Counting(384);
  const KeyChain chain = MakeKeyChain(root, tokens);
  for (const int changed : {0, 127, 128, 255, 256, 383}) {
    std::vector<TokenId> other = tokens;
    other[changed] += 1000;
    const KeyChain other_chain = MakeKeyChain(root, other);
    for (int block = 0; block < 3; ++block) {
      EXPECT_EQ(chain.blocks[block] == other_chain.blocks[block], block < changed / 128) << changed << " " << block;
    }
  }
}

// All rows of an image carry one token id; only the digest and the place of the image tell two prompts apart.
TEST(BlockKey, K5_ImagesAreKeyedByTheirWholeDigest) {
  const BlockKey root = RootKey(kRoot);
  const std::vector<TokenId> tokens(128, 129264);
  std::set<Digest> keys{MakeKeyChain(root, tokens).blocks[0]};
  constexpr int kImages = 100'000;
  for (int i = 0; i < kImages; ++i) {
    ImageSpan image{.begin = 0, .end = 128, .digest = {}};
    // Digests that differ in two bytes only, at either end: none may be cut off.
    image.digest.bytes[0] = static_cast<std::uint8_t>(i);
    image.digest.bytes[31] = static_cast<std::uint8_t>(i >> 8);
    image.digest.bytes[15] = static_cast<std::uint8_t>(i >> 16);
    keys.insert(MakeKeyChain(root, tokens, {&image, 1}).blocks[0]);
  }
  EXPECT_EQ(keys.size(), kImages + 1u);
}

TEST(BlockKey, OnlyOverlappingImagesMatterAndTheirOffsetDoes) {
  const BlockKey root = RootKey(kRoot);
  const std::vector<TokenId> tokens(384, 129264);
  const KeyChain none = MakeKeyChain(root, tokens);
  const ImageSpan second{.begin = 130, .end = 250, .digest = Bytes0To31()};
  const KeyChain with = MakeKeyChain(root, tokens, {&second, 1});
  EXPECT_EQ(with.blocks[0], none.blocks[0]);  // the image begins behind block 0
  EXPECT_NE(with.blocks[1], none.blocks[1]);
  EXPECT_NE(with.blocks[2], none.blocks[2]);  // through its parent
  const ImageSpan moved{.begin = 131, .end = 251, .digest = Bytes0To31()};
  EXPECT_NE(MakeKeyChain(root, tokens, {&moved, 1}).blocks[1], with.blocks[1]);
}

}  // namespace
}  // namespace galley::kv
