// SPDX-License-Identifier: Apache-2.0
#include "galley/text/tokenizer_json.h"

#include <gtest/gtest.h>

#include <functional>

#include "galley/text/test_data.h"

namespace galley::text {
namespace {

using nlohmann::json;

struct Refusal {
  std::string_view name;
  std::function<void(json&)> change;
  ErrorCode code;
  std::string_view where;  // "tokenizer.json: " and this
};

const Refusal kRefusals[] = {
    {"another model", [](json& f) { f["model"]["type"] = "Unigram"; }, ErrorCode::kUnsupported, "model"},
    {"dropout", [](json& f) { f["model"]["dropout"] = 0.1; }, ErrorCode::kUnsupported, "model.dropout"},
    {"unknown token", [](json& f) { f["model"]["unk_token"] = "<unk>"; }, ErrorCode::kUnsupported, "model.unk_token"},
    {"prefix", [](json& f) { f["model"]["continuing_subword_prefix"] = "##"; }, ErrorCode::kUnsupported,
     "model.continuing_subword_prefix"},
    {"suffix", [](json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }, ErrorCode::kUnsupported,
     "model.end_of_word_suffix"},
    {"byte fallback", [](json& f) { f["model"]["byte_fallback"] = true; }, ErrorCode::kUnsupported,
     "model.byte_fallback"},
    {"ignored merges", [](json& f) { f["model"]["ignore_merges"] = true; }, ErrorCode::kUnsupported,
     "model.ignore_merges"},
    {"unknown key of the model", [](json& f) { f["model"]["rate"] = 1; }, ErrorCode::kUnsupported, "model.rate"},
    {"unknown key", [](json& f) { f["extra"] = {}; }, ErrorCode::kUnsupported, "extra"},
    {"version", [](json& f) { f["version"] = "2.0"; }, ErrorCode::kUnsupported, "version"},
    {"truncation",
     [](json& f) {
       f["truncation"] = {{"max_length", 8}};
     },
     ErrorCode::kUnsupported, "truncation"},
    {"padding",
     [](json& f) {
       f["padding"] = {{"pad_id", 8}};
     },
     ErrorCode::kUnsupported, "padding"},
    {"normalizer",
     [](json& f) {
       f["normalizer"] = {{"type", "NFC"}};
     },
     ErrorCode::kUnsupported, "normalizer.type"},
    {"normalizers",
     [](json& f) {
       f["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
     },
     ErrorCode::kUnsupported, "normalizer.normalizers"},
    {"no decoder", [](json& f) { f["decoder"] = nullptr; }, ErrorCode::kInvalidArgument, "decoder"},
    {"another decoder",
     [](json& f) {
       f["decoder"] = {{"type", "Metaspace"}};
     },
     ErrorCode::kUnsupported, "decoder.type"},
    {"post-processor",
     [](json& f) {
       f["post_processor"] = {{"type", "TemplateProcessing"}};
     },
     ErrorCode::kUnsupported, "post_processor.type"},
    {"no pre-tokenizer", [](json& f) { f["pre_tokenizer"] = nullptr; }, ErrorCode::kInvalidArgument, "pre_tokenizer"},
    {"prefix space", [](json& f) { f["pre_tokenizer"]["add_prefix_space"] = true; }, ErrorCode::kUnsupported,
     "pre_tokenizer.add_prefix_space"},
    {"ByteLevel's regex", [](json& f) { f["pre_tokenizer"]["use_regex"] = true; }, ErrorCode::kUnsupported,
     "pre_tokenizer.use_regex"},
    {"a split that removes",
     [](json& f) {
       f["pre_tokenizer"] = test::PreTokenizerJson({"a"});
       f["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
     },
     ErrorCode::kUnsupported, "pre_tokenizer.pretokenizers[0].behavior"},
    {"a split that is inverted",
     [](json& f) {
       f["pre_tokenizer"] = test::PreTokenizerJson({"a"});
       f["pre_tokenizer"]["pretokenizers"][0]["invert"] = true;
     },
     ErrorCode::kUnsupported, "pre_tokenizer.pretokenizers[0].invert"},
    {"a split by string",
     [](json& f) {
       f["pre_tokenizer"] = test::PreTokenizerJson({"a"});
       f["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", "a"}};
     },
     ErrorCode::kUnsupported, "pre_tokenizer.pretokenizers[0].pattern.String"},
    {"a pattern that does not compile", [](json& f) { f["pre_tokenizer"] = test::PreTokenizerJson({"(a"}); },
     ErrorCode::kUnsupported, "pre_tokenizer"},
    {"no ByteLevel at the end", [](json& f) { f["pre_tokenizer"]["type"] = "Digits"; }, ErrorCode::kUnsupported,
     "pre_tokenizer.type"},
    {"lstrip",
     [](json& f) {
       f["added_tokens"] = {test::AddedTokenJson(300, "<u>", true)};
       f["added_tokens"][0]["lstrip"] = true;
     },
     ErrorCode::kUnsupported, "added_tokens[0].lstrip"},
    {"rstrip",
     [](json& f) {
       f["added_tokens"] = {test::AddedTokenJson(300, "<u>", true)};
       f["added_tokens"][0]["rstrip"] = true;
     },
     ErrorCode::kUnsupported, "added_tokens[0].rstrip"},
    {"single_word",
     [](json& f) {
       f["added_tokens"] = {test::AddedTokenJson(300, "<u>", true)};
       f["added_tokens"][0]["single_word"] = true;
     },
     ErrorCode::kUnsupported, "added_tokens[0].single_word"},
    {"two added tokens of one id",
     [](json& f) {
       f["added_tokens"] = {test::AddedTokenJson(300, "<u>", true), test::AddedTokenJson(300, "<v>", true)};
     },
     ErrorCode::kCorrupt, "added_tokens[1]"},
    {"one added token twice",
     [](json& f) {
       f["added_tokens"] = {test::AddedTokenJson(300, "<u>", true), test::AddedTokenJson(300, "<u>", true)};
     },
     ErrorCode::kCorrupt, "added_tokens[1]"},
    {"an added token with the id of an ordinary one",
     [](json& f) { f["added_tokens"] = {test::AddedTokenJson(65, "<u>", true)}; }, ErrorCode::kCorrupt,
     "added_tokens[0]"},
    {"an added token with an ordinary spelling and another id",
     [](json& f) { f["added_tokens"] = {test::AddedTokenJson(300, "a", true)}; }, ErrorCode::kCorrupt,
     "added_tokens[0]"},
    {"an added token that is a byte", [](json& f) { f["added_tokens"] = {test::AddedTokenJson('a', "a", true)}; },
     ErrorCode::kUnsupported, "model.vocab"},
    {"an added token that merges build",
     [](json& f) {
       f = test::ByteTokenizerJson({{"a", "b"}});
       f["added_tokens"] = {test::AddedTokenJson(256, "ab", true)};
     },
     ErrorCode::kCorrupt, "model.merges[0]"},
    {"an empty added token", [](json& f) { f["added_tokens"] = {test::AddedTokenJson(300, "", true)}; },
     ErrorCode::kInvalidArgument, "added_tokens[0].content"},
    {"an endless added token",
     [](json& f) { f["added_tokens"] = {test::AddedTokenJson(300, std::string(257, 'x'), true)}; },
     ErrorCode::kInvalidArgument, "added_tokens[0].content"},
    {"an added token without an id",
     [](json& f) {
       f["added_tokens"] = {test::AddedTokenJson(300, "<u>", true)};
       f["added_tokens"][0].erase("id");
     },
     ErrorCode::kInvalidArgument, "added_tokens[0]"},
    {"a negative id", [](json& f) { f["model"]["vocab"]["ab"] = -1; }, ErrorCode::kInvalidArgument, "model.vocab.ab"},
    {"a huge id", [](json& f) { f["model"]["vocab"]["ab"] = 1 << 21; }, ErrorCode::kInvalidArgument, "model.vocab.ab"},
    {"a broken id", [](json& f) { f["model"]["vocab"]["ab"] = 1.5; }, ErrorCode::kInvalidArgument, "model.vocab.ab"},
    {"an id twice", [](json& f) { f["model"]["vocab"]["ab"] = 97; }, ErrorCode::kCorrupt, "model.vocab.ab"},
    {"an empty token", [](json& f) { f["model"]["vocab"][""] = 300; }, ErrorCode::kInvalidArgument, "model.vocab."},
    {"a missing byte", [](json& f) { f["model"]["vocab"].erase("a"); }, ErrorCode::kUnsupported, "model.vocab"},
    {"a merge of unknown tokens", [](json& f) { f["model"]["merges"] = {"a b"}; }, ErrorCode::kCorrupt,
     "model.merges[0]"},
    {"a merge of three", [](json& f) { f["model"]["merges"] = {"a b c"}; }, ErrorCode::kInvalidArgument,
     "model.merges[0]"},
    {"a merge of one", [](json& f) { f["model"]["merges"] = {{"a"}}; }, ErrorCode::kInvalidArgument, "model.merges"},
    {"a merge of numbers",
     [](json& f) {
       f["model"]["merges"] = {{1, 2}};
     },
     ErrorCode::kInvalidArgument, "model.merges[0]"},
    {"a merge twice",
     [](json& f) {
       f = test::ByteTokenizerJson({{"a", "b"}, {"a", "b"}});
     },
     ErrorCode::kCorrupt, "model.merges"},
    {"no merges", [](json& f) { f["model"].erase("merges"); }, ErrorCode::kInvalidArgument, "model"},
    {"no model", [](json& f) { f.erase("model"); }, ErrorCode::kInvalidArgument, ""},
    {"a list", [](json& f) { f = json::array(); }, ErrorCode::kInvalidArgument, ""},
};

TEST(TokenizerJson, RefusesWhatItDoesNotDo) {
  for (const Refusal& refusal : kRefusals) {
    json file = test::ByteTokenizerJson();
    ASSERT_TRUE(Tokenizer::FromJson(file.dump()));
    refusal.change(file);
    const auto loaded = Tokenizer::FromJson(file.dump());
    ASSERT_FALSE(loaded) << refusal.name;
    const Error& error = loaded.error();
    EXPECT_EQ(Info(error.code).label, Info(refusal.code).label) << refusal.name << ": " << error.ToString();
    const std::string where =
        refusal.where.empty() ? "tokenizer.json" : "tokenizer.json: " + std::string(refusal.where);
    EXPECT_TRUE(error.where.starts_with(where)) << refusal.name << ": " << error.ToString();
    EXPECT_TRUE(IsValidUtf8(error.message)) << refusal.name;
  }
}

TEST(TokenizerJson, MessagesSayWhatIsWrongAndWhatIsRight) {
  json file = test::ByteTokenizerJson();
  file["model"]["dropout"] = 0.1;
  EXPECT_EQ(Tokenizer::FromJson(file.dump(), "m/tokenizer.json").error().ToString(),
            "m/tokenizer.json: model.dropout: is 0.1; Galley supports null or 0 or 0.0");
  EXPECT_EQ(Tokenizer::FromJson("{\"a\":").error().where, "tokenizer.json");
}

TEST(TokenizerJson, AcceptsEverySpellingOfNothing) {
  json file = test::ByteTokenizerJson();
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array()}};
  file["post_processor"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}, {"use_regex", true}};
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    file["model"][key] = nullptr;
  }
  for (const char* key : {"fuse_unk", "byte_fallback", "ignore_merges"}) file["model"][key] = false;
  EXPECT_TRUE(Tokenizer::FromJson(file.dump()));
  file["model"]["continuing_subword_prefix"] = "";
  EXPECT_TRUE(Tokenizer::FromJson(file.dump()));
  for (const char* key : {"version", "truncation", "padding", "added_tokens", "normalizer", "post_processor"}) {
    file.erase(key);
  }
  EXPECT_TRUE(Tokenizer::FromJson(file.dump()));
}

// The model's vocabulary may list an added token too, even in letters that the byte-level alphabet has.
TEST(TokenizerJson, AddedTokenInTheVocabulary) {
  json file = test::ByteTokenizerJson();
  file["model"]["vocab"]["<end>"] = 256;
  file["model"]["vocab"]["é!"] = 257;
  file["added_tokens"] = {test::AddedTokenJson(256, "<end>", true), test::AddedTokenJson(257, "é!", true)};
  const Tokenizer t = test::MustLoad(file.dump());
  EXPECT_EQ(t.vocab_size(), 258);
  EXPECT_EQ(t.IdOf("<end>"), 256);
  EXPECT_EQ(t.TokenBytes(257), "é!");  // and not the bytes E9 21
  EXPECT_TRUE(t.is_added(256));
  EXPECT_EQ(*t.Encode("<end>", AddedTokens::kMatch), std::vector<TokenId>{256});
  EXPECT_EQ(t.Encode("<end>")->size(), 5U);
}

// Damaged files: an error or a tokenizer that works, never a crash. The fuzzer in fuzz/ does the same without a seed.
TEST(TokenizerJson, SurvivesMutations) {
  test::Random random(4104);
  json file = test::ByteTokenizerJson({{"a", "b"}, {" ", "t"}, {" t", "ab"}});
  file["pre_tokenizer"] = test::PreTokenizerJson({"\\p{N}{1,3}", "[a-z]+|\\s+(?!\\S)"});
  file["added_tokens"] = {test::AddedTokenJson(300, "<u>", true), test::AddedTokenJson(301, "tab", false, true)};
  const std::string original = file.dump();
  const std::string_view splices[] = {"null",    "[]",   "{}",   "\"\"",   "-1",       "1e400",
                                      "\\ud800", ",",    "\"",   "(?!",    "((a*)*)*", "99999999999999999999",
                                      "\xFF",    "true", "[[[[", "2097151"};
  int loaded = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = original;
    for (unsigned n = 1 + random() % 3; n > 0; --n) {
      const std::size_t at = random() % text.size();
      const std::size_t length = std::min<std::size_t>(random() % 12, text.size() - at);
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          text.replace(at, length, splices[random() % std::size(splices)]);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), length));
      }
    }
    const auto tokenizer = Tokenizer::FromJson(text);
    if (!tokenizer) continue;
    ++loaded;
    const std::string_view sample = "ab tab <u> 12345 \xE4\xB8\xAD\xFF zzz  \n";
    if (const auto ids = tokenizer->Encode(sample, AddedTokens::kMatch)) {
      EXPECT_EQ(test::JoinBytes(*tokenizer, *ids), sample);
    }
  }
  EXPECT_GT(loaded, 20);  // some damage is harmless, so the second half of the test runs
}

}  // namespace
}  // namespace galley::text
