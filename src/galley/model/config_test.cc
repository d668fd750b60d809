// SPDX-License-Identifier: Apache-2.0
#include "galley/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>

#include "galley/io/test_files.h"
#include "galley/model/config_file.h"
#include "galley/model/engram_primes.h"
#include "galley/model/test_configs.h"

namespace galley::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::filesystem::path kSource = GALLEY_SOURCE_DIR;
constexpr auto kUnsupported = ErrorCode::kUnsupported;

std::string NanoNested() {
  return io::ReadBytes(kSource / "models/nano/config.json");
}
std::string NanoFlat() {
  return io::ReadBytes(kSource / "models/nano/inference/config.json");
}
std::string ProbeFlat() {
  return io::ReadBytes(kSource / "tests/golden/v41_probe/inference/config.json");
}

// Gives the only member of that name another value, written as JSON; "" takes the member out.
std::string WithMember(std::string json, std::string_view key, std::string_view value) {
  const std::string name = "\"" + std::string(key) + "\": ";
  const std::size_t at = json.find(name);
  EXPECT_NE(at, json.npos) << "no " << key;
  EXPECT_EQ(json.find(name, at + 1), json.npos) << "more than one " << key;
  if (at == json.npos) return json;
  const std::size_t begin = at + name.size();
  // A list ends at its bracket, anything else before a comma or the end of its line.
  const std::size_t end = json[begin] == '[' ? json.find(']', begin) + 1 : json.find_first_of(",}\n", begin);
  if (!value.empty()) return json.replace(begin, end - begin, value);
  const std::size_t comma = json[end] == ',' ? end + 1 : json.rfind(',', at);
  return comma > end ? json.erase(at, comma - at) : json.erase(comma, end - comma);
}

TEST(Config, ReadsTheRealModel) {
  const Result<Config> c = ParseConfig(FlashConfigJson(), "config.json");
  ASSERT_TRUE(c) << c.error().ToString();
  EXPECT_EQ(c->dim, 5120);
  EXPECT_EQ(c->norm_eps, 1e-20);
  EXPECT_EQ(c->gate_temp, 1.0);  // absent from the file
  EXPECT_EQ(c->decoder_start(), 20);
  EXPECT_EQ(c->compress_ratios.size(), 43u);  // 40 layers and 3 stages
  EXPECT_EQ(c->engram.num_embeddings, (std::vector<std::int64_t>{384006168, 384016682}));
  EXPECT_EQ(c->engram.columns(), 24);  // 2-, 3- and 4-grams of 8 heads
  EXPECT_EQ(c->dspark.target_layer_ids, (std::vector<int>{37, 38, 39}));
  EXPECT_EQ(c->vision.min_pixels, 544 * 544);
  EXPECT_EQ(c->image_token_id, 129264);
  EXPECT_EQ(c->max_seq_len, 1048576);
}

// Of 40 layers, which share the history and which the lists of which: as the published config has them.
TEST(Config, SourcesOfTheRealModel) {
  const Config c = *ParseConfig(FlashConfigJson(), "config.json");
  for (int layer = 2; layer < 40; ++layer) {
    const int owner = layer < 8 ? 2 : layer < 14 ? 8 : layer < 20 ? 14 : 20;
    EXPECT_EQ(c.kv_source(layer), owner) << layer;
    EXPECT_EQ(c.index_source(layer), layer < 24 ? owner : layer / 4 * 4) << layer;
    EXPECT_EQ(c.is_kv_source(layer), layer == owner);
    EXPECT_EQ(c.engram_index(layer), layer == 14 ? 1 : -1);
  }
  EXPECT_TRUE(c.is_index_source(36));
  EXPECT_FALSE(c.is_index_source(38));
  EXPECT_EQ(c.engram_index(1), 0);
}

TEST(Config, BothSpellingsOfNanoAgree) {
  const Result<ConfigFile> nested = ParseConfigFile(NanoNested(), "config.json");
  const Result<ConfigFile> flat = ParseConfigFile(NanoFlat(), "inference/config.json");
  ASSERT_TRUE(nested) << nested.error().ToString();
  ASSERT_TRUE(flat) << flat.error().ToString();
  EXPECT_EQ(nested->spelling, Spelling::kNested);
  EXPECT_EQ(flat->spelling, Spelling::kFlat);
  int compared = 0;
  for (std::size_t i = 0; i < Fields().size(); ++i) {
    if (!nested->stated[i] || !flat->stated[i]) continue;
    EXPECT_EQ(FieldText(Fields()[i], nested->config), FieldText(Fields()[i], flat->config)) << Fields()[i].flat;
    ++compared;
  }
  EXPECT_EQ(compared, 51);  // 57 members of the flat file without 4 fixed ones, gate_temp and vision_n_layers
  EXPECT_TRUE(nested->unknown.empty()) << nested->unknown.front();
  EXPECT_TRUE(flat->unknown.empty()) << flat->unknown.front();
}

TEST(Config, MergeTakesWhatOnlyOneFileStates) {
  const ConfigFile nested = *ParseConfigFile(NanoNested(), "config.json");
  const ConfigFile flat = *ParseConfigFile(WithMember(NanoFlat(), "gate_temp", "2.0"), "flat");
  EXPECT_EQ(flat.config.max_seq_len, 0);
  for (const Result<Config>& merged : {MergeConfigs(nested, flat), MergeConfigs(flat, nested)}) {
    ASSERT_TRUE(merged) << merged.error().ToString();
    EXPECT_EQ(merged->max_seq_len, 8192);  // of the nested file
    EXPECT_EQ(merged->gate_temp, 2.0);     // of the flat file
  }
}

TEST(Config, FilesThatDisagreeAreAnErrorNamingBothValues) {
  const ConfigFile nested = *ParseConfigFile(NanoNested(), "config.json");
  const std::string flat_json = WithMember(WithMember(NanoFlat(), "index_topk", "65"), "route_scale", "2.5");
  const ConfigFile flat = *ParseConfigFile(flat_json, "inference/config.json");
  const Result<Config> merged = MergeConfigs(nested, flat);
  ASSERT_FALSE(merged);
  EXPECT_EQ(merged.error().ToString(),
            "config.json: 2 problems"
            "\n  - text_config.routed_scaling_factor is 1.5, but route_scale in inference/config.json is 2.5"
            "\n  - text_config.index_topk is 64, but index_topk in inference/config.json is 65");
}

TEST(Config, FilesMustAgreeOnTheModelsParts) {
  const ConfigFile with_vision = *ParseConfigFile(ProbeFlat(), "a");
  const ConfigFile without = *ParseConfigFile(WithMember(ProbeFlat(), "vision_n_layers", "0"), "b");
  const Result<Config> merged = MergeConfigs(with_vision, without);
  ASSERT_FALSE(merged);
  EXPECT_THAT(merged.error().message, HasSubstr("a describes a vision tower, b none"));
}

TEST(Config, PartsMayBeAbsent) {
  std::string json = WithMember(NanoFlat(), "n_mtp_layers", "0");
  json = WithMember(json, "compress_ratios", "[0, 0, 2, 2, 1, 1, 1, 1]");
  json = WithMember(json, "engram_layer_ids", "[]");
  const Result<Config> c = ParseConfig(json, "config.json");
  ASSERT_TRUE(c) << c.error().ToString();
  EXPECT_EQ(c->dspark.n_stages, 0);
  EXPECT_EQ(c->compress_ratios.size(), 8u);
  EXPECT_TRUE(c->engram.layer_ids.empty());
}

TEST(Config, UnknownFieldsAreNamed) {
  const std::string nested = WithMember(NanoNested(), "vocab_size", "2560, \"shiny\": {\"a\": 1}");
  EXPECT_EQ(ParseConfigFile(nested, "f")->unknown, (std::vector<std::string>{"text_config.shiny"}));
  const std::string flat = WithMember(NanoFlat(), "dim", "256, \"new\\n\": 1");
  EXPECT_EQ(ParseConfigFile(flat, "f")->unknown, (std::vector<std::string>{"new\\x0a"}));
}

struct Change {
  std::string_view key, value;  // of WithMember
  std::string_view message;     // of the one problem that it makes
  ErrorCode code = ErrorCode::kCorrupt;
};

void ExpectProblems(const std::string& json, std::span<const Change> changes) {
  ASSERT_TRUE(ParseConfig(json, "file"));
  for (const Change& change : changes) {
    const Result<Config> parsed = ParseConfig(WithMember(json, change.key, change.value), "file");
    ASSERT_FALSE(parsed) << change.key << ": " << change.value;
    EXPECT_EQ(parsed.error().message, change.message) << change.key << ": " << change.value;
    EXPECT_EQ(parsed.error().where, "file");
    EXPECT_EQ(parsed.error().code, change.code) << change.key << ": " << change.value;
  }
}

TEST(Config, ProblemsNameFieldsAsTheFlatFileDoes) {
  const Change changes[] = {
      {"dim", "", "dim: missing"},
      {"dim", "null", "dim: null is not an integer"},
      {"dim", "\"256\"", "dim: \"256\" is not an integer"},
      {"dim", "256.0", "dim: 256.0 is not an integer"},
      {"dim", "-256", "dim: -256 is outside 32 to 65536"},
      {"dim", "99999999999999999999", "dim: 1e+20 is outside 32 to 65536"},
      {"dim", "2147483648", "dim: 2147483648 is outside 32 to 65536"},
      {"dim", "272", "dim: 272 is not a multiple of 32, the group that shares one scale"},
      {"norm_eps", "0", "norm_eps: 0 is outside 1e-37 to 0.1"},
      {"norm_eps", "true", "norm_eps: true is not a number"},
      {"hc_mult", "2", "hc_mult: 2 is not supported, only 4"},
      {"o_groups", "3", "o_groups: 3 does not divide n_heads, 4"},
      {"rope_head_dim", "63", "rope_head_dim: 63 is not a multiple of 2, a rotated pair"},
      {"rope_head_dim", "130", "rope_head_dim: 130 exceeds the smaller of head_dim 512 and index_head_dim 128"},
      {"window_size", "0", "window_size: 0 is outside 1 to 65536"},
      {"n_activated_experts", "9", "n_activated_experts: 9 of only 8 experts"},
      {"beta_fast", "1", "beta_fast: 1 is not above beta_slow 1"},
      {"original_seq_len", "1", "original_seq_len: 1 leaves no frequency between the YaRN corners 0 and -4"},
      {"candidate_topk_blocks", "8", "candidate_topk_blocks: 8 blocks of 8 positions are 64; index_topk 64 needs 71"},
      {"engram_pad_id", "2560", "engram_pad_id: 2560 is outside the vocabulary of 2560 tokens"},
      {"engram_vocab_size", "504",
       "2 problems\n  - engram_num_embeddings: 4264 rows for layer 1, but the 8 primes from 509 on sum to 4330"
       "\n  - engram_num_embeddings: 4704 rows for layer 3, but the 8 primes from 571 on sum to 4748"},
      {"engram_num_embeddings", "[4264]", "engram_num_embeddings: 1 entries for 2 Engram layers"},
      {"engram_num_embeddings", "[4264, 2147483648]",
       "engram_num_embeddings: entry 1: 2147483648 is outside 1 to 2147483647"},
      {"engram_layer_ids", "[1, 4]",
       "engram_layer_ids: layer 4 lies in the decoder, which starts at candidate_source_layer 4; Engram works in the "
       "encoder only"},
      {"dspark_target_layer_ids", "[3, 6, 7]",
       "dspark_target_layer_ids: layer 3 lies in the encoder; the decoder, which drafts read, starts at "
       "candidate_source_layer 4"},
      {"engram_compressed_vocab_size", "2561", "engram_compressed_vocab_size: 2561 exceeds vocab_size 2560"},
      {"dspark_target_layer_ids", "[5, 6, 8]", "dspark_target_layer_ids: layer 8 does not exist; n_layers is 8"},
      {"dspark_target_layer_ids", "[]", "dspark_target_layer_ids: lists no layer"},
      {"dspark_n_activated_experts", "5", "dspark_n_activated_experts: 5 of only 4 experts"},
      {"dspark_noise_token_id", "99999", "dspark_noise_token_id: 99999 is outside the vocabulary of 2560 tokens"},
      {"score_func", "\"softmax\"", "score_func: \"softmax\" is not supported, only \"sqrtsoftplus\"", kUnsupported},
      {"norm_topk_prob", "false", "norm_topk_prob: false is not supported, only true", kUnsupported},
      {"dtype", "\"bf16\"", "dtype: \"bf16\" is not supported, only \"fp8\"", kUnsupported},
  };
  ExpectProblems(NanoFlat(), changes);
}

TEST(Config, SharingRules) {
  const Change changes[] = {
      {"compress_ratios", "[0, 0, 2, 2, 1, 1, 1, 1, 0, 0]",
       "compress_ratios: 10 entries; 8 layers and 3 draft stages need 11"},
      {"compress_ratios", "[0, 0, 2, 2, 1, 1, 1, 1, 0, 1, 0]",
       "compress_ratios: entry 9 belongs to a draft stage and must be 0, not 1"},
      {"compress_ratios", "[0, 0, 2, 2, 1, 1, 3, 1, 0, 0, 0]", "compress_ratios: entry 6: 3 is outside 0 to 2"},
      {"compress_ratios", "[0, 0, 2, 1, 1, 1, 1, 1, 0, 0, 0]",
       "compress_ratios: layer 3 has ratio 1, but its owner, layer 2, has 2"},
      {"compress_ratios", "[0, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0]",
       "kv_source_layers: layer 1 has compress ratio 2 but no owner at or before it"},
      {"kv_source_layers", "[4, 2]",
       "2 problems\n  - kv_source_layers: [4, 2] is not ascending"
       "\n  - candidate_source_layer: 4 is not the last of kv_source_layers [4, 2] with compress ratio 1"},
      {"kv_source_layers", "[1, 2, 4]", "kv_source_layers: layer 1 has compress ratio 0 and so nothing to own"},
      {"index_source_layers", "[1, 2, 4, 6]",
       "index_source_layers: layer 1 has compress ratio 0 and so nothing to index"},
      {"index_source_layers", "[2, 6]",
       "2 problems"
       "\n  - index_source_layers: layer 4 reads the KV of layer 4, but no layer from 4 to 4 runs an indexer"
       "\n  - index_source_layers: layer 5 reads the KV of layer 4, but no layer from 4 to 5 runs an indexer"},
      {"candidate_source_layer", "2",
       "3 problems\n  - candidate_source_layer: 2 is not the last of kv_source_layers [2, 4] with compress ratio 1"
       "\n  - kv_source_layers: layer 4 has compress ratio 1; only the candidate source may"
       "\n  - engram_layer_ids: layer 3 lies in the decoder, which starts at candidate_source_layer 2; Engram works in "
       "the encoder only"},
  };
  ExpectProblems(NanoFlat(), changes);
}

TEST(Config, ProblemsNameFieldsAsTheNestedFileDoes) {
  const Change changes[] = {
      {"hidden_size", "272", "text_config.hidden_size: 272 is not a multiple of 32, the group that shares one scale"},
      {"original_max_position_embeddings", "", "text_config.rope_scaling.original_max_position_embeddings: missing"},
      {"type", "\"linear\"", "text_config.rope_scaling.type: \"linear\" is not supported, only \"yarn\"", kUnsupported},
      {"weight_block_size", "[128, 128]",
       "quantization_config.weight_block_size: [128, 128] is not supported, only [32, 32]", kUnsupported},
      {"bos_token_id", "-1", "bos_token_id: -1 is outside 0 to 16777216"},
  };
  ExpectProblems(NanoNested(), changes);
}

TEST(Config, VisionRules) {
  const Change changes[] = {
      {"vision_dim", "36", "vision_dim: 36 is not 2 heads times a multiple of 4"},
      {"image_token_id", "", "image_token_id: missing"},
      {"image_token_id", "512", "image_token_id: 512 is outside the vocabulary of 512 tokens"},
      {"vision_patch_size", "", "vision_patch_size: missing"},
      {"vision_max_n_token", "3", "vision_max_n_token: 3 is outside 4 to 1048576"},
  };
  ExpectProblems(ProbeFlat(), changes);
}

TEST(Config, AllProblemsComeTogether) {
  std::string json = WithMember(NanoFlat(), "dim", "");
  json = WithMember(json, "n_heads", "5");
  json = WithMember(json, "score_func", "\"sigmoid\"");
  EXPECT_EQ(ParseConfig(json, "file").error().ToString(),
            "file: 3 problems"
            "\n  - dim: missing"
            "\n  - score_func: \"sigmoid\" is not supported, only \"sqrtsoftplus\""
            "\n  - o_groups: 2 does not divide n_heads, 5");
}

// A few bytes must not make the loader list tensors without end.
TEST(Config, ExpertsInAllAreBounded) {
  std::string json = FlashConfigJson();
  json = WithMember(json, "n_routed_experts", "4096");
  EXPECT_TRUE(ParseConfig(json, "file"));  // 40 x 4096 = 163,840
  json = WithMember(NanoFlat(), "n_routed_experts", "4096");
  json = WithMember(json, "n_layers", "64");
  EXPECT_THAT(ParseConfig(json, "file").error().message,
              HasSubstr("n_routed_experts: 4096 experts in 64 layers are 262144; the limit is 200000"));
}

TEST(Config, OtherArchitecturesAreUnsupportedByName) {
  struct Case {
    std::string_view json, message;
  };
  const Case cases[] = {
      {R"({"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168})",
       "model_type \"deepseek_v3\", architectures [\"DeepseekV3ForCausalLM\"]: this architecture is not supported. "
       "This version runs DeepSeek-V4.1 (model_type \"deepseek_v41\")."},
      {R"({"model_type": "deepseek_v4", "num_hash_layers": 3})",
       "model_type \"deepseek_v4\": DeepSeek V4 is not supported by this version yet. "
       "This version runs DeepSeek-V4.1 (model_type \"deepseek_v41\")."},
      {R"({"model_type": "llama"})",
       "model_type \"llama\": this architecture is not supported. "
       "This version runs DeepSeek-V4.1 (model_type \"deepseek_v41\")."},
      {R"({"dim": 7168, "n_layers": 61, "kv_lora_rank": 512})",
       "the field kv_lora_rank belongs to DeepSeek V2 or V3, which are not supported. "
       "This version runs DeepSeek-V4.1 (model_type \"deepseek_v41\")."},
      {R"({"dim": 4096, "n_layers": 43, "compress_ratios": [0, 0, 4, 128]})",
       "hash layers or compress_ratios of 4 or 128 belong to DeepSeek V4, which is not supported by this version yet. "
       "This version runs DeepSeek-V4.1 (model_type \"deepseek_v41\")."},
      {"{}",
       "neither text_config nor the fields of a flat DeepSeek config are here: this is not the config of a "
       "DeepSeek-V4.1 model. This version runs DeepSeek-V4.1 (model_type \"deepseek_v41\")."},
  };
  for (const Case& c : cases) {
    const Result<Config> parsed = ParseConfig(c.json, "config.json");
    ASSERT_FALSE(parsed) << c.json;
    EXPECT_EQ(parsed.error().code, ErrorCode::kUnsupported) << c.json;
    EXPECT_EQ(parsed.error().message, c.message);
  }
}

TEST(Config, TextThatIsNoConfig) {
  for (const std::string_view json : {"", "null", "[]", "3", "\"x\"", "{\"text_config\": 1}", "{\"text_config\": []}",
                                      "{\"n_layers\": {}}", "{\"compress_ratios\": 4}"}) {
    const Result<Config> parsed = ParseConfig(json, "config.json");
    ASSERT_FALSE(parsed) << json;
    EXPECT_EQ(parsed.error().code, ErrorCode::kCorrupt) << json;
  }
  const std::string deep = "{\"text_config\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_EQ(ParseConfig(deep, "config.json").error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(ParseConfig(std::string(2'000'000, ' '), "config.json").error().code, ErrorCode::kResourceExhausted);
}

// The primes are those of the published tables, whose rows they count.
TEST(EngramPrimes, AreTheRealModels) {
  const Config c = *ParseConfig(FlashConfigJson(), "config.json");
  const auto primes = EngramPrimes(c.engram);
  ASSERT_EQ(primes.size(), 2u);
  ASSERT_EQ(primes[0].size(), 24u);
  EXPECT_EQ(primes[0].front(), 16'000'057);
  EXPECT_EQ(primes[0].back(), 16'000'463);
  EXPECT_EQ(primes[1].front(), 16'000'477);
  EXPECT_EQ(primes[1].back(), 16'000'889);
}

TEST(EngramPrimes, StartAtTheFirstPrimeItself) {
  EngramConfig engram;
  engram.layer_ids = {1, 3};
  engram.max_ngram_size = 2;
  engram.n_heads = 3;
  engram.vocab_size = 97;
  EXPECT_EQ(EngramPrimes(engram), (std::vector<std::vector<std::int64_t>>{{97, 101, 103}, {107, 109, 113}}));
  engram.vocab_size = 2;
  EXPECT_EQ(EngramPrimes(engram), (std::vector<std::vector<std::int64_t>>{{2, 3, 5}, {7, 11, 13}}));
}

}  // namespace
}  // namespace galley::model
