// SPDX-License-Identifier: Apache-2.0
// grammar_bench [--vocab FILE] [--cases FILE] [--whitespace W] [--json] [--dump-tokens FILE] [--slow N]
// Times the grammar engine on the schemas of a case file, one thread: vocabulary build, compile with first mask, every
// mask and accept along the valid texts, bytes per grammar. Without --vocab on the small model's tokenizer; a file is
// in the format of `galley grammar-serve --vocab`. Texts are cut greedily into the longest tokens. Times are those of
// the thread on a processor, so that what else the machine does is not counted.
#include <fmt/format.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "galley/grammar/model_vocabulary.h"
#include "galley/text/tokenizer.h"
#include "packed_file.h"

namespace galley::bench {
namespace {

using grammar::JsonValue;
using grammar::MaskWord;

struct Options {
  std::string vocabulary;
  std::string cases = GALLEY_SOURCE_DIR "/tests/cases/structured/schemas.jsonl.xz";
  std::string whitespace = "flexible";
  std::string dump_tokens;
  int slow = 0;
  bool json = false;
};

double NowUs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

struct Series {
  std::string name;
  std::string unit;
  std::vector<double> values;
  [[nodiscard]] double At(double q) const {
    return values.empty() ? 0 : values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
  }
  void Print(bool json) {
    std::sort(values.begin(), values.end());
    if (json) {
      fmt::print(
          ",\"{}\":{{\"unit\":\"{}\",\"n\":{},\"p50\":{:.3f},\"p90\":{:.3f},\"p95\":{:.3f},\"p99\":{:.3f},"
          "\"p99.9\":{:.3f},\"max\":{:.3f}}}",
          name, unit, values.size(), At(0.5), At(0.9), At(0.95), At(0.99), At(0.999), At(1));
    } else {
      fmt::print(
          "{:<12} n {:>8}  p50 {:>9.2f}  p90 {:>9.2f}  p95 {:>9.2f}  p99 {:>9.2f}  p99.9 {:>9.2f}  max {:>9.2f} {}\n",
          name, values.size(), At(0.5), At(0.9), At(0.95), At(0.99), At(0.999), At(1), unit);
    }
  }
};

Result<grammar::ModelVocabulary> LoadVocabulary(const std::string& path) {
  if (!path.empty()) return grammar::ReadVocabularyFile(ReadPacked(path));
  ASSIGN_OR_RETURN(const text::Tokenizer tokenizer, text::Tokenizer::Load(GALLEY_SOURCE_DIR "/models/nano"
                                                                                            "/tokenizer.json"));
  const std::array<TokenId, 1> ends = {1};
  return grammar::VocabularyOf(tokenizer, ends);
}

// Milliseconds for building the same vocabulary again.
double BuildMs(const grammar::Vocabulary& vocabulary) {
  grammar::VocabularyOptions again;
  for (std::uint32_t id = 0; id < vocabulary.size(); ++id) {
    again.tokens.emplace_back(vocabulary.bytes(id));
    if (vocabulary.is_special(id)) again.specials.push_back(id);
  }
  const double start = NowUs();
  const auto built = grammar::Vocabulary::Create(std::move(again));
  return (NowUs() - start) / 1000;
}

class Bench {
 public:
  Bench(Options options, std::shared_ptr<const grammar::Vocabulary> vocabulary)
      : options_(std::move(options)), vocabulary_(std::move(vocabulary)), mask_(vocabulary_->mask_words()) {
    compile_.whitespace = options_.whitespace == "compact"   ? grammar::Whitespace::kCompact
                          : options_.whitespace == "default" ? grammar::Whitespace::kDefault
                                                             : grammar::Whitespace::kFlexible;
    if (!options_.dump_tokens.empty()) dump_.open(options_.dump_tokens);
  }

  void Schema(const JsonValue& row) {
    const std::string& id = row.Find("id")->text;
    const auto schema = grammar::ParseJson(row.Find("schema")->text);
    if (!schema) return BadRow();
    const double start = NowUs();
    auto compiled = grammar::CompileJsonSchema(*schema, compile_, vocabulary_);
    if (!compiled) {
      ++refused_;
      return;
    }
    grammar::Matcher matcher(*compiled);
    matcher.FillMask(mask_);
    first_.values.push_back((NowUs() - start) / 1000);
    slow_.emplace_back(first_.values.back() * 1000, "first " + id);
    if (dump_.is_open()) dump_ << "{\"schema\":" << grammar::JsonQuote(row.Find("schema")->text) << ",\"texts\":[";
    bool comma = false;
    for (const JsonValue& test : row.Find("tests")->items) {
      if (!test.Find("v")->boolean || test.Find("t") == nullptr || test.Find("lax") != nullptr) continue;
      const std::vector<std::uint32_t> tokens = vocabulary_->Greedy(test.Find("t")->text);
      if (dump_.is_open()) dump_ << (comma ? "," : "") << fmt::format("[{}]", fmt::join(tokens, ","));
      comma = true;
      if (!Walk(matcher, tokens, id)) ++rejected_;
    }
    if (dump_.is_open()) dump_ << "]}\n";
    megabytes_.values.push_back(static_cast<double>(compiled->program->bytes() + matcher.bytes()) / 1e6);
  }

  void Report(double build_ms) {
    if (options_.json) {
      fmt::print("{{\"ids\":{},\"build_ms\":{:.1f},\"tokens\":{},\"refused\":{},\"rejected\":{},\"bad_rows\":{}",
                 vocabulary_->size(), build_ms, mask_us_.values.size(), refused_, rejected_, bad_rows_);
    } else {
      fmt::print("vocabulary {} ids, trie of {} nodes, built in {:.1f} ms\n", vocabulary_->size(),
                 vocabulary_->trie().size(), build_ms);
      fmt::print("whitespace {}, {} tokens, {} schemas refused, {} valid texts rejected, {} rows unreadable\n",
                 options_.whitespace, mask_us_.values.size(), refused_, rejected_, bad_rows_);
    }
    for (Series* series : {&first_, &mask_us_, &accept_us_, &megabytes_}) series->Print(options_.json);
    if (options_.json) fmt::print("}}\n");
    std::sort(slow_.rbegin(), slow_.rend());
    for (std::size_t i = 0; i < std::min(slow_.size(), static_cast<std::size_t>(options_.slow)); ++i) {
      fmt::print("slow {:>10.0f} us {}\n", slow_[i].first, slow_[i].second);
    }
  }

  // A row that is no schema with its texts.
  void BadRow() { ++bad_rows_; }
  [[nodiscard]] bool good() const { return rejected_ == 0 && bad_rows_ == 0; }

 private:
  // False when the text is refused.
  bool Walk(grammar::Matcher& matcher, const std::vector<std::uint32_t>& tokens, const std::string& id) {
    matcher.Reset();
    for (const std::uint32_t token : tokens) {
      const double a = NowUs();
      matcher.FillMask(mask_);
      const double b = NowUs();
      const bool accepted = matcher.Accept(token);
      const double c = NowUs();
      mask_us_.values.push_back(b - a);
      accept_us_.values.push_back(c - b);
      if (b - a > 500) slow_.emplace_back(b - a, fmt::format("mask {} at {}", id, Before(tokens, matcher.tokens())));
      if (!accepted || (mask_[token / 64] >> (token % 64) & 1) == 0) return false;
    }
    return matcher.can_stop();
  }

  // The last bytes in front of token `at`.
  [[nodiscard]] std::string Before(const std::vector<std::uint32_t>& tokens, std::size_t at) const {
    constexpr std::size_t kShown = 24;
    std::string out;
    for (std::size_t i = 0; i < std::min(at, tokens.size()); ++i) out += vocabulary_->bytes(tokens[i]);
    return grammar::JsonQuote(out.substr(out.size() - std::min(out.size(), kShown)));
  }

  Options options_;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  grammar::CompileOptions compile_;
  std::vector<MaskWord> mask_;
  std::ofstream dump_;
  Series first_{"first_mask", "ms", {}}, mask_us_{"mask", "us", {}}, accept_us_{"accept", "us", {}};
  Series megabytes_{"memory", "MB", {}};
  std::size_t refused_ = 0, rejected_ = 0, bad_rows_ = 0;
  std::vector<std::pair<double, std::string>> slow_;
};

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of token masks on one thread");
  app.add_option("--vocab", options.vocabulary, "vocabulary file instead of the small model's tokenizer");
  app.add_option("--cases", options.cases, "schemas and texts, .jsonl or .jsonl.xz");
  app.add_option("--whitespace", options.whitespace, "compact, default or flexible");
  app.add_option("--dump-tokens", options.dump_tokens, "file that schemas and token ids are written to");
  app.add_option("--slow", options.slow, "list so many of the slowest first masks and masks");
  app.add_flag("--json", options.json, "print one JSON object");
  CLI11_PARSE(app, argc, argv);
  const auto vocabulary = LoadVocabulary(options.vocabulary);
  if (!vocabulary) {
    fmt::print(stderr, "{}\n", vocabulary.error().ToString());
    return Info(vocabulary.error().code).exit_code;
  }
  const std::string cases = ReadPacked(options.cases);
  if (cases.empty()) {
    fmt::print(stderr, "{}: nothing to read\n", options.cases);
    return Info(ErrorCode::kNotFound).exit_code;
  }
  const double build_ms = BuildMs(*vocabulary->vocabulary);
  Bench bench(std::move(options), vocabulary->vocabulary);
  for (std::size_t at = 0; at < cases.size();) {
    const std::size_t end = std::min(cases.find('\n', at), cases.size());
    const auto row = grammar::ParseJson(std::string_view(cases).substr(at, end - at));
    const bool whole =
        row && row->Find("id") != nullptr && row->Find("schema") != nullptr && row->Find("tests") != nullptr;
    if (whole) {
      bench.Schema(*row);
    } else {
      bench.BadRow();
    }
    at = end + 1;
  }
  bench.Report(build_ms);
  return bench.good() ? 0 : 1;
}

}  // namespace
}  // namespace galley::bench

int main(int argc, char** argv) {
  return galley::bench::Main(argc, argv);
}
