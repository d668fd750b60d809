// SPDX-License-Identifier: Apache-2.0
// The long goldens: every probe case, every nano prompt, perplexity of held-out text, and whatever newer set lies
// beside the checkout.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "galley/backend/sampling.h"
#include "galley/engine/generator.h"
#include "galley/engine/loaded_model.h"
#include "galley/engine/sequence.h"
#include "golden_case.h"

namespace galley::golden {
namespace {

const std::filesystem::path kGolden = std::filesystem::path(GALLEY_SOURCE_DIR) / "tests/golden";
const std::filesystem::path kShared = GALLEY_SHARED_DIR;
const std::filesystem::path kNano = std::filesystem::path(GALLEY_SOURCE_DIR) / "models/nano";

// Each test once for every backend; the limits are the same.
class GoldenSlow : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends, GoldenSlow, testing::Values(GALLEY_TEST_BACKENDS),
                         [](const auto& backend) { return std::string(backend.param); });

std::string Complaints(const std::filesystem::path& model_dir, const std::filesystem::path& file) {
  const auto golden = engine::ReadTensors(file);
  if (!golden) return golden.error().ToString();
  engine::DumpOptions options = OptionsFor(model_dir, *golden);
  options.device.backend = GoldenSlow::GetParam();
  const auto dump = engine::Dump(options);
  if (!dump) return dump.error().ToString();
  const std::string set = golden->at("ids").shape[0] <= 48 ? "probe_short" : "probe_long";
  std::string text;
  const Limits limits = Limits::Load(kGolden / "limits.json");
  for (const std::string& line :
       limits.Violations(engine::CompareTensors(*dump, *golden), LimitSet(set, GoldenSlow::GetParam()))) {
    text += line + "\n";
  }
  return text;
}

TEST_P(GoldenSlow, EveryProbeCase) {
  for (const auto& file : GoldenFiles(kGolden / "v41_probe")) {
    EXPECT_EQ(Complaints(kGolden / "v41_probe", file), "") << file.filename();
  }
}

// Sets beside the checkout, of any V4.1 probe, so that a newer or another one is picked up without a change here.
TEST_P(GoldenSlow, SetsBesideTheCheckout) {
  if (!std::filesystem::exists(kShared / "golden")) GTEST_SKIP() << "no golden sets beside the checkout";
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kShared / "golden")) {
    std::ifstream stream(entry.path() / "config.json");
    const nlohmann::json config = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
    if (!config.is_object() || config.value("model_type", "") != "deepseek_v41") continue;
    for (const auto& file : GoldenFiles(entry.path())) {
      EXPECT_EQ(Complaints(entry.path(), file), "") << file;
      ++cases;
    }
  }
  EXPECT_GT(cases, 0);
}

TEST_P(GoldenSlow, EveryNanoPrompt) {
  std::ifstream file(kGolden / "nano/golden.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  auto generator = engine::Generator::Create({.model_dir = kNano, .device = {.backend = GetParam()}});
  ASSERT_TRUE(generator) << generator.error().ToString();
  for (const auto& golden : cases) {
    const auto expected = golden.at("greedy").get<std::vector<TokenId>>();
    const auto margins = golden.at("margin").get<std::vector<double>>();
    engine::GenerateRequest request;
    request.prompt_ids = golden.at("ids").get<std::vector<TokenId>>();
    request.sampling.temperature = 0;
    request.max_tokens = static_cast<int>(expected.size());
    request.stop_ids = {(*generator)->config().eos_token_id};
    const auto result = (*generator)->Generate(request);
    ASSERT_TRUE(result) << result.error().ToString();
    for (std::size_t i = 0; i < expected.size() && margins[i] >= 0.35; ++i) {
      ASSERT_LT(i, result->tokens.size());
      ASSERT_EQ(result->tokens[i].id, expected[i]) << golden.at("name") << " step " << i << ", margin " << margins[i];
    }
  }
}

// Drafts at every position of the golden continuations, with the golden tokens as context. A near tie may fall the
// other way, so shares are compared: drafted tokens, and drafts accepted in a round.
TEST_P(GoldenSlow, NanoDrafts) {
  std::ifstream file(kGolden / "nano/golden.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  auto loaded = engine::LoadedModel::Load(
      {.model_dir = kNano, .device = {.backend = GetParam()}, .rows_max = 1024, .drafts = true});
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  double equal = 0, tokens = 0, accepted = 0, golden_accepted = 0, rounds = 0;
  for (const auto& golden : cases) {
    const auto ids = golden.at("ids").get<std::vector<TokenId>>(),
               greedy = golden.at("greedy").get<std::vector<TokenId>>();
    const auto drafts = golden.at("drafts").get<std::vector<std::vector<TokenId>>>();
    const auto stored = golden.at("accepted").get<std::vector<int>>();
    engine::Sequence sequence(*loaded);
    ASSERT_TRUE(sequence.Append(ids, 1));
    for (std::size_t j = 0; j < drafts.size(); ++j) {
      ASSERT_TRUE(sequence.Append({&greedy[j], 1}, 1));
      const model::DraftInput input = {.slot = SlotId{0},
                                       .position = sequence.length() - 1,
                                       .token = greedy[j + 1],
                                       .decoder_floor = 0,
                                       .sampling = {.temperature = 0}};
      const auto result = loaded->model().Drafts({&input, 1}, loaded->state());
      ASSERT_TRUE(result) << result.error().ToString();
      const std::vector<TokenId>& ours = (*result)[0].tokens;
      for (std::size_t i = 0; i < drafts[j].size(); ++i) equal += ours[i] == drafts[j][i];
      tokens += static_cast<double>(drafts[j].size());
      if (j >= stored.size()) continue;
      int matches = 0;
      while (matches < 5 &&
             ours[static_cast<std::size_t>(matches)] == greedy[j + 2 + static_cast<std::size_t>(matches)])
        ++matches;
      accepted += matches;
      golden_accepted += stored[j];
      ++rounds;
    }
  }
  std::printf("drafted tokens equal %.4f; accepted a round %.4f, golden %.4f\n", equal / tokens, accepted / rounds,
              golden_accepted / rounds);
  EXPECT_GT(equal / tokens, 0.9);
  EXPECT_NEAR(accepted / golden_accepted, 1.0, 0.03);
}

// Mean negative log likelihood of ids[1 …] under the model.
double NegativeLogLikelihood(engine::LoadedModel& loaded, const std::vector<TokenId>& ids) {
  engine::Sequence sequence(loaded);
  const auto vocab = static_cast<std::size_t>(loaded.config().vocab_size);
  const std::size_t rows = ids.size() - 1;
  const auto logits = sequence.Append(std::span(ids).first(rows), static_cast<int>(rows));
  EXPECT_TRUE(logits);
  double sum = 0;
  for (std::size_t i = 0; i < rows; ++i) {
    sum -= static_cast<double>(backend::LogProbability(std::span(*logits).subspan(i * vocab, vocab), ids[i + 1]));
  }
  return sum / static_cast<double>(rows);
}

// Held-out text against the stored figures: perplexity within 0.3 %, so 0.003 in its logarithm, over a fifth of the
// rows.
TEST_P(GoldenSlow, HeldOutText) {
  constexpr std::size_t kRows = 4;
  const auto text = engine::ReadTensors(kGolden / "nano/heldout_text.safetensors");
  ASSERT_TRUE(text);
  const std::vector<double> values = engine::Values(text->at("ids"));
  std::ifstream file(kGolden / "nano/figures.json");
  const auto figures = nlohmann::json::parse(file).at("heldout_text").at("row_nll").get<std::vector<double>>();
  auto loaded = engine::LoadedModel::Load(
      {.model_dir = kNano, .device = {.backend = GetParam()}, .rows_max = 1024, .logit_rows_max = 1024});
  ASSERT_TRUE(loaded) << loaded.error().ToString();
  double ours = 0, stored = 0;
  for (std::size_t row = 0; row < kRows; ++row) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row * 1024);
    ours += NegativeLogLikelihood(*loaded, {begin, begin + 1025}) / kRows;
    stored += figures[row] / kRows;
  }
  std::printf("mean negative log likelihood %.5f, stored %.5f\n", ours, stored);
  EXPECT_NEAR(ours, stored, 0.003);
}

}  // namespace
}  // namespace galley::golden
