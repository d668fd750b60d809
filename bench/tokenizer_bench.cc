// SPDX-License-Identifier: Apache-2.0
// tokenizer_bench TOKENIZER_JSON [--text FILE] [--mib N] [--runs N] [--json] [--dump-text FILE] [--dump-ids FILE]
// Speed of loading, splitting, encoding and decoding on one thread. Times are CPU time of the thread, the best of the
// runs, so that other work on the machine disturbs as little as possible. Without --text, on the text of mixed_text.h.
#include <fmt/format.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <string>

#include "galley/text/compressed_ids.h"
#include "galley/text/detokenizer.h"
#include "galley/text/splitter.h"
#include "galley/text/tokenizer.h"
#include "mixed_text.h"
#include "packed_file.h"

namespace galley::bench {
namespace {

struct Options {
  std::string tokenizer;
  std::string text;
  std::string dump_text;
  std::string dump_ids;
  double mib = 2;
  int runs = 15;
  bool json = false;
};

double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double BestSeconds(int runs, const std::function<void()>& work) {
  double best = std::numeric_limits<double>::infinity();
  for (int run = 0; run < runs; ++run) {
    const double start = CpuSeconds();
    work();
    best = std::min(best, CpuSeconds() - start);
  }
  return best;
}

int Fail(const Error& error) {
  std::cerr << error.ToString() << "\n";
  return Info(error.code).exit_code;
}

// The splitter alone where it can be reached without the list that SplitEnds returns.
std::size_t CountPieces(const text::Tokenizer& tokenizer, text::Encoder& encoder, std::string_view text) {
  if (!tokenizer.has_official_split()) return encoder.SplitEnds(text)->size();
  std::size_t pieces = 0;
  for (std::size_t end = 0; end < text.size(); ++pieces) end = text::OfficialPieceEnd(text, end);
  return pieces;
}

// Prints figures as they come, as lines or as one JSON object.
class Report {
 public:
  explicit Report(bool json) : json_(json) {}
  void Add(std::string_view name, double value, std::string_view unit) {
    if (json_) {
      fmt::print("{}\"{}_{}\": {:.4g}", first_ ? "{" : ", ", name, unit, value);
    } else {
      fmt::print("{:<28}{:>10.1f} {}\n", name, value, unit);
    }
    first_ = false;
  }
  void Finish() const {
    if (json_) fmt::print("}}\n");
  }

 private:
  bool json_;
  bool first_ = true;
};

int Measure(const Options& options, const std::string& text) {
  Result<text::Tokenizer> tokenizer = text::Tokenizer::Load(options.tokenizer);
  if (!tokenizer) return Fail(tokenizer.error());
  const double megabytes = 1e-6 * static_cast<double>(text.size());
  Report report(options.json);
  report.Add("text", megabytes, "mb");
  report.Add("load", 1e3 * BestSeconds(5, [&] { static_cast<void>(text::Tokenizer::Load(options.tokenizer)); }), "ms");
  report.Add(
      "compressed_ids",
      1e3 * BestSeconds(5, [&] { static_cast<void>(text::BuildCompressedIds(*tokenizer, tokenizer->vocab_size())); }),
      "ms");

  text::Encoder warm(*tokenizer);
  std::vector<TokenId> ids;
  std::size_t pieces = 0;
  const auto rate = [&](const std::function<void()>& work) { return megabytes / BestSeconds(options.runs, work); };
  report.Add("split", rate([&] { pieces = CountPieces(*tokenizer, warm, text); }), "mb_s");
  report.Add("encode", rate([&] { ids = *warm.Encode(text); }), "mb_s");
  if (!options.dump_ids.empty()) {
    std::ofstream(options.dump_ids, std::ios::binary)
        .write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * sizeof(TokenId)));
  }
  report.Add("encode_new_encoder", rate([&] { ids = *text::Encoder(*tokenizer).Encode(text); }), "mb_s");
  report.Add("encode_without_cache", rate([&] { ids = *text::Encoder(*tokenizer, {.cache_slots = 0}).Encode(text); }),
             "mb_s");
  report.Add("encode_matching_added", rate([&] { ids = *warm.Encode(text, text::AddedTokens::kMatch); }), "mb_s");
  report.Add("decode", rate([&] { static_cast<void>(tokenizer->Decode(ids)); }), "mb_s");
  report.Add("stream", rate([&] {
               text::Detokenizer detokenizer(*tokenizer);
               for (const TokenId id : ids) static_cast<void>(detokenizer.Append(id));
             }),
             "mb_s");
  text::Encoder counted(*tokenizer);
  static_cast<void>(counted.Encode(text));
  report.Add("pieces", static_cast<double>(pieces), "count");
  report.Add("tokens", static_cast<double>(ids.size()), "count");
  report.Add("cache_hits_first_run",
             100.0 * static_cast<double>(counted.work().cache_hits) / static_cast<double>(counted.work().pieces),
             "percent");
  report.Finish();
  return 0;
}

}  // namespace

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of the tokenizer on one thread");
  app.add_option("tokenizer", options.tokenizer, "tokenizer.json")->required();
  app.add_option("--text", options.text, "file to encode instead of the mixed text");
  app.add_option("--dump-text", options.dump_text, "file that the mixed text is written to");
  app.add_option("--dump-ids", options.dump_ids, "file that the ids are written to, as 32-bit integers");
  app.add_option("--mib", options.mib, "size of the mixed text")->check(CLI::Range(0.001, 256.0));
  app.add_option("--runs", options.runs, "runs of which the best counts")->check(CLI::Range(1, 1000));
  app.add_flag("--json", options.json, "print one JSON object");
  CLI11_PARSE(app, argc, argv);
  const std::string text =
      options.text.empty() ? MixedText(static_cast<std::size_t>(options.mib * 1048576)) : ReadPacked(options.text);
  if (text.empty()) return Fail({ErrorCode::kNotFound, "no text to encode", options.text});
  if (!options.dump_text.empty()) std::ofstream(options.dump_text, std::ios::binary) << text;
  return Measure(options, text);
}

}  // namespace galley::bench

int main(int argc, char** argv) {
  return galley::bench::Main(argc, argv);
}
