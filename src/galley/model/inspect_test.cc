// SPDX-License-Identifier: Apache-2.0
#include "galley/model/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "galley/io/json.h"
#include "galley/io/test_files.h"
#include "galley/model/test_configs.h"

namespace galley::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::filesystem::path kSource = GALLEY_SOURCE_DIR;

std::size_t At(Part part) {
  return static_cast<std::size_t>(part);
}

// Counts of the published checkpoint.
TEST(ModelSize, OfTheRealModel) {
  const ModelSize size = ComputeModelSize(*ParseConfig(FlashConfigJson(), "config.json"));
  EXPECT_EQ(size.total.tensors, 96'085);
  EXPECT_EQ(size.total.bytes, 510'286'023'000);
  EXPECT_NEAR(static_cast<double>(size.parts[At(Part::kEngramTables)].parameters), 196.6e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(size.parts[At(Part::kEngramTables)].bytes), 202.76e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(size.parts[At(Part::kDraft)].parameters), 14.2e9, 0.05e9);
  const std::int64_t backbone = size.total.parameters - size.parts[At(Part::kEngramTables)].parameters -
                                size.parts[At(Part::kDraft)].parameters - size.parts[At(Part::kVision)].parameters;
  EXPECT_NEAR(static_cast<double>(backbone), 551.6e9, 0.3e9);
  EXPECT_NEAR(static_cast<double>(size.total.active), 16.13e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(size.total.active - size.parts[At(Part::kHead)].active), 15.47e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(size.encoder_active), 7.90e9, 0.005e9);
}

// Sizes of history and state, as in "Memory" of ARCHITECTURE.md.
TEST(KvCost, OfTheRealModel) {
  const KvCost kv = ComputeKvCost(*ParseConfig(FlashConfigJson(), "config.json"));
  ASSERT_EQ(kv.owners.size(), 4u);
  EXPECT_EQ(kv.owners[0].entry_bytes, 288 + 68);
  EXPECT_EQ(kv.owners[0].bytes_per_token(), 178);
  EXPECT_EQ(kv.owners[3].bytes_per_token(), 356);
  EXPECT_EQ(kv.history_bytes_per_token, 890);
  EXPECT_EQ(kv.block_bytes, 113'920);
  EXPECT_EQ(kv.HistoryBytes(1 << 20), 890LL << 20);
  EXPECT_EQ(kv.HistoryBytes(1), 113'920);    // one block
  EXPECT_EQ(kv.HistoryBytes(129), 227'840);  // two
  EXPECT_EQ(kv.window_bytes, 40 * 133 * 528);
  EXPECT_EQ(kv.draft_bytes, 3 * 133 * 528);
  EXPECT_EQ(kv.compressor_bytes, 3 * 7 * 2 * 512 * 4);  // three ratio-2 owners, 2 + 5 tokens, value and gate in fp32
  EXPECT_EQ(kv.engram_bytes, 8 * 4);                    // 3 + 5 ids
}

TEST(KvCost, WithoutDraftsNothingIsTakenBack) {
  Config config = *ParseConfig(FlashConfigJson(), "config.json");
  config.dspark = {};
  const KvCost kv = ComputeKvCost(config);
  EXPECT_EQ(kv.window_bytes, 40 * 128 * 528);
  EXPECT_EQ(kv.draft_bytes, 0);
}

TEST(Inspect, WholeModel) {
  const InspectReport report = Inspect(kSource / "models/nano");
  EXPECT_TRUE(report.ok()) << report.problems.front().ToString();
  EXPECT_EQ(report.tensors, 815);
  EXPECT_EQ(report.files, 4);
  EXPECT_EQ(report.config_files, (std::vector<std::string>{"config.json", "inference/config.json"}));
  ASSERT_TRUE(report.size);
  EXPECT_EQ(report.size->total.tensors, 815);
  const std::string text = ToText(report);
  EXPECT_THAT(text, HasSubstr("DeepSeek-V4.1, complete\n"));
  EXPECT_THAT(text, HasSubstr("\n  owner layer 2      ratio 2, 178 B a token\n"));
  EXPECT_THAT(text, HasSubstr("\n  at 8192 tokens"));
  EXPECT_THAT(text, Not(HasSubstr("131072")));  // beyond the model's positions
  EXPECT_THAT(text, Not(HasSubstr("Problems")));
}

TEST(Inspect, JsonIsReadBack) {
  const std::string text = ToJson(Inspect(kSource / "tests/golden/v41_probe"));
  const Result<io::Json> json = io::ParseJson(text, "report");
  ASSERT_TRUE(json) << json.error().ToString();
  EXPECT_EQ(json->Find("ok")->Show(), "true");
  EXPECT_EQ(json->Find("architecture")->Show(), "\"deepseek_v41\"");
  EXPECT_EQ(json->Find("weights")->Find("total")->Find("tensors")->Show(), "888");
  EXPECT_EQ(json->Find("weights")->Find("routed_experts")->Find("parameters")->Show(), "393216");  // 64 x 3 x 32 x 64
  EXPECT_EQ(json->Find("kv")->Find("history_bytes_per_token")->Show(), "534");
  EXPECT_EQ(json->Find("config")->Find("kv_owner_layers")->Show(), "[2, 4]");
}

TEST(Inspect, DamagedModelIsDescribedAsFarAsItGoes) {
  const io::TempDir dir;
  const std::filesystem::path nano = kSource / "models/nano";
  for (const std::string_view name : {"config.json", "model.safetensors.index.json", "model-00001-of-00004.safetensors",
                                      "model-00002-of-00004.safetensors", "model-00004-of-00004.safetensors"}) {
    std::filesystem::create_symlink(nano / name, dir / name);
  }
  const InspectReport report = Inspect(dir.path());
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_THAT(
      report.problems[0].ToString(),
      AllOf(HasSubstr("model-00003-of-00004.safetensors: cannot open: No such file"), HasSubstr(" of 815 tensors")));
  EXPECT_EQ(report.files, 3);
  ASSERT_TRUE(report.size);
  EXPECT_THAT(ToText(report),
              AllOf(HasSubstr("DeepSeek-V4.1, 1 problem\n"), HasSubstr("Problems\n  - "), HasSubstr("owner layer 4")));
  EXPECT_EQ(io::ParseJson(ToJson(report), "report")->Find("ok")->Show(), "false");
}

TEST(Inspect, UnreadableConfigAndFilesAreBothReported) {
  const io::TempDir dir;
  io::WriteBytes(dir / "config.json", R"({"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"]})");
  io::WriteBytes(dir / "model.safetensors", "short");
  const InspectReport report = Inspect(dir.path());
  ASSERT_EQ(report.problems.size(), 2u);
  EXPECT_EQ(report.problems[0].code, ErrorCode::kUnsupported);
  EXPECT_THAT(report.problems[1].message, HasSubstr("too short for a safetensors file"));
  EXPECT_FALSE(report.config);
  EXPECT_THAT(ToText(report), HasSubstr("not a readable DeepSeek-V4.1 model, 2 problems\n"));
  EXPECT_EQ(io::ParseJson(ToJson(report), "report")->Find("architecture")->Show(), "null");
}

TEST(Inspect, NoDirectory) {
  const InspectReport report = Inspect("/nonexistent/model");
  ASSERT_EQ(report.problems.size(), 1u);
  EXPECT_EQ(report.problems[0].code, ErrorCode::kNotFound);
  EXPECT_THAT(report.problems[0].message, HasSubstr("A model directory holds config.json"));
}

TEST(Inspect, UnknownFieldsAreReported) {
  const io::TempDir dir;
  const std::filesystem::path nano = kSource / "models/nano";
  io::WriteBytes(dir / "config.json",
                 io::Replace(io::ReadBytes(nano / "config.json"), "\"hc_mult\": 4", "\"hc_mult\": 4, \"novel\": 7"));
  const InspectReport report = Inspect(dir.path());
  EXPECT_EQ(report.unknown_fields, (std::vector<std::string>{"config.json: text_config.novel"}));
  EXPECT_THAT(ToText(report), HasSubstr("\n  config.json: text_config.novel\n"));
}

}  // namespace
}  // namespace galley::model
