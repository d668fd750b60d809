// SPDX-License-Identifier: Apache-2.0
#include "galley/model/dsv4/state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "galley/backend/ref/ref_backend.h"

namespace galley::model {
namespace {

constexpr std::int32_t kTokens = 12;

Config EngramOnly(int max_ngram, int draft_block) {
  Config config;
  config.n_layers = 1;
  config.head_dim = 32;
  config.window_size = 4;
  config.compress_ratios = {0};
  config.engram.layer_ids = {0};
  config.engram.max_ngram_size = max_ngram;
  config.engram.n_heads = 1;
  config.engram.compressed_vocab_size = kTokens;
  config.dspark.n_stages = draft_block > 0 ? 1 : 0;
  config.dspark.block_size = draft_block;
  return config;
}

// Table rows of one row per n-gram size, from a hash that is the ids themselves: with multipliers 1, 100, 10000, …
// nothing is lost modulo a large prime, and XOR of the products tells every id of the n-gram.
std::vector<std::int32_t> RowsThroughTheRing(const Config& config, int step_rows) {
  backend::RefBackend backend(1);
  const auto state = StateStorage::Create(backend, config, 0, 1);
  EXPECT_TRUE(state);
  const int columns = config.engram.columns();
  std::vector<std::int64_t> multipliers, primes(static_cast<std::size_t>(columns), 2147483629);
  const std::vector<std::int64_t> offsets(static_cast<std::size_t>(columns), 0);
  for (std::int64_t power = 1; multipliers.size() < 4; power *= 100) multipliers.push_back(power);
  const backend::EngramHashView hash{multipliers.data(), primes.data(), offsets.data()};
  std::array<std::int32_t, kTokens> ids{}, positions{}, sequence_of{};
  for (std::int32_t i = 0; i < kTokens; ++i) {
    const auto at = static_cast<std::size_t>(i);
    ids[at] = positions[at] = i;
  }
  std::vector<std::int32_t> rows(static_cast<std::size_t>(kTokens * columns));
  for (std::int32_t start = 0; start < kTokens; start += step_rows) {
    const backend::SequenceEntry entry{.rows = step_rows, .start = start};
    backend.EngramRows({.step = {.rows = step_rows,
                                 .sequences = 1,
                                 .tokens = ids.data() + start,
                                 .positions = positions.data() + start,
                                 .row_sequence = sequence_of.data(),
                                 .table = &entry},
                        .compressed_ids = ids.data(),
                        .pad = 0,
                        .id_ring = state->IdRing(),
                        .max_ngram = config.engram.max_ngram_size,
                        .heads = 1,
                        .layers = 1,
                        .hashes = &hash,
                        .rows = rows.data() + start * columns});
  }
  return rows;
}

// Token p is p, so the n-gram that ends at p is p, p - 1, …, and 0 before the start.
TEST(StateLayout, IdRingHoldsWholeNgramsWithAndWithoutDrafts) {
  for (const int max_ngram : {2, 3, 4}) {
    std::vector<std::int32_t> expected;
    for (std::int64_t p = 0; p < kTokens; ++p) {
      std::int64_t mixed = p, power = 1;
      for (std::int64_t back = 1; back < max_ngram; ++back) {
        power *= 100;
        mixed ^= std::max<std::int64_t>(p - back, 0) * power;
        expected.push_back(static_cast<std::int32_t>(mixed));
      }
    }
    for (const int draft_block : {0, 1, 5}) {
      for (const int step_rows : {1, 3, kTokens}) {
        EXPECT_EQ(RowsThroughTheRing(EngramOnly(max_ngram, draft_block), step_rows), expected)
            << "n-grams to " << max_ngram << ", drafts of " << draft_block << ", steps of " << step_rows;
      }
    }
  }
}

// After the longest rejected draft the first row to run again still finds the ids before it.
TEST(StateLayout, IdRingOutlastsARejectedDraft) {
  for (const int draft_block : {1, 5}) {
    const StateLayout layout = StateLayout::Make(EngramOnly(4, draft_block));
    // Rows up to p are stored; p - draft_block + 1 runs again and reads the 3 ids before it.
    const int oldest_read = -draft_block + 1 - 3, oldest_kept = -(layout.id_ring_rows - 1);
    EXPECT_GE(oldest_read, oldest_kept);
  }
}

// A snapshot at position p is copied when rows up to p + 4 were run; a restored sequence runs p - rewind again, which
// sees the window - 1 rows before it: rewind + window - 1 + 5 rows back from the newest, and the newest.
TEST(StateLayout, RingsHoldTheWindowOfARestartedRow) {
  Config config = EngramOnly(4, 5);
  config.n_layers = 2;
  config.compress_ratios = {0, 0};
  config.candidate_source_layer = 1;  // layer 0 is the encoder, layer 1 the decoder
  const StateLayout layout = StateLayout::Make(config, {.encoder = 10, .decoder = 0});
  EXPECT_EQ(layout.ring_rows(config, 0), 10 + 4 + 5);
  EXPECT_EQ(layout.ring_rows(config, 1), 4 + 5);
  EXPECT_EQ(layout.window_offset[1] - layout.window_offset[0], 19u * layout.window_record_bytes + 13);
  EXPECT_EQ(layout.window_record_bytes, 33u);  // 19 * 33 = 627, padded to 16
}

}  // namespace
}  // namespace galley::model
