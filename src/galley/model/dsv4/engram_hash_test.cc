// SPDX-License-Identifier: Apache-2.0
#include "galley/model/dsv4/engram_hash.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "galley/io/test_files.h"
#include "galley/model/test_configs.h"

namespace galley::model {
namespace {

EngramConfig RealConfig() {
  return ParseConfig(FlashConfigJson(), "config.json")->engram;
}

EngramConfig NanoConfig() {
  const std::filesystem::path file = std::filesystem::path(GALLEY_SOURCE_DIR) / "models/nano/config.json";
  return ParseConfig(io::ReadBytes(file), "config.json")->engram;
}

// Rows of one token from its compressed ids, newest first: the hash of the specification, written out.
std::vector<std::int64_t> Rows(const EngramHash& hash, const std::vector<std::int64_t>& ids, int heads) {
  std::vector<std::int64_t> rows;
  std::int64_t mixed = ids[0] * hash.multipliers[0];
  for (std::size_t s = 1; s < ids.size(); ++s) {
    mixed ^= ids[s] * hash.multipliers[s];
    for (int head = 0; head < heads; ++head) {
      const std::size_t column = rows.size();
      rows.push_back(mixed % hash.primes[column] + hash.offsets[column]);
    }
  }
  return rows;
}

TEST(EngramHash, RealModelHasThePublishedMultipliersAndTables) {
  const auto hashes = MakeEngramHashes(RealConfig());
  ASSERT_TRUE(hashes) << hashes.error().ToString();
  EXPECT_EQ((*hashes)[0].multipliers,
            (std::vector<std::int64_t>{76632096046245, 4839876093313, 35959672319349, 73987337458391}));
  EXPECT_EQ((*hashes)[1].multipliers,
            (std::vector<std::int64_t>{67716810739261, 51510806800915, 30921347202721, 82619226485591}));
  EXPECT_EQ((*hashes)[0].primes.front(), 16000057);
  EXPECT_EQ((*hashes)[1].primes.back(), 16000889);
  EXPECT_EQ((*hashes)[0].table_rows(), 384006168);
}

TEST(EngramHash, RealModelRowsOfKnownIds) {
  const auto hashes = MakeEngramHashes(RealConfig());
  ASSERT_TRUE(hashes);
  const std::vector<std::int64_t> first = Rows((*hashes)[0], {5, 7, 11, 13}, 8);
  ASSERT_EQ(first.size(), 24u);
  EXPECT_EQ(first.front(), 6961830);
  EXPECT_EQ(first[8], 128920094);  // first head of the 3-grams
  EXPECT_EQ(first.back(), 372696692);
  const std::vector<std::int64_t> second = Rows((*hashes)[1], {99091, 99090, 99089, 99088}, 8);
  EXPECT_EQ(second.front(), 3381373);
  EXPECT_EQ(second.back(), 368347993);
}

TEST(EngramHash, NanoMultipliers) {
  const EngramConfig config = NanoConfig();
  const auto hashes = MakeEngramHashes(config);
  ASSERT_TRUE(hashes) << hashes.error().ToString();
  EXPECT_EQ((*hashes)[0].multipliers, (std::vector<std::int64_t>{3575154266202745, 225797081844927, 1677643996925123}));
  EXPECT_EQ((*hashes)[1].multipliers, (std::vector<std::int64_t>{1284229336454501, 3809688103790451, 507493388715235}));
  EXPECT_EQ((*hashes)[0].primes.front(), 503);
  EXPECT_EQ((*hashes)[0].primes.back(), 563);
  EXPECT_EQ((*hashes)[1].primes.back(), 607);
}

TEST(EngramHash, TablesOfAnotherSizeAreRefused) {
  EngramConfig config = NanoConfig();
  config.num_embeddings[1] += 1;
  const auto hashes = MakeEngramHashes(config);
  ASSERT_FALSE(hashes);
  EXPECT_EQ(hashes.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(hashes.error().message.find("4705 rows"), std::string::npos) << hashes.error().message;
}

}  // namespace
}  // namespace galley::model
