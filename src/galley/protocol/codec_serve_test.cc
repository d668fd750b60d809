// SPDX-License-Identifier: Apache-2.0
// Every recipe vector through codec-serve. With DeepSeek's tokenizer at hand token ids are compared too.
#include "galley/protocol/codec_serve.h"

#include <gtest/gtest.h>

#include <functional>
#include <iostream>
#include <map>
#include <set>

#include "galley/protocol/vectors_for_test.h"

namespace galley::protocol {
namespace {

// Weak points of the original where Galley's result is another one, see docs/codec.md.
const std::set<std::string> kBetterRequests = {"W15", "W16", "W18", "W19", "W21"};
const std::set<std::string> kBetterStreams = {"W00", "W01", "W02", "W03", "W04", "W05", "W06", "W07",
                                              "W08", "W09", "W10", "W11", "W12", "W13", "W14"};

// Cases that have one of the weak points without being marked: the same better result, see docs/codec.md.
const std::map<std::string, std::string> kUnmarked = {{"s1237", "W11"}, {"s1238", "W11"}, {"s1417", "W13"},
                                                      {"s1427", "W07"}, {"s1514", "W09"}, {"s1626", "W09"}};

// Sets `member` of every object in `value` to null.
void Blank(Json& value, const std::set<std::string>& members) {
  if (Json::Object* object = value.if_object()) {
    for (Json::Member& member : *object) {
      if (members.contains(member.key))
        member.value = Json();
      else
        Blank(member.value, members);
    }
  } else if (Json::Array* array = value.if_array()) {
    for (Json& element : *array) Blank(element, members);
  }
}

// What cannot be known without the tokenizer: absent on one side, so it goes from both.
void Drop(Json& value, const std::set<std::string>& members) {
  if (Json::Object* object = value.if_object()) {
    std::erase_if(*object, [&](const Json::Member& member) { return members.contains(member.key); });
    for (Json::Member& member : *object) Drop(member.value, members);
  } else if (Json::Array* array = value.if_array()) {
    for (Json& element : *array) Drop(element, members);
  }
}

// The wording of body errors and encoding errors is ours.
Json WithoutWording(Json expect) {
  if (Json* error = expect.Find("error")) {
    if (error->is_object()) error->Set("type", Json());
    if (*error != Json("conversion")) expect.Set("message", Json());
  }
  if (Json* error = expect.Find("render_error")) *error = Json(true);
  return expect;
}

// Galley holds a call until it is whole, so its events come later than the original's; their order is the same.
Json WithoutTiming(Json expect) {
  expect.Set("events_per_push", Json());
  return expect;
}

struct Count {
  int matched = 0;
  int on_purpose = 0;
  int skipped = 0;
  std::map<std::string, int> weak_differs;
};

// The results of `rows`, sent through the filter as `file`.
std::vector<Json> Serve(const std::string& file, const std::vector<Json>& rows) {
  std::vector<Json> results;
  for (Json row : rows) {
    const std::string line = AnswerCodecLine(DumpJson(row.Set("file", file)), {SharedTokenizer()});
    results.push_back(ParseJson(line, {.depth_max = 1000}).value_or(Json(line)));
  }
  return results;
}

void Compare(const std::string& file, const std::set<std::string>& better,
             const std::function<bool(const Json& row, Json& got, Json& want)>& prepare, Count& count) {
  const std::vector<Json> rows = ReadVectors(file), results = Serve(file + ".jsonl.xz", rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Json& row = rows[i];
    Json want = At(row, {"expect"});
    Json got = At(results[i], {"expect"});
    if (!prepare(row, got, want)) {
      ++count.skipped;
      continue;
    }
    std::string weak = TextAt(row, {"weak"});
    if (const auto unmarked = kUnmarked.find(TextAt(row, {"id"})); unmarked != kUnmarked.end()) weak = unmarked->second;
    if (SameJson(got, want)) {
      ++count.matched;
    } else if (better.contains(weak)) {
      ++count.on_purpose;
      ++count.weak_differs[weak];
    } else {
      ADD_FAILURE() << TextAt(row, {"id"}) << " " << TextAt(row, {"name"}) << "\n"
                    << DumpJson(At(row, {"chunks"}).is_null() ? At(row, {"request"}) : At(row, {"chunks"})) << "\n got "
                    << DumpJson(got) << "\nwant " << DumpJson(want);
    }
  }
  std::cout << file << ": " << count.matched << " matched, " << count.on_purpose << " differ on purpose (";
  for (const auto& [weak, n] : count.weak_differs) std::cout << weak << " " << n << " ";
  std::cout << "), " << count.skipped << " need the tokenizer\n";
}

TEST(CodecServe, MatchesEveryRenderVector) {
  Count count;
  Compare(
      "render", kBetterRequests,
      [](const Json&, Json& got, Json& want) {
        got = WithoutWording(std::move(got));
        want = WithoutWording(std::move(want));
        if (SharedTokenizer() == nullptr) {
          Blank(want, {"ids", "render_error"});
          got.Set("ids", Json());
          want.Set("ids", Json());
          if (want.Find("render_error") != nullptr) got.Set("render_error", Json());
        }
        return true;
      },
      count);
  EXPECT_EQ(count.matched + count.on_purpose, 1385);
}

TEST(CodecServe, MatchesEveryStreamVector) {
  Count count;
  Compare(
      "stream", kBetterStreams,
      [](const Json& row, Json& got, Json& want) {
        got = WithoutTiming(WithoutWording(std::move(got)));
        want = WithoutTiming(WithoutWording(std::move(want)));
        if (SharedTokenizer() != nullptr) return true;
        const Json chunks = At(row, {"chunks"});
        for (const Json& chunk : *chunks.if_array())
          if (chunk.Find("tokens") != nullptr) return false;
        Drop(got, {"completion_tokens_details", "output_tokens_details"});
        Drop(want, {"completion_tokens_details", "output_tokens_details"});
        return true;
      },
      count);
  EXPECT_EQ(count.matched + count.on_purpose + count.skipped, 1670);
}

TEST(CodecServe, MatchesEveryNumberAndImageVector) {
  for (const std::string file : {"numbers", "images"}) {
    const std::vector<Json> rows = ReadVectors(file), results = Serve(file + ".jsonl", rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Json want = rows[i];
      want.Set("file", file + ".jsonl");
      EXPECT_TRUE(SameJson(results[i], want)) << DumpJson(want) << "\n" << DumpJson(results[i]);
    }
    EXPECT_EQ(rows.size(), file == "numbers" ? 512u : 495u);
    std::cout << file << ": " << rows.size() << " checked\n";
  }
}

TEST(CodecServe, AnswersLineByLineAndSaysWhatItCannotRead) {
  EXPECT_EQ(AnswerCodecLine(R"({"file":"numbers.jsonl","id":"a","json":"1e-5"})", {}),
            R"({"file":"numbers.jsonl","id":"a","json":"1e-5","string":false,"text":"1e-05","text_v4":"0.00001"})");
  EXPECT_EQ(AnswerCodecLine("not json", {}), R"({"error":"not JSON: not a JSON value, near byte 0"})");
  EXPECT_EQ(AnswerCodecLine(R"({"file":"x","id":"b"})", {}),
            R"({"file":"x","id":"b","error":"file `x` is not one of render, stream, numbers, images, tokenize"})");
}

}  // namespace
}  // namespace galley::protocol
