// SPDX-License-Identifier: Apache-2.0
// Times the grammar engine on the schemas of a case file against a real vocabulary, one thread: vocabulary build,
// compile with first mask, every mask and accept along the valid texts, bytes per grammar.
//   grammar_bench VOCABULARY SCHEMAS.jsonl [flexible|default|compact]
// VOCABULARY is in the format of `galley grammar-serve --vocab`; texts are split greedily into its tokens.
#include <fmt/format.h>

#include <time.h>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "galley/grammar/model_vocabulary.h"

namespace {

using galley::grammar::JsonValue;

double NowUs() {
  // Time of this thread on a processor, so that what else the machine does is not counted.
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

std::string ReadFile(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Series {
  std::vector<double> values;
  void Print(const char* name, const char* unit) {
    if (values.empty()) return;
    std::sort(values.begin(), values.end());
    const auto at = [&](double q) {
      return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
    };
    fmt::print("{:<12} n {:>8}  p50 {:>9.2f}  p90 {:>9.2f}  p99 {:>9.2f}  p99.9 {:>9.2f}  max {:>9.2f} {}\n", name,
               values.size(), at(0.5), at(0.9), at(0.99), at(0.999), values.back(), unit);
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: grammar_bench VOCABULARY SCHEMAS.jsonl [flexible|default|compact]\n");
    return 2;
  }
  const std::string mode = argc > 3 ? argv[3] : "flexible";
  const std::string vocabulary_text = ReadFile(argv[1]);
  auto file = galley::grammar::ReadVocabularyFile(vocabulary_text);
  if (!file) {
    std::fprintf(stderr, "%s: %s\n", argv[1], file.error().ToString().c_str());
    return 2;
  }
  galley::grammar::VocabularyOptions again;
  for (std::uint32_t id = 0; id < file->vocabulary->size(); ++id) {
    again.tokens.emplace_back(file->vocabulary->bytes(id));
    if (file->vocabulary->is_special(id)) again.specials.push_back(id);
  }
  const double build_start = NowUs();
  const auto built = galley::grammar::Vocabulary::Create(std::move(again));
  fmt::print("vocabulary {} ids, trie of {} nodes, built in {:.1f} ms\n", file->vocabulary->size(),
             file->vocabulary->trie().size(), (NowUs() - build_start) / 1000);
  galley::grammar::CompileOptions options;
  options.whitespace = mode == "compact"   ? galley::grammar::Whitespace::kCompact
                       : mode == "default" ? galley::grammar::Whitespace::kDefault
                                           : galley::grammar::Whitespace::kFlexible;
  Series first, mask_us, accept_us, megabytes;
  std::size_t refused = 0, rejected = 0, tokens = 0;
  std::vector<galley::grammar::MaskWord> mask(file->vocabulary->mask_words());
  std::ifstream cases(argv[2]);
  std::vector<std::pair<double, std::string>> slow;
  for (std::string line; std::getline(cases, line);) {
    const auto row = galley::grammar::ParseJson(line);
    if (!row) continue;
    const auto schema = galley::grammar::ParseJson(row->Find("schema")->text);
    const double start = NowUs();
    auto grammar = galley::grammar::CompileJsonSchema(*schema, options, file->vocabulary);
    if (!grammar) {
      ++refused;
      continue;
    }
    galley::grammar::Matcher matcher(*grammar);
    matcher.FillMask(mask);
    first.values.push_back((NowUs() - start) / 1000);
    slow.emplace_back(first.values.back() * 1000, "first " + row->Find("id")->text);
    for (const JsonValue& test : row->Find("tests")->items) {
      if (!test.Find("v")->boolean || test.Find("t") == nullptr || test.Find("lax") != nullptr) continue;
      matcher.Reset();
      bool good = true;
      for (const std::uint32_t token : file->vocabulary->Greedy(test.Find("t")->text)) {
        const double a = NowUs();
        matcher.FillMask(mask);
        const double b = NowUs();
        good = matcher.Accept(token);
        const double c = NowUs();
        mask_us.values.push_back(b - a);
        accept_us.values.push_back(c - b);
        if (b - a > 500)
          slow.emplace_back(b - a, "mask " + row->Find("id")->text + " at " + std::to_string(matcher.tokens()));
        ++tokens;
        if (!good || (mask[token / 64] >> (token % 64) & 1) == 0) break;
      }
      rejected += good && matcher.can_stop() ? 0 : 1;
    }
    megabytes.values.push_back(static_cast<double>(grammar->program->bytes() + matcher.bytes()) / 1e6);
  }
  fmt::print("whitespace {}, {} tokens, {} schemas refused, {} valid texts rejected\n", mode, tokens, refused,
             rejected);
  first.Print("first mask", "ms");
  mask_us.Print("mask", "us");
  accept_us.Print("accept", "us");
  megabytes.Print("memory", "MB");
  std::sort(slow.rbegin(), slow.rend());
  for (std::size_t i = 0; i < std::min<std::size_t>(slow.size(), 12); ++i) {
    fmt::print("slow {:>10.0f} us {}\n", slow[i].first, slow[i].second);
  }
  return 0;
}
