// SPDX-License-Identifier: Apache-2.0
// What running only a prompt's tail through the decoder changes on nano: KL of the next-token distributions along the
// golden continuations, and that it does not depend on how the prompt was cut. Prints the figures of docs/numerics.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "galley/engine/loaded_model.h"
#include "galley/engine/sequence.h"

namespace galley {
namespace {

const std::filesystem::path kRoot = GALLEY_SOURCE_DIR;

struct Divergence {
  double kl = 0;  // nats, of the second from the first
  bool same_choice = false;
};

Divergence Compare(const float* whole, const float* truncated, std::size_t count) {
  const auto log_sum = [count](const float* logits) {
    const auto largest = static_cast<double>(*std::max_element(logits, logits + count));
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += std::exp(static_cast<double>(logits[i]) - largest);
    return largest + std::log(sum);
  };
  const double a = log_sum(whole), b = log_sum(truncated);
  Divergence result;
  for (std::size_t i = 0; i < count; ++i) {
    const double p = static_cast<double>(whole[i]) - a, q = static_cast<double>(truncated[i]) - b;
    result.kl += std::exp(p) * (p - q);
  }
  result.same_choice =
      std::max_element(whole, whole + count) - whole == std::max_element(truncated, truncated + count) - truncated;
  return result;
}

// Logits of the prompt's last row and of every row of the continuation but the last, from prompt chunks of those sizes.
std::vector<float> Logits(engine::LoadedModel& loaded, const std::vector<TokenId>& prompt,
                          const std::vector<TokenId>& continuation, int keep, const std::vector<std::size_t>& chunks) {
  const auto length = static_cast<Position>(prompt.size());
  engine::Sequence sequence(loaded, keep > 0 ? std::max<Position>(0, length - keep) : 0);
  std::vector<float> logits;
  std::size_t done = 0;
  for (std::size_t i = 0; done < prompt.size(); ++i) {
    const std::size_t rows = std::min(chunks[i % chunks.size()], prompt.size() - done);
    auto part = sequence.Append(std::span(prompt).subspan(done, rows), done + rows == prompt.size() ? 1 : 0);
    EXPECT_TRUE(part) << part.error().ToString();
    logits.insert(logits.end(), part->begin(), part->end());
    done += rows;
  }
  for (std::size_t i = 0; i + 1 < continuation.size(); ++i) {
    auto part = sequence.Append(std::span(continuation).subspan(i, 1), 1);
    EXPECT_TRUE(part) << part.error().ToString();
    logits.insert(logits.end(), part->begin(), part->end());
  }
  return logits;
}

TEST(Truncation, KlOfNanoAndEqualityOfChunks) {
  std::ifstream file(kRoot / "tests/golden/nano/golden.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  auto loaded = engine::LoadedModel::Load({.model_dir = kRoot / "models/nano", .rows_max = 1024});
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  const auto vocab = static_cast<std::size_t>(loaded->config().vocab_size);
  const std::uint32_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (const int keep : {128, 140}) {
    double kl = 0, worst = 0;
    int rows = 0, same = 0;
    for (const auto& golden : cases) {
      const auto prompt = golden.at("ids").get<std::vector<TokenId>>();
      const auto continuation = golden.at("greedy").get<std::vector<TokenId>>();
      if (static_cast<int>(prompt.size()) <= keep) continue;
      const std::vector<float> whole = Logits(*loaded, prompt, continuation, 0, {prompt.size()});
      const std::vector<float> truncated = Logits(*loaded, prompt, continuation, keep, {prompt.size()});
      std::vector<std::size_t> chunks(7);
      for (std::size_t& chunk : chunks) chunk = 1 + random() % 200;
      const std::vector<float> cut = Logits(*loaded, prompt, continuation, keep, chunks);
      ASSERT_EQ(cut.size(), truncated.size());
      EXPECT_EQ(std::memcmp(cut.data(), truncated.data(), cut.size() * sizeof(float)), 0) << golden.at("name");
      for (std::size_t at = 0; at < whole.size(); at += vocab) {
        const Divergence d = Compare(whole.data() + at, truncated.data() + at, vocab);
        kl += d.kl;
        worst = std::max(worst, d.kl);
        same += d.same_choice;
        ++rows;
      }
    }
    std::printf("decoder truncated to %d rows: mean KL %.2e, largest %.2e, same choice in %d of %d rows\n", keep,
                kl / rows, worst, same, rows);
    EXPECT_GT(kl, 0) << "truncation changed nothing";
    EXPECT_LT(kl / rows, 1e-4);  // the reference implementation measured 3e-6 to 2e-5
    EXPECT_EQ(same, rows);
  }
}

}  // namespace
}  // namespace galley
