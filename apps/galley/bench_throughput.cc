// SPDX-License-Identifier: Apache-2.0
// `galley bench throughput`: a synthetic workload through the engine at several concurrencies, with and without the
// prefix cache and drafts if asked for; the latter beside a second run without, which shows the noise. Rounds go over
// all points, so that a change of the machine's load meets them alike, and forth and back in turn, so that none always
// comes first.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <memory>
#include <numeric>

#include "answer.h"
#include "bench.h"
#include "bench_load.h"
#include "files.h"
#include "galley/base/thread_pool.h"
#include "galley/protocol/json.h"
#include "interrupt.h"
#include "loading.h"

namespace galley::app {
namespace {

using protocol::Json;

// Whose drafts: as --speculation says, none, and none once more: what two equal points differ by is the noise.
enum class Drafts { kAsAsked, kNone, kControl };
constexpr const char* kDraftsName[] = {"", ", no drafts", ", control"};

struct Settings {
  WorkloadOptions workload;
  engine::EngineOptions engine;
  std::vector<int> concurrency;
  std::vector<bool> cache;     // of each concurrency: used, not used
  std::vector<Drafts> drafts;  // of each of those
  bool own_texts = false;      // prompts are the model's own texts, not random tokens
  int repeat = 1;
  double temperature = 1;
};

struct Point {
  int concurrency = 1;
  bool cache = true;
  Drafts drafts = Drafts::kAsAsked;
  std::vector<LoadResult> runs;
  std::size_t middle = 0;  // the run of median duration (the longer of two)
  [[nodiscard]] const LoadResult& median() const { return runs[middle]; }
  [[nodiscard]] std::string name() const {
    return fmt::format("{}{}{}", concurrency, cache ? "" : ", no cache", kDraftsName[static_cast<int>(drafts)]);
  }
};

Result<std::vector<int>> ReadConcurrency(const std::string& text) {
  constexpr int kMost = 4096;
  std::vector<int> list;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    int value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value < 1 || value > kMost || (next != end && *next != ',')) break;
    list.push_back(value);
    if (next == end) return list;
    at = next + 1;
  }
  return Err(ErrorCode::kInvalidArgument,
             fmt::format("\"{}\" must be numbers of 1 to {} with commas between them", text, kMost), "--concurrency");
}

Result<Settings> ReadSettings(Context& context) {
  const options::Values& values = context.values;
  Settings settings;
  WorkloadOptions& workload = settings.workload;
  workload.requests = static_cast<int>(values.Int("requests"));
  ASSIGN_OR_RETURN(workload.prompt, LengthDistribution::Parse(values.String("prompt-len"), "--prompt-len"));
  ASSIGN_OR_RETURN(workload.output, LengthDistribution::Parse(values.String("output-len"), "--output-len"));
  workload.shared_ratio = values.Float("shared-prefix");
  workload.shared_tokens = static_cast<int>(values.Int("shared-tokens"));
  if (workload.shared_ratio > 0 && workload.shared_tokens > 0) {
    return Err(ErrorCode::kInvalidArgument, "cannot go together with --shared-tokens: the prefix is given twice",
               "--shared-prefix");
  }
  workload.groups = static_cast<int>(values.Int("prefix-groups"));
  workload.seed = values.Has("seed") ? static_cast<std::uint64_t>(values.Int("seed")) : DrawSeed();
  ASSIGN_OR_RETURN(settings.concurrency, ReadConcurrency(values.String("concurrency")));
  const std::string& cache = values.String("prefix-cache");
  if (cache != "off") settings.cache.push_back(true);
  if (cache != "on") settings.cache.push_back(false);
  settings.drafts.push_back(Drafts::kAsAsked);
  if (values.Bool("compare-drafts")) {
    settings.drafts.push_back(Drafts::kNone);
    settings.drafts.push_back(Drafts::kControl);
  }
  settings.own_texts = values.String("prompts") == "own";
  settings.repeat = static_cast<int>(values.Int("repeat"));
  settings.temperature = values.Float("temperature");

  engine::EngineOptions& engine = settings.engine;
  ASSIGN_OR_RETURN(engine.model_dir, ModelDir(context));
  RETURN_IF_ERROR(CheckWeights(context, engine.model_dir));
  engine.device = ReadDevice(context);
  engine.on_load = ShowLoading(context.terminal);
  engine.device.backend = engine::BackendName(engine.device.backend);
  engine.max_seqs = std::ranges::max(settings.concurrency);
  engine.step_rows_max = static_cast<int>(values.Int("step-rows"));
  engine.blocks = static_cast<int>(values.Int("blocks"));
  engine.itl_target_s = values.Float("itl-target-ms") * 1e-3;
  engine.synchronous = values.Bool("sync");
  engine.memory_limit = values.Int("memory-limit");
  engine.replay = values.String("replay") == "exact" ? kv::ReplayMode::kExact : kv::ReplayMode::kBounded;
  if (values.String("decoder-truncation") == "compact") {
    engine.decoder_keep = static_cast<int>(values.Int("decoder-keep"));
  }
  ASSIGN_OR_RETURN(engine.speculation, ReadSpeculation(values));
  // Memory for what the workload can come to and no more.
  engine.max_seq_len = workload.prompt.longest() + workload.shared_tokens + workload.output.longest();
  return settings;
}

struct Engines {
  std::vector<std::unique_ptr<engine::Engine>> each;  // by Drafts, those that are compared
  [[nodiscard]] engine::Engine& of(Drafts drafts) const { return *each[static_cast<std::size_t>(drafts)]; }
};

Result<Engines> MakeEngines(const Settings& settings) {
  Engines engines;
  engine::EngineOptions options = settings.engine;
  for (const Drafts drafts : settings.drafts) {
    if (drafts != Drafts::kAsAsked) options.speculation = {.mode = engine::SpeculationMode::kOff, .draft_tokens = 0};
    ASSIGN_OR_RETURN(engines.each.emplace_back(), engine::Engine::Create(options));
  }
  return engines;
}

std::vector<Point> MakePoints(const Settings& settings) {
  std::vector<Point> points;
  for (const int concurrency : settings.concurrency) {
    for (const bool cache : settings.cache) {
      for (const Drafts drafts : settings.drafts) {
        points.push_back({.concurrency = concurrency, .cache = cache, .drafts = drafts, .runs = {}});
      }
    }
  }
  return points;
}

void FindMiddle(Point& point) {
  std::vector<std::size_t> order(point.runs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t run) { return point.runs[run].seconds; });
  point.middle = order[order.size() / 2];
}

Result<std::vector<Point>> Measure(Context& context, const Settings& settings, const Engines& engines) {
  std::vector<BenchRequest> requests = MakeWorkload(settings.workload, OrdinaryTokens(engines.of(Drafts::kAsAsked)));
  const Interrupt interrupt;
  if (settings.own_texts) RETURN_IF_ERROR(ContinueOwnTexts(engines.of(Drafts::kAsAsked), requests));
  std::vector<Point> points = MakePoints(settings);
  for (int round = 0; round < settings.repeat; ++round) {
    for (std::size_t i = 0; i < points.size(); ++i) {
      Point& point = points[round % 2 == 0 ? i : points.size() - 1 - i];
      const LoadOptions load{.concurrency = point.concurrency,
                             .use_cache = point.cache,
                             .cache_salt = fmt::format("{} round {}", point.name(), round),
                             .temperature = settings.temperature};
      const auto progress = [&](const LoadProgress& at) {
        context.terminal.Progress(fmt::format("round {}/{}, concurrency {}: {}/{} requests, {} tokens in {:.1f} s",
                                              round + 1, settings.repeat, point.name(), at.ended, requests.size(),
                                              at.output_tokens, at.seconds));
        return !interrupt.requested() && !context.terminal.output_closed();
      };
      ASSIGN_OR_RETURN(LoadResult result, RunLoad(engines.of(point.drafts), requests, load, progress));
      point.runs.push_back(std::move(result));
    }
  }
  context.terminal.Progress("");
  for (Point& point : points) FindMiddle(point);
  return points;
}

std::string Milliseconds(const Percentiles& times) {
  return fmt::format("{:.1f} / {:.1f} / {:.1f}", times.p50 * 1e3, times.p90 * 1e3, times.p99 * 1e3);
}

// "480 of 490" where they differ, "490" where they do not.
std::string Against(std::int64_t value, std::int64_t planned) {
  return value == planned ? fmt::format("{}", value) : fmt::format("{} for {}", value, planned);
}

std::string Percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? "-" : fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

struct Row {
  std::string_view label;
  std::function<std::string(const LoadResult& run)> text;
};

const std::vector<Row>& Rows() {
  static const std::vector<Row> rows = {
      {"seconds", [](const LoadResult& run) { return fmt::format("{:.2f}", run.seconds); }},
      {"processor seconds", [](const LoadResult& run) { return fmt::format("{:.2f}", run.cpu_seconds); }},
      {"requests a second", [](const LoadResult& run) { return fmt::format("{:.2f}", run.PerSecond(run.requests)); }},
      {"prompt tokens a second",
       [](const LoadResult& run) { return fmt::format("{:.1f}", run.PerSecond(run.prompt_tokens)); }},
      {"output tokens a second",
       [](const LoadResult& run) { return fmt::format("{:.1f}", run.PerSecond(run.output_tokens)); }},
      {"to first token, ms: p50 / p90 / p99", [](const LoadResult& run) { return Milliseconds(run.ttft_s); }},
      {"between tokens, ms: p50 / p90 / p99", [](const LoadResult& run) { return Milliseconds(run.itl_s); }},
      {"whole request, ms: p50 / p90 / p99", [](const LoadResult& run) { return Milliseconds(run.e2e_s); }},
      {"prompt tokens found in the cache",
       [](const LoadResult& run) { return Percent(run.cached_tokens, run.prompt_tokens); }},
      {"requests that found all blocks", [](const LoadResult& run) { return fmt::format("{}", run.hits_whole); }},
      {"requests that waited for another's blocks",
       [](const LoadResult& run) { return fmt::format("{}", run.shared_waits); }},
      {"rows replayed", [](const LoadResult& run) { return fmt::format("{}", run.replayed_tokens); }},
      {"prompt rows computed (for planned)",
       [](const LoadResult& run) { return Against(run.prompt_rows, run.prompt_rows_planned); }},
      {"decode rows computed (for planned)",
       [](const LoadResult& run) { return Against(run.decode_rows, run.decode_rows_planned); }},
      {"steps", [](const LoadResult& run) { return fmt::format("{}", run.steps); }},
      {"preemptions", [](const LoadResult& run) { return fmt::format("{}", run.preemptions); }},
      {"drafts verified (for proposed)",
       [](const LoadResult& run) { return Against(run.speculation.verified, run.speculation.drafted); }},
      {"rounds with drafts; accepted of each",
       [](const LoadResult& run) {
         const engine::SpeculationCounts& counts = run.speculation;
         if (counts.rounds == 0) return std::string("0");
         return fmt::format("{}; {:.2f}", counts.rounds,
                            static_cast<double>(counts.accepted) / static_cast<double>(counts.rounds));
       }},
  };
  return rows;
}

// Output rate over that of another point.
double Gain(const Point& point, const Point& base) {
  return point.median().PerSecond(point.median().output_tokens) /
         std::max(base.median().PerSecond(base.median().output_tokens), 1e-9);
}

// Output tokens in each second, of a clock or of processors, over those of another point, round by round, ascending:
// what both met alike cancels out.
std::vector<double> RoundGains(const Point& point, const Point& base, double LoadResult::*seconds) {
  std::vector<double> gains;
  for (std::size_t round = 0; round < point.runs.size(); ++round) {
    const LoadResult &run = point.runs[round], &other = base.runs[round];
    gains.push_back(static_cast<double>(run.output_tokens) * other.*seconds /
                    std::max(static_cast<double>(other.output_tokens) * run.*seconds, 1e-9));
  }
  std::ranges::sort(gains);
  return gains;
}

// The middle of ascending numbers and those at a quarter and three quarters.
std::string Quartiles(const std::vector<double>& sorted) {
  const auto at = [&](std::size_t quarter) { return sorted[quarter * (sorted.size() - 1) / 4]; };
  return fmt::format("{:.3f} ({:.3f} to {:.3f})", at(2), at(1), at(3));
}

const Point* Find(const std::vector<Point>& points, int concurrency, bool cache, Drafts drafts) {
  for (const Point& point : points) {
    if (point.concurrency == concurrency && point.cache == cache && point.drafts == drafts) return &point;
  }
  return nullptr;
}

// What a point is compared with; null: nothing.
const Point* WithoutCache(const std::vector<Point>& points, const Point& point) {
  return point.cache ? Find(points, point.concurrency, false, point.drafts) : nullptr;
}

const Point* WithoutDrafts(const std::vector<Point>& points, const Point& point) {
  return point.drafts == Drafts::kNone ? nullptr : Find(points, point.concurrency, point.cache, Drafts::kNone);
}

std::string Comparisons(const std::vector<Point>& points) {
  std::string text;
  for (const Point& point : points) {
    const Point& first = points.front();
    if (&point != &first && point.cache == first.cache && point.drafts == first.drafts) {
      text += fmt::format("{} at once ÷ {} at once: {:.2f} times the output rate\n", point.concurrency,
                          first.concurrency, Gain(point, first));
    }
    if (const Point* without = WithoutCache(points, point)) {
      text += fmt::format("{} at once{}, cache on ÷ off: {:.2f} times the output rate\n", point.concurrency,
                          kDraftsName[static_cast<int>(point.drafts)], Gain(point, *without));
    }
    if (const Point* without = WithoutDrafts(points, point)) {
      text +=
          fmt::format("{} at once{}, {} ÷ off: {} times the output rate, {} times the output of a processor second\n",
                      point.concurrency, point.cache ? "" : ", no cache",
                      point.drafts == Drafts::kControl ? "drafts off" : "drafts on",
                      Quartiles(RoundGains(point, *without, &LoadResult::seconds)),
                      Quartiles(RoundGains(point, *without, &LoadResult::cpu_seconds)));
    }
  }
  return text;
}

std::string Table(const std::vector<Point>& points) {
  constexpr std::size_t kLabel = 42, kColumn = 24;
  std::string text = fmt::format("{:<{}}", "requests at once", kLabel);
  for (const Point& point : points) text += fmt::format("  {:>{}}", point.name(), kColumn);
  text += "\n";
  for (const Row& row : Rows()) {
    text += fmt::format("{:<{}}", row.label, kLabel);
    for (const Point& point : points) text += fmt::format("  {:>{}}", row.text(point.median()), kColumn);
    text += "\n";
  }
  return text + Comparisons(points);
}

Json PercentilesJson(const Percentiles& times) {
  return Json::MakeObject(
      {{"mean", times.mean}, {"p50", times.p50}, {"p90", times.p90}, {"p99", times.p99}, {"max", times.most}});
}

Json RunJson(const LoadResult& run) {
  Json limits(Json::Object{});
  for (const auto& [label, count] : run.hit_limits) limits.Set(label, count);
  return Json::MakeObject({{"seconds", run.seconds},
                           {"cpu_seconds", run.cpu_seconds},
                           {"requests", run.requests},
                           {"prompt_tokens", run.prompt_tokens},
                           {"output_tokens", run.output_tokens},
                           {"requests_per_s", run.PerSecond(run.requests)},
                           {"prompt_tokens_per_s", run.PerSecond(run.prompt_tokens)},
                           {"output_tokens_per_s", run.PerSecond(run.output_tokens)},
                           {"ttft_s", PercentilesJson(run.ttft_s)},
                           {"itl_s", PercentilesJson(run.itl_s)},
                           {"e2e_s", PercentilesJson(run.e2e_s)},
                           {"cached_tokens", run.cached_tokens},
                           {"replayed_tokens", run.replayed_tokens},
                           {"hits_whole", run.hits_whole},
                           {"hit_limits", std::move(limits)},
                           {"shared_waits", run.shared_waits},
                           {"prompt_rows_planned", run.prompt_rows_planned},
                           {"prompt_rows", run.prompt_rows},
                           {"decode_rows_planned", run.decode_rows_planned},
                           {"decode_rows", run.decode_rows},
                           {"steps", run.steps},
                           {"preemptions", run.preemptions},
                           {"draft_rounds", run.speculation.rounds},
                           {"drafts_proposed", run.speculation.drafted},
                           {"drafts_verified", run.speculation.verified},
                           {"drafts_accepted", run.speculation.accepted},
                           {"decode_waits_longest", run.decode_waits_longest}});
}

std::string ReportJson(const Settings& settings, const engine::Compute& compute, const std::vector<Point>& points) {
  const WorkloadOptions& workload = settings.workload;
  Json list(Json::Array{});
  for (const Point& point : points) {
    Json runs(Json::Array{});
    for (const LoadResult& run : point.runs) runs.Push(RunJson(run));
    Json object = Json::MakeObject({{"concurrency", point.concurrency},
                                    {"prefix_cache", point.cache},
                                    {"drafts", point.drafts == Drafts::kAsAsked},
                                    {"control", point.drafts == Drafts::kControl}});
    object.Set("gain_over_first", Gain(point, points.front()));
    if (const Point* without = WithoutCache(points, point)) object.Set("gain_over_no_cache", Gain(point, *without));
    if (const Point* without = WithoutDrafts(points, point)) {
      Json gains(Json::Array{});
      for (const double gain : RoundGains(point, *without, &LoadResult::seconds)) gains.Push(gain);
      object.Set("gains_over_no_drafts", std::move(gains));
    }
    object.Set("median", RunJson(point.median()));
    object.Set("runs", std::move(runs));
    list.Push(std::move(object));
  }
  Json report = Json::MakeObject({{"kind", "throughput"},
                                  {"model", settings.engine.model_dir.filename().string()},
                                  {"backend", compute.backend},
                                  {"seed", workload.seed},
                                  {"requests", workload.requests},
                                  {"prompts", settings.own_texts ? "own" : "random"},
                                  {"prompt_len", workload.prompt.text()},
                                  {"output_len", workload.output.text()},
                                  {"shared_prefix", workload.shared_ratio},
                                  {"shared_tokens", workload.shared_tokens},
                                  {"prefix_groups", workload.groups},
                                  {"points", std::move(list)}});
  AddCompute(report, compute);
  return protocol::DumpJson(report) + "\n";
}

std::string Heading(const Settings& settings, const engine::Compute& compute) {
  const WorkloadOptions& workload = settings.workload;
  std::string shared = "nothing shared";
  if (workload.shared_tokens > 0) shared = fmt::format("behind {} shared", workload.shared_tokens);
  if (workload.shared_ratio > 0) shared = fmt::format("{:.0f} % of each shared", 100 * workload.shared_ratio);
  if (workload.groups > 1) shared += fmt::format(" by each of {} groups", workload.groups);
  return fmt::format(
      "throughput of {}, backend {}: {} requests, prompts of {} tokens ({}{}), outputs of {}, seed {}{}\n\n",
      settings.engine.model_dir.filename().string(), compute.ToText(), workload.requests, workload.prompt.text(),
      settings.own_texts ? "the model's own texts, " : "", shared, workload.output.text(), workload.seed,
      settings.repeat > 1 ? fmt::format(", median of {} rounds", settings.repeat) : "");
}

}  // namespace

Result<int> RunBenchThroughput(Context& context) {
  ASSIGN_OR_RETURN(const Settings settings, ReadSettings(context));
  ASSIGN_OR_RETURN(const Engines engines, MakeEngines(settings));
  ASSIGN_OR_RETURN(const std::vector<Point> points, Measure(context, settings, engines));
  const engine::Compute& compute = engines.of(Drafts::kAsAsked).compute();
  if (context.values.Bool("json")) {
    context.terminal.Write(ReportJson(settings, compute, points));
  } else {
    context.terminal.Write(Heading(settings, compute) + Table(points));
  }
  return kExitOk;
}

}  // namespace galley::app
