// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "app_fixture.h"
#include "bench_load.h"
#include "bench_workload.h"
#include "galley/base/option_table.h"
#include "galley/model/shapes.h"
#include "galley/protocol/json.h"

namespace galley::app {
namespace {

using protocol::Json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

LengthDistribution Lengths(std::string_view text) {
  const Result<LengthDistribution> made = LengthDistribution::Parse(text, "--len");
  EXPECT_TRUE(made) << text;
  return made ? *made : LengthDistribution();
}

std::vector<int> Draws(std::string_view text, int count) {
  const LengthDistribution lengths = Lengths(text);
  UniformStream uniform(7);
  std::vector<int> drawn;
  for (int i = 0; i < count; ++i) drawn.push_back(lengths.Draw(uniform));
  return drawn;
}

double Mean(const std::vector<int>& values) {
  double sum = 0;
  for (const int value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

TEST(BenchWorkload, DistributionsHaveTheirMeansAndBounds) {
  EXPECT_EQ(Draws("256", 3), (std::vector<int>{256, 256, 256}));
  const std::vector<int> uniform = Draws("uniform:10:20", 20'000);
  EXPECT_EQ(std::ranges::min(uniform), 10);
  EXPECT_EQ(std::ranges::max(uniform), 20);
  EXPECT_NEAR(Mean(uniform), 15, 0.1);  // standard error 3.2 / sqrt(20,000) = 0.02
  std::vector<int> lognormal = Draws("lognormal:100:0.5:1000", 20'001);
  EXPECT_NEAR(Mean(lognormal), 100 * std::exp(0.125), 2);  // exp(sigma^2 / 2) times the median
  std::ranges::nth_element(lognormal, lognormal.begin() + 10'000);
  EXPECT_NEAR(lognormal[10'000], 100, 2);
  EXPECT_EQ(std::ranges::max(Draws("lognormal:100:2:150", 1000)), 150);
  const std::vector<int> zipf = Draws("zipf:1:4", 20'000);
  // Weights 1, 1/2, 1/3, 1/4 add to 25/12: the mean is 4 / (25/12) = 1.92.
  EXPECT_NEAR(Mean(zipf), 1.92, 0.04);
  EXPECT_EQ(std::ranges::max(zipf), 4);
  EXPECT_EQ(std::ranges::min(zipf), 1);
}

TEST(BenchWorkload, WhatIsNoDistributionIsRefused) {
  for (const std::string_view text :
       {"", "0", "-1", "1048577", "x", "uniform", "uniform:5:4", "uniform:1:2:3", "uniform:1:2x", "lognormal:10:1",
        "lognormal:0:1:5", "lognormal:10:-1:5", "lognormal:10:nan:5", "zipf:1", "zipf:11:5", "zipf:1:0", "gauss:1:2"}) {
    const Result<LengthDistribution> made = LengthDistribution::Parse(text, "--prompt-len");
    ASSERT_FALSE(made) << text;
    EXPECT_EQ(made.error().where, "--prompt-len");
    EXPECT_THAT(made.error().message, HasSubstr("is no distribution of lengths"));
  }
}

TEST(BenchWorkload, PromptsShareTheirGroupsPrefixAndNothingElse) {
  const std::vector<TokenId> vocabulary = {10, 11, 12, 13, 14, 15, 16, 17};
  WorkloadOptions options{
      .requests = 6, .prompt = Lengths("40"), .output = Lengths("5"), .shared_ratio = 0.5, .groups = 2, .seed = 3};
  const std::vector<BenchRequest> requests = MakeWorkload(options, vocabulary);
  ASSERT_EQ(requests.size(), 6u);
  const auto begins = [&](std::size_t a, std::size_t b) {
    return std::ranges::mismatch(requests[a].prompt, requests[b].prompt).in1 - requests[a].prompt.begin();
  };
  for (const BenchRequest& request : requests) {
    EXPECT_EQ(request.prompt.size(), 40u);
    EXPECT_EQ(request.shared, 20);
    EXPECT_EQ(request.max_tokens, 5);
    for (const TokenId id : request.prompt) EXPECT_TRUE(id >= 10 && id <= 17);
  }
  EXPECT_GE(begins(0, 2), 20);
  EXPECT_LT(begins(0, 2), 30);  // eight tokens: ten alike by chance once in 8^10
  EXPECT_LT(begins(0, 1), 10);
  EXPECT_EQ(MakeWorkload(options, vocabulary)[5].prompt, requests[5].prompt);
  options.seed = 4;
  EXPECT_NE(MakeWorkload(options, vocabulary)[5].prompt, requests[5].prompt);
  options.shared_ratio = 0;
  options.shared_tokens = 128;
  EXPECT_EQ(MakeWorkload(options, vocabulary)[0].prompt.size(), 168u);
  EXPECT_EQ(MakeWorkload(options, vocabulary)[0].shared, 128);
}

TEST(BenchLoad, PercentilesAreNearestRanks) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Percentiles percentiles = PercentilesOf(values);
  EXPECT_EQ(percentiles.p50, 50);
  EXPECT_EQ(percentiles.p90, 90);
  EXPECT_EQ(percentiles.p99, 99);
  EXPECT_EQ(percentiles.most, 100);
  EXPECT_EQ(percentiles.mean, 50.5);
  EXPECT_EQ(PercentilesOf({3}).p99, 3);
  EXPECT_EQ(PercentilesOf({}).p50, 0);
}

RunOutcome Bench(std::vector<std::string> arguments) {
  FakeModel model;
  arguments.insert(arguments.begin(), "bench");
  return RunApp(model, {.arguments = std::move(arguments)});
}

std::string Probe() {
  return (std::filesystem::path(GALLEY_SOURCE_DIR) / "tests/golden/v41_probe").string();
}

// Three requests with 128 tokens in common: one computes the block, two find it and replay its 128 rows.
TEST(BenchThroughput, ReportsRatesHitsAndRows) {
  const RunOutcome outcome =
      Bench({"throughput", "--model",       Probe(), "--requests",    "3", "--shared-tokens", "128",  "--prompt-len",
             "2",          "--output-len",  "3",     "--concurrency", "3", "--prefix-cache",  "both", "--seed",
             "1",          "--speculation", "off",   "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Result<Json> report = protocol::ParseJson(outcome.out);
  ASSERT_TRUE(report) << outcome.out;
  const Json::Array& points = *report->Find("points")->if_array();
  ASSERT_EQ(points.size(), 2u);
  for (const Json& point : points) {
    const bool cache = *point.Find("prefix_cache")->if_bool();
    const Json& run = *point.Find("median");
    const auto count = [&](std::string_view name) { return *run.Find(name)->if_int(); };
    EXPECT_EQ(count("prompt_tokens"), 3 * 130);
    EXPECT_EQ(count("output_tokens"), 9);
    EXPECT_EQ(count("cached_tokens"), cache ? 2 * 128 : 0);
    EXPECT_EQ(count("replayed_tokens"), cache ? 2 * 128 : 0);
    EXPECT_EQ(count("prompt_rows"), 3 * 130);
    EXPECT_EQ(count("prompt_rows_planned"), 3 * 130);
    EXPECT_EQ(count("decode_rows"), 6);  // each output but its first token
    EXPECT_EQ(count("decode_rows_planned"), 6);
    EXPECT_EQ(*run.Find("hit_limits")->Find(cache ? "none" : "opt_out")->if_int(), cache ? 2 : 3);
    EXPECT_GT(run.Find("ttft_s")->Find("p50")->AsDouble(), 0);
    EXPECT_GE(run.Find("e2e_s")->Find("p50")->AsDouble(), run.Find("ttft_s")->Find("p50")->AsDouble());
    EXPECT_EQ(point.Find("gain_over_no_cache") != nullptr, cache);
  }
}

TEST(BenchThroughput, PrintsATable) {
  const RunOutcome outcome =
      Bench({"throughput", "--model", Probe(), "--requests", "2", "--prompt-len", "uniform:3:5", "--output-len", "2",
             "--concurrency", "1,2", "--repeat", "2", "--seed", "9", "--threads", "2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("throughput of v41_probe, backend cpu "));
  EXPECT_THAT(outcome.out, HasSubstr("2 threads: 2 requests, prompts of uniform:3:5 tokens (nothing shared), outputs "
                                     "of 2, seed 9, median of 2 rounds\n"));
  EXPECT_THAT(outcome.out, HasSubstr("\noutput tokens a second"));
  EXPECT_THAT(outcome.out, HasSubstr("\n2 at once ÷ 1 at once: "));
  EXPECT_EQ(outcome.err, "");
}

// Two rounds of a model's own texts, with and without drafts in turn; what is counted is equal but for the drafts.
TEST(BenchThroughput, ComparesWithAndWithoutDrafts) {
  const RunOutcome outcome = Bench({"throughput",
                                    "--model",
                                    Probe(),
                                    "--requests",
                                    "2",
                                    "--prompts",
                                    "own",
                                    "--prompt-len",
                                    "5",
                                    "--output-len",
                                    "9",
                                    "--concurrency",
                                    "2",
                                    "--repeat",
                                    "2",
                                    "--seed",
                                    "4",
                                    "--compare-drafts",
                                    "--no-adaptive-verify",
                                    "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Result<Json> report = protocol::ParseJson(outcome.out);
  ASSERT_TRUE(report) << outcome.out;
  EXPECT_EQ(*report->Find("prompts")->if_string(), "own");
  const Json::Array& points = *report->Find("points")->if_array();
  ASSERT_EQ(points.size(), 3u);  // with drafts, without, and without once more
  for (const Json& point : points) {
    const bool drafts = *point.Find("drafts")->if_bool(), control = *point.Find("control")->if_bool();
    const auto count = [&](std::string_view name) { return *point.Find("median")->Find(name)->if_int(); };
    EXPECT_EQ(count("prompt_tokens"), 10);
    EXPECT_EQ(count("output_tokens"), 18);
    EXPECT_EQ(count("draft_rounds") > 0, drafts);
    // Not adaptive: all are verified, but for those that there is no room for at an output's end.
    EXPECT_EQ(count("drafts_verified"), count("drafts_proposed"));
    const Json* gains = point.Find("gains_over_no_drafts");
    EXPECT_EQ(gains != nullptr, drafts || control);
    EXPECT_TRUE(gains == nullptr || gains->if_array()->size() == 2u);
  }
  EXPECT_THAT(Bench({"throughput", "--model", Probe(), "--requests", "1", "--prompt-len", "2", "--output-len", "2",
                     "--concurrency", "1", "--seed", "4", "--compare-drafts"})
                  .out,
              HasSubstr("\n1 at once, drafts on ÷ off: "));
}

TEST(BenchThroughput, RefusesWhatCannotBe) {
  EXPECT_THAT(Bench({}).err, HasSubstr("kinds are throughput"));
  EXPECT_THAT(Bench({"througput"}).err, HasSubstr("did you mean throughput?"));
  EXPECT_EQ(Bench({"throughput", "more"}).exit_code, 2);
  EXPECT_THAT(Bench({"throughput", "--concurrency", "1,,2"}).err, HasSubstr("--concurrency: \"1,,2\""));
  EXPECT_EQ(Bench({"throughput", "--concurrency", "0"}).exit_code, 2);
  EXPECT_THAT(Bench({"throughput", "--shared-prefix", "0.5", "--shared-tokens", "5"}).err, HasSubstr("given twice"));
  EXPECT_EQ(Bench({"throughput", "--prompt-len", "many"}).exit_code, 2);
  EXPECT_THAT(Bench({"throughput", "--prompt-len", "9000"}).err, HasSubstr("8192"));  // more than nano holds
}

// A shape that the option offers is in the table, and so few layers as it takes make a slice.
TEST(Bench, ShapesAndLayersOfTheOptions) {
  std::vector<std::string_view> names;
  for (const model::ModelShape& shape : model::kModelShapes) names.push_back(shape.name);
  EXPECT_EQ(options::Words(options::Find(options::AllOptions(), "shape")->choices), names);
  EXPECT_GE(options::Find(options::AllOptions(), "layers")->ints.low, model::kSliceLayersMin);
}

// What another kind measures with is refused before anything is measured.
TEST(Bench, OptionsOfOtherKinds) {
  const struct {
    std::vector<std::string> arguments;
    const char* said;
  } cases[] = {
      {{"throughput", "--shape", "v41"},
       "--shape: `galley bench throughput` does not take this option; it belongs to "},
      {{"throughput", "--layers", "8"},
       "--layers: `galley bench throughput` does not take this option; it belongs to slice"},
      {{"throughput", "--only", "moe"}, "it belongs to layers, kernels"},
      {{"layers", "--concurrency", "1"},
       "--concurrency: `galley bench layers` does not take this option; it belongs to throughput"},
      {{"layers", "--requests", "4"}, "it belongs to throughput"},
      {{"verify-plan", "--sync"}, "it belongs to throughput"},
      {{"verify-plan", "--backend", "cpu"}, "it belongs to throughput, layers, kernels, slice"},
      {{"layers", "--json"},
       "--json: `galley bench layers` does not take this option; it belongs to throughput, verify-plan"},
      {{"kernels", "--seed", "1"}, "it belongs to throughput, verify-plan"},
      {{"slice", "--cuda-graphs", "off", "--backend", "cuda"}, "it belongs to throughput"},
      {{"layers", "--processor-time", "--backend", "cuda"}, "--processor-time: is for what computes on processors"},
      {{"kernels", "--only", "collectives", "--shape", "v41"}, "--shape: collectives does not read this option"},
      {{"kernels", "--only", "placement", "--prefill-rows", "1"},
       "--prefill-rows: placement does not read this option"},
      {{"kernels", "--only", "placement", "--only", "dense"}, "--only: placement is measured alone"},
  };
  for (const auto& row : cases) {
    const RunOutcome outcome = Bench(row.arguments);
    EXPECT_EQ(outcome.exit_code, 2) << row.said;
    EXPECT_THAT(outcome.err, HasSubstr(row.said));
  }
}

}  // namespace
}  // namespace galley::app
