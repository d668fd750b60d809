// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of prompts and outputs against a softmax written out here, over logits of the whole sequence run in
// one step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "galley/engine/engine_for_test.h"
#include "galley/engine/loaded_model.h"
#include "galley/engine/sequence.h"

namespace galley::engine {
namespace {

// log softmax of every row, in double.
std::vector<std::vector<double>> LogSoftmaxRows(const std::vector<TokenId>& ids) {
  auto loaded = LoadedModel::Load(
      {.model_dir = kProbe, .device = {.backend = "ref"}, .rows_max = 512, .logit_rows_max = 512, .max_seq_len = 1024});
  EXPECT_TRUE(loaded);
  Sequence sequence(*loaded);
  const auto logits = sequence.Append(ids, static_cast<int>(ids.size()));
  EXPECT_TRUE(logits);
  const auto vocab = static_cast<std::size_t>(loaded->config().vocab_size);
  std::vector<std::vector<double>> rows;
  for (std::size_t r = 0; r < ids.size(); ++r) {
    std::vector<double> row(logits->begin() + static_cast<std::ptrdiff_t>(r * vocab),
                            logits->begin() + static_cast<std::ptrdiff_t>((r + 1) * vocab));
    const double largest = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const double x : row) sum += std::exp(x - largest);
    for (double& x : row) x -= largest + std::log(sum);
    rows.push_back(std::move(row));
  }
  return rows;
}

void ExpectScores(const GeneratedToken& token, const std::vector<double>& row, int top, std::size_t position) {
  EXPECT_NEAR(token.logprob, row[static_cast<std::size_t>(token.id)], 1e-5) << "position " << position;
  std::vector<int> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&row](int a, int b) {
    return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
  });
  ASSERT_EQ(token.alternatives.size(), static_cast<std::size_t>(top));
  for (int i = 0; i < top; ++i) {
    const TokenLogprob& other = token.alternatives[static_cast<std::size_t>(i)];
    EXPECT_EQ(other.id, order[static_cast<std::size_t>(i)]) << "position " << position << ", rank " << i;
    EXPECT_NEAR(other.logprob, row[static_cast<std::size_t>(other.id)], 1e-5);
  }
}

class PromptLogprobs : public ::testing::TestWithParam<int> {};  // decoder rows that a prompt keeps; 0: all

// In chunks, beside another request, with the prefix in the cache already, and with a truncated decoder: every row runs
// all layers all the same.
TEST_P(PromptLogprobs, EqualALogSoftmaxOfTheWholePrompt) {
  EngineOptions options = Options();
  options.device.backend = "ref";
  options.step_rows_max = 140;
  options.decoder_keep = GetParam();
  const auto engine = Make(options);
  EngineRequest request = Request(1, 170, 0, 3);
  (void)RunOne(*engine, request);  // leaves a block in the cache
  request.prompt_logprobs = 20;
  request.sampling.top_logprobs = 5;
  const auto results = engine->Generate({request, Request(2, 40)});
  ASSERT_TRUE(results);
  const EngineResult& result = (*results)[0];
  EXPECT_EQ(result.start.cached_tokens, 0);
  EXPECT_EQ(result.start.hit_limit, "prompt_logprobs");
  ASSERT_EQ(result.prompt_logprobs.size(), 169u);

  std::vector<TokenId> ids = request.prompt_ids;
  for (const TokenId id : IdsOf(result.branches[0])) ids.push_back(id);
  const auto rows = LogSoftmaxRows(ids);
  for (std::size_t i = 0; i < 169; ++i) {
    EXPECT_EQ(result.prompt_logprobs[i].id, request.prompt_ids[i + 1]);
    ExpectScores(result.prompt_logprobs[i], rows[i], 20, i + 1);
  }
  for (std::size_t i = 0; i < 3; ++i) ExpectScores(result.branches[0].tokens[i], rows[169 + i], 5, 170 + i);
}
INSTANTIATE_TEST_SUITE_P(DecoderKeep, PromptLogprobs, ::testing::Values(0, 140));

TEST(PromptLogprobsEdge, OneTokenHasNone) {
  const auto engine = Make(Options());
  EngineRequest request = Request(3, 1, 0, 2);
  request.prompt_logprobs = 0;
  const auto results = engine->Generate({request});
  ASSERT_TRUE(results);
  EXPECT_TRUE((*results)[0].prompt_logprobs.empty());
  EXPECT_EQ((*results)[0].branches[0].tokens.size(), 2u);
}

// Five blocks for four prompts that each fill one while they decode: some are preempted, and nothing is said twice.
TEST(PromptLogprobsEdge, EachPositionOnceWhateverIsPreempted) {
  EngineOptions options = Options();
  options.blocks = 5;
  const auto engine = Make(options);
  std::vector<EngineRequest> requests;
  for (std::uint32_t i = 0; i < 4; ++i) {
    requests.push_back(Request(70 + i, 120 + static_cast<int>(i), 0, 12));
    requests.back().prompt_logprobs = 0;
  }
  const auto results = engine->Generate(requests);
  ASSERT_TRUE(results);
  EXPECT_GT(engine->stats().scheduler.preemptions, 0);
  for (std::size_t i = 0; i < 4; ++i) {
    const std::vector<GeneratedToken>& scores = (*results)[i].prompt_logprobs;
    ASSERT_EQ(scores.size(), requests[i].prompt_ids.size() - 1);
    for (std::size_t p = 0; p < scores.size(); ++p) EXPECT_EQ(scores[p].id, requests[i].prompt_ids[p + 1]);
  }
}

}  // namespace
}  // namespace galley::engine
