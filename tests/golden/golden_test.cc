// SPDX-License-Identifier: Apache-2.0
// The backends against tensors of the official code: layer by layer on short prompts, single layers from exact
// input, top-k lists from stored operands, and greedy continuations. Long prompts and everything else is in
// golden_slow_test.cc.
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "galley/backend/ref/index_select.h"
#include "galley/engine/generator.h"
#include "galley/engine/loaded_model.h"
#include "galley/engine/sequence.h"
#include "galley/engine/tensor_collector.h"
#include "galley/text/tokenizer.h"
#include "golden_case.h"

namespace galley::golden {
namespace {

const std::filesystem::path kGolden = std::filesystem::path(GALLEY_SOURCE_DIR) / "tests/golden";
const std::filesystem::path kProbe = kGolden / "v41_probe";
const std::filesystem::path kNano = std::filesystem::path(GALLEY_SOURCE_DIR) / "models/nano";

std::string Lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// Each case once for every backend; the limits are the same.
class Golden : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends, Golden, testing::Values(GALLEY_TEST_BACKENDS),
                         [](const auto& backend) { return std::string(backend.param); });

void CompareCase(const std::filesystem::path& model_dir, const std::filesystem::path& file, const std::string& set) {
  const auto golden = engine::ReadTensors(file);
  ASSERT_TRUE(golden) << golden.error().ToString();
  engine::DumpOptions options = OptionsFor(model_dir, *golden);
  options.device.backend = Golden::GetParam();
  const auto dump = engine::Dump(options);
  ASSERT_TRUE(dump) << dump.error().ToString();
  const Limits limits = Limits::Load(kGolden / "limits.json");
  EXPECT_EQ(Lines(limits.Violations(engine::CompareTensors(*dump, *golden), LimitSet(set, Golden::GetParam()))), "");
}

TEST_P(Golden, ProbeOfFiveTokens) {
  CompareCase(kProbe, kProbe / "golden_t5.safetensors", "probe_short");
}
TEST_P(Golden, ProbeOfTwentyFourTokens) {
  CompareCase(kProbe, kProbe / "golden_t24.safetensors", "probe_short");
}
TEST_P(Golden, NanoLayers) {
  CompareCase(kNano, kGolden / "nano/golden_layers.safetensors", "nano");
}

// Experts that are read when they are chosen: every tensor keeps its bits. 4 of nano's 76 experts of 3 * 256 * 128
// values fit, so most are read and let go again and again.
TEST(ExpertsOnDisk, GiveTheSameTensors) {
  engine::DumpOptions options;
  options.model_dir = kNano;
  for (int i = 0; i < 40; ++i) options.ids.push_back(100 + 7 * i);
  options.device.backend = "cpu";
  options.greedy = 4;
  const auto in_memory = engine::Dump(options);
  ASSERT_TRUE(in_memory) << in_memory.error().ToString();
  options.device.experts = engine::WeightPlace::kDisk;
  options.device.expert_memory =
      4 * 25 * 4096;  // an expert: 52,224 bytes in 13 pages, and 12 for the ends of its arrays
  const auto on_disk = engine::Dump(options);
  ASSERT_TRUE(on_disk) << on_disk.error().ToString();
  ASSERT_EQ(in_memory->size(), on_disk->size());
  for (const auto& [name, tensor] : *in_memory) EXPECT_EQ(tensor.data, on_disk->at(name).data) << name;

  options.device.expert_memory -= 1;
  const auto too_little = engine::Dump(options);
  ASSERT_FALSE(too_little);
  EXPECT_NE(too_little.error().message.find("give at least 409600"), std::string::npos) << too_little.error().message;
  options.device.expert_memory += 1;
  options.device.backend = "ref";
  EXPECT_EQ(engine::Dump(options).error().code, ErrorCode::kUnsupported);
}

// Runs one layer of the probe on the stored output of the layer before, all 700 rows at once.
class OneLayer : public testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(OneLayer, FromExactInput) {
  const auto [layer, backend] = GetParam();
  const auto golden = engine::ReadTensors(kProbe / "golden_t700.safetensors");
  ASSERT_TRUE(golden);
  const std::vector<std::int32_t> ids = engine::Int32Values(golden->at("ids"));
  auto loaded = engine::LoadedModel::Load(
      {.model_dir = kProbe, .device = {.backend = backend}, .rows_max = static_cast<int>(ids.size())});
  ASSERT_TRUE(loaded) << loaded.error().ToString();

  std::vector<Position> rows;
  for (const std::int32_t row : engine::Int32Values(golden->at("rows"))) rows.push_back(row);
  engine::TensorCollector collector(loaded->backend(), {rows.begin(), rows.end()}, {});
  const engine::HostTensor& h = golden->at(engine::TensorName("h_all", layer - 1));
  const engine::HostTensor& pre = golden->at(engine::TensorName("pre_all", layer - 1));
  const model::LayerRange range = {.first = layer,
                                   .end = layer + 1,
                                   .h = {h.view().as<BFloat16>(), static_cast<std::size_t>(h.view().elements())},
                                   .pre = {pre.view().as<float>(), static_cast<std::size_t>(pre.view().elements())}};
  engine::Sequence sequence(*loaded);
  const auto logits = sequence.Append(ids, 0, &collector, &range);
  ASSERT_TRUE(logits) << logits.error().ToString();

  engine::TensorMap ours, theirs;
  for (const char* name : {"h", "pre", "topk"}) {
    const std::string full = engine::TensorName(name, layer);
    const auto tensor = collector.Take(full, rows);
    ASSERT_TRUE(tensor && tensor->has_value()) << full;
    ours[full] = **tensor;
    theirs[full] = golden->at(full);
  }
  const Limits limits = Limits::Load(kGolden / "limits.json");
  EXPECT_EQ(Lines(limits.Violations(engine::CompareTensors(ours, theirs), LimitSet("one_layer", backend))), "");
}

INSTANTIATE_TEST_SUITE_P(Golden, OneLayer,
                         testing::Combine(testing::Values(2, 4), testing::Values(GALLEY_TEST_BACKENDS)),
                         [](const auto& one) {
                           return fmt::format("{}_{}", std::get<0>(one.param), std::get<1>(one.param));
                         });

// Scores of every visible entry of a row, from the stored query, head weights and keys.
std::vector<backend::ref::ScoredEntry> StoredScores(const engine::TensorMap& golden, int layer, int key_layer,
                                                    std::size_t row, std::int64_t visible) {
  const auto floats = [&](const std::string& name, std::size_t first, std::size_t count) {
    const std::vector<double> values = engine::Values(golden.at(name));
    return std::vector<float>(values.begin() + static_cast<std::ptrdiff_t>(first),
                              values.begin() + static_cast<std::ptrdiff_t>(first + count));
  };
  const Shape& shape = golden.at(engine::TensorName("index_q", layer)).shape;
  const auto heads = static_cast<std::size_t>(shape[1]), dim = static_cast<std::size_t>(shape[2]);
  const std::vector<float> q = floats(engine::TensorName("index_q", layer), row * heads * dim, heads * dim);
  const std::vector<float> w = floats(engine::TensorName("index_w", layer), row * heads, heads);
  const std::vector<float> keys =
      floats(engine::TensorName("index_k", key_layer), 0, static_cast<std::size_t>(visible) * dim);
  std::vector<backend::ref::ScoredEntry> scored;
  for (std::int32_t j = 0; j < visible; ++j) {
    scored.push_back(
        {backend::ref::IndexScore(q, w, std::span(keys).subspan(static_cast<std::size_t>(j) * dim, dim)), j});
  }
  return scored;
}

// Scores of a list, best first; equal lists of scores mean equal lists up to ties.
std::vector<float> SortedScores(const std::vector<backend::ref::ScoredEntry>& scored,
                                const std::vector<std::int32_t>& list) {
  std::vector<float> scores;
  for (const std::int32_t entry : list) {
    if (entry >= 0) scores.push_back(scored[static_cast<std::size_t>(entry)].score);
  }
  std::sort(scores.rbegin(), scores.rend());
  return scores;
}

TEST(IndexSelect, TopKFromStoredOperands) {
  const auto config = model::Checkpoint::Open(kProbe);
  ASSERT_TRUE(config);
  const model::Config& c = config->config();
  const auto golden = engine::ReadTensors(kProbe / "golden_t700.safetensors");
  ASSERT_TRUE(golden);
  const std::vector<std::int32_t> rows = engine::Int32Values(golden->at("rows"));
  for (const int layer : c.index_source_layers) {
    const int source = c.kv_source(layer);
    const int ratio = c.compress_ratios[static_cast<std::size_t>(layer)];
    const engine::HostTensor& lists = golden->at(engine::TensorName("topk", layer));
    const std::vector<std::int32_t> stored = engine::Int32Values(lists);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::int64_t visible = (rows[r] + 1) / ratio;
      auto scored = StoredScores(*golden, layer, source, r, visible);
      const auto all = scored;
      if (layer > c.candidate_source_layer) {  // only entries inside the candidate source's blocks of the same row
        const auto blocks =
            backend::ref::CandidateBlocks(StoredScores(*golden, c.candidate_source_layer, source, r, visible),
                                          c.candidate_block_size, c.candidate_topk_blocks);
        std::erase_if(scored, [&](const backend::ref::ScoredEntry& s) {
          return std::find(blocks.begin(), blocks.end(), s.entry / c.candidate_block_size) == blocks.end();
        });
      }
      const auto width = static_cast<std::size_t>(lists.shape[1]);
      const std::vector<std::int32_t> theirs(stored.begin() + static_cast<std::ptrdiff_t>(r * width),
                                             stored.begin() + static_cast<std::ptrdiff_t>((r + 1) * width));
      const std::vector<std::int32_t> ours = backend::ref::TopAscending(scored, c.index_topk);
      EXPECT_EQ(SortedScores(all, ours), SortedScores(all, theirs)) << "layer " << layer << ", row " << rows[r];
    }
  }
}

// Two prompts of nano's golden.json, through the tokenizer and greedy generation, to the end.
class NanoPrompt : public testing::TestWithParam<std::tuple<std::string, const char*>> {};

TEST_P(NanoPrompt, GreedyText) {
  std::ifstream file(kGolden / "nano/golden.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  const auto found =
      std::find_if(cases.begin(), cases.end(), [](const auto& c) { return c.at("name") == std::get<0>(GetParam()); });
  ASSERT_NE(found, cases.end());
  auto generator = engine::Generator::Create({.model_dir = kNano, .device = {.backend = std::get<1>(GetParam())}});
  ASSERT_TRUE(generator) << generator.error().ToString();
  const auto ids = (*generator)->tokenizer().Encode(found->at("prompt").get<std::string>(), text::AddedTokens::kMatch);
  ASSERT_TRUE(ids);
  EXPECT_EQ(*ids, found->at("ids").get<std::vector<TokenId>>());

  const auto expected = found->at("greedy").get<std::vector<TokenId>>();
  const auto margins = found->at("margin").get<std::vector<double>>();
  engine::GenerateRequest request;
  request.prompt_ids = *ids;
  request.sampling.temperature = 0;
  request.max_tokens = static_cast<int>(expected.size());
  request.stop_ids = {(*generator)->config().eos_token_id};
  const auto result = (*generator)->Generate(request);
  ASSERT_TRUE(result) << result.error().ToString();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (margins[i] < 0.35) break;  // from here another path is as good
    ASSERT_LT(i, result->tokens.size());
    ASSERT_EQ(result->tokens[i].id, expected[i]) << "step " << i << ", margin " << margins[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, NanoPrompt,
                         testing::Combine(testing::Values("json", "think"), testing::Values(GALLEY_TEST_BACKENDS)),
                         [](const auto& prompt) {
                           return std::get<0>(prompt.param) + "_" + std::get<1>(prompt.param);
                         });

}  // namespace
}  // namespace galley::golden
