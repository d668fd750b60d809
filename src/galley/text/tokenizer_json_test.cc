// SPDX-License-Identifier: Apache-2.0
#include "galley/text/tokenizer_json.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "galley/text/test_data.h"

namespace galley::text {
namespace {

using nlohmann::json;

struct Edit {
  const char* place;       // JSON pointer
  std::string_view value;  // JSON; "": taken out
};

struct Refusal {
  std::string_view name;
  std::vector<Edit> edits;
  ErrorCode code;
  std::string_view where;  // "tokenizer.json: " and this
};

const std::string kEndless = json(std::string(257, 'x')).dump(), kSplit = test::PreTokenizerJson({"a"}).dump(),
                  kAdded = test::AddedTokenJson(300, "<u>", true).dump();
constexpr auto kCorrupt = ErrorCode::kCorrupt, kInvalidArgument = ErrorCode::kInvalidArgument,
               kUnsupported = ErrorCode::kUnsupported;

// Edits of a good file with one added token.
const Refusal kRefusals[] = {
    {"another model", {{"/model/type", R"("Unigram")"}}, kUnsupported, "model"},
    {"dropout", {{"/model/dropout", "0.1"}}, kUnsupported, "model.dropout"},
    {"unknown token", {{"/model/unk_token", R"("<unk>")"}}, kUnsupported, "model.unk_token"},
    {"prefix", {{"/model/continuing_subword_prefix", R"("##")"}}, kUnsupported, "model.continuing_subword_prefix"},
    {"suffix", {{"/model/end_of_word_suffix", R"("</w>")"}}, kUnsupported, "model.end_of_word_suffix"},
    {"byte fallback", {{"/model/byte_fallback", "true"}}, kUnsupported, "model.byte_fallback"},
    {"ignored merges", {{"/model/ignore_merges", "true"}}, kUnsupported, "model.ignore_merges"},
    {"unknown key of the model", {{"/model/rate", "1"}}, kUnsupported, "model.rate"},
    {"unknown key", {{"/extra", "{}"}}, kUnsupported, "extra"},
    {"version", {{"/version", R"("2.0")"}}, kUnsupported, "version"},
    {"truncation", {{"/truncation", R"({"max_length": 8})"}}, kUnsupported, "truncation"},
    {"padding", {{"/padding", R"({"pad_id": 8})"}}, kUnsupported, "padding"},
    {"normalizer", {{"/normalizer", R"({"type": "NFC"})"}}, kUnsupported, "normalizer.type"},
    {"normalizers",
     {{"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "NFC"}]})"}},
     kUnsupported,
     "normalizer.normalizers"},
    {"no decoder", {{"/decoder", "null"}}, kInvalidArgument, "decoder"},
    {"another decoder", {{"/decoder", R"({"type": "Metaspace"})"}}, kUnsupported, "decoder.type"},
    {"post-processor", {{"/post_processor", R"({"type": "TemplateProcessing"})"}}, kUnsupported, "post_processor.type"},
    {"no pre-tokenizer", {{"/pre_tokenizer", "null"}}, kInvalidArgument, "pre_tokenizer"},
    {"no ByteLevel at the end", {{"/pre_tokenizer/type", R"("Digits")"}}, kUnsupported, "pre_tokenizer.type"},
    {"prefix space", {{"/pre_tokenizer/add_prefix_space", "true"}}, kUnsupported, "pre_tokenizer.add_prefix_space"},
    {"ByteLevel's regex", {{"/pre_tokenizer/use_regex", "true"}}, kUnsupported, "pre_tokenizer.use_regex"},
    {"a split that removes",
     {{"/pre_tokenizer", kSplit}, {"/pre_tokenizer/pretokenizers/0/behavior", R"("Removed")"}},
     kUnsupported,
     "pre_tokenizer.pretokenizers[0].behavior"},
    {"a split that is inverted",
     {{"/pre_tokenizer", kSplit}, {"/pre_tokenizer/pretokenizers/0/invert", "true"}},
     kUnsupported,
     "pre_tokenizer.pretokenizers[0].invert"},
    {"a split by string",
     {{"/pre_tokenizer", kSplit}, {"/pre_tokenizer/pretokenizers/0/pattern", R"({"String": "a"})"}},
     kUnsupported,
     "pre_tokenizer.pretokenizers[0].pattern.String"},
    {"a pattern that does not compile",
     {{"/pre_tokenizer", kSplit}, {"/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("(a")"}},
     kUnsupported,
     "pre_tokenizer"},
    {"lstrip", {{"/added_tokens/0/lstrip", "true"}}, kUnsupported, "added_tokens[0].lstrip"},
    {"rstrip", {{"/added_tokens/0/rstrip", "true"}}, kUnsupported, "added_tokens[0].rstrip"},
    {"single_word", {{"/added_tokens/0/single_word", "true"}}, kUnsupported, "added_tokens[0].single_word"},
    {"two added tokens of one id",
     {{"/added_tokens/1", kAdded}, {"/added_tokens/1/content", R"("<v>")"}},
     kCorrupt,
     "added_tokens[1]"},
    {"one added token twice", {{"/added_tokens/1", kAdded}}, kCorrupt, "added_tokens[1]"},
    {"an added token with the id of an ordinary one", {{"/added_tokens/0/id", "65"}}, kCorrupt, "added_tokens[0]"},
    {"an added token with an ordinary spelling and another id",
     {{"/added_tokens/0/content", R"("a")"}},
     kCorrupt,
     "added_tokens[0]"},
    {"an added token that is a byte",
     {{"/added_tokens/0/id", "97"}, {"/added_tokens/0/content", R"("a")"}},
     kUnsupported,
     "model.vocab"},
    {"an added token that merges build",
     {{"/model/vocab/ab", "256"},
      {"/model/merges", R"(["a b"])"},
      {"/added_tokens/0/id", "256"},
      {"/added_tokens/0/content", R"("ab")"}},
     kCorrupt,
     "model.merges[0]"},
    {"an empty added token", {{"/added_tokens/0/content", R"("")"}}, kInvalidArgument, "added_tokens[0].content"},
    {"an endless added token", {{"/added_tokens/0/content", kEndless}}, kInvalidArgument, "added_tokens[0].content"},
    {"an added token without an id", {{"/added_tokens/0/id", ""}}, kInvalidArgument, "added_tokens[0]"},
    {"a negative id", {{"/model/vocab/ab", "-1"}}, kInvalidArgument, "model.vocab.ab"},
    {"a huge id", {{"/model/vocab/ab", "2097152"}}, kInvalidArgument, "model.vocab.ab"},
    {"a broken id", {{"/model/vocab/ab", "1.5"}}, kInvalidArgument, "model.vocab.ab"},
    {"an id twice", {{"/model/vocab/ab", "97"}}, kCorrupt, "model.vocab.ab"},
    {"an empty token", {{"/model/vocab/", "400"}}, kInvalidArgument, "model.vocab."},
    {"a missing byte", {{"/model/vocab/a", ""}}, kUnsupported, "model.vocab"},
    {"a merge of unknown tokens", {{"/model/merges", R"(["a b"])"}}, kCorrupt, "model.merges[0]"},
    {"a merge of three", {{"/model/merges", R"(["a b c"])"}}, kInvalidArgument, "model.merges[0]"},
    {"a merge of one", {{"/model/merges", R"([["a"]])"}}, kInvalidArgument, "model.merges"},
    {"a merge of numbers", {{"/model/merges", "[[1, 2]]"}}, kInvalidArgument, "model.merges[0]"},
    {"a merge twice", {{"/model/vocab/ab", "256"}, {"/model/merges", R"(["a b", "a b"])"}}, kCorrupt, "model.merges"},
    {"no merges", {{"/model/merges", ""}}, kInvalidArgument, "model"},
    {"no model", {{"/model", ""}}, kInvalidArgument, ""},
    {"a list", {{"", "[]"}}, kInvalidArgument, ""},
};

void Apply(const Edit& edit, json& file) {
  const json::json_pointer place(edit.place);
  if (!edit.value.empty()) {
    file[place] = json::parse(edit.value);
  } else if (json& parent = file[place.parent_pointer()]; parent.is_object()) {
    parent.erase(place.back());
  }
}

TEST(TokenizerJson, RefusesWhatItDoesNotDo) {
  for (const Refusal& refusal : kRefusals) {
    json file = test::ByteTokenizerJson();
    file["added_tokens"] = {test::AddedTokenJson(300, "<u>", true)};
    ASSERT_TRUE(Tokenizer::FromJson(file.dump()));
    for (const Edit& edit : refusal.edits) Apply(edit, file);
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
