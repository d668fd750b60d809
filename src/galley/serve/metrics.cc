// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace galley::serve {
namespace {

enum class Kind { kGauge, kCounter };

struct Sample {
  std::string_view name;  // behind `galley_`; counters end in _total
  std::string_view vllm;  // behind `vllm:`; "" where vLLM has nothing with this meaning
  Kind kind;
  std::string_view help;
  double (*value)(const Gauges& gauges);
};

double Of(std::int64_t value) {
  return static_cast<double>(value);
}

constexpr Sample kSamples[] = {
    {"requests_running", "num_requests_running", Kind::kGauge, "Sequences that run.",
     [](const Gauges& g) { return Of(g.engine.running); }},
    {"requests_waiting", "num_requests_waiting", Kind::kGauge, "Sequences that wait to be admitted.",
     [](const Gauges& g) { return Of(g.engine.waiting); }},
    {"requests_open", "", Kind::kGauge, "Generation requests that have not ended.",
     [](const Gauges& g) { return Of(g.open_requests); }},
    {"kv_usage_ratio", "kv_cache_usage_perc", Kind::kGauge, "Share of history blocks that sequences hold, 0 to 1.",
     [](const Gauges& g) {
       return g.engine.blocks_total == 0 ? 0.0 : Of(g.engine.blocks_active) / Of(g.engine.blocks_total);
     }},
    {"kv_blocks_cached", "", Kind::kGauge, "History blocks that nobody holds and that can be hit.",
     [](const Gauges& g) { return Of(g.engine.blocks_cached); }},
    {"prefix_cache_queries_total", "prefix_cache_queries_total", Kind::kCounter, "Prompt tokens that were looked up.",
     [](const Gauges& g) { return Of(g.engine.scheduler.prompt_tokens); }},
    {"prefix_cache_hits_total", "prefix_cache_hits_total", Kind::kCounter, "Prompt tokens whose history was found.",
     [](const Gauges& g) { return Of(g.engine.scheduler.cached_tokens); }},
    {"replayed_tokens_total", "", Kind::kCounter, "Cached prompt tokens that were run again to rebuild state.",
     [](const Gauges& g) { return Of(g.engine.scheduler.replayed_tokens); }},
    {"preemptions_total", "num_preemptions_total", Kind::kCounter, "Sequences that had to give their place up.",
     [](const Gauges& g) { return Of(g.engine.scheduler.preemptions); }},
    {"resumes_total", "", Kind::kCounter, "Preempted sequences that went on.",
     [](const Gauges& g) { return Of(g.engine.scheduler.resumes); }},
    {"steps_total", "", Kind::kCounter, "Steps of the engine.",
     [](const Gauges& g) { return Of(g.engine.scheduler.steps); }},
    {"steps_failed_total", "", Kind::kCounter, "Steps whose requests ended with an error.",
     [](const Gauges& g) { return Of(g.engine.steps_failed); }},
    {"decode_rows_total", "", Kind::kCounter, "Rows of steps that decoded.",
     [](const Gauges& g) { return Of(g.engine.scheduler.decode_rows); }},
    {"prefill_rows_total", "", Kind::kCounter, "Rows of steps that took in prompts.",
     [](const Gauges& g) { return Of(g.engine.scheduler.prefill_rows); }},
    {"draft_rounds_total", "spec_decode_num_drafts_total", Kind::kCounter, "Steps of a sequence that had drafts.",
     [](const Gauges& g) { return Of(g.engine.speculation.rounds); }},
    {"drafts_proposed_total", "", Kind::kCounter, "Drafts that were proposed.",
     [](const Gauges& g) { return Of(g.engine.speculation.drafted); }},
    {"drafts_verified_total", "spec_decode_num_draft_tokens_total", Kind::kCounter, "Drafts that were verified.",
     [](const Gauges& g) { return Of(g.engine.speculation.verified); }},
    {"drafts_accepted_total", "spec_decode_num_accepted_tokens_total", Kind::kCounter, "Drafts that became tokens.",
     [](const Gauges& g) { return Of(g.engine.speculation.accepted); }},
    {"draft_accepted_mean", "", Kind::kGauge, "Accepted drafts of a round, on average so far.",
     [](const Gauges& g) {
       const engine::SpeculationCounts& counts = g.engine.speculation;
       return counts.rounds == 0 ? 0.0 : Of(counts.accepted) / Of(counts.rounds);
     }},
    {"draft_budget", "", Kind::kGauge, "Drafts that the last step was to verify.",
     [](const Gauges& g) { return Of(g.engine.draft_budget); }},
    {"draft_budget_total", "", Kind::kCounter, "Drafts that steps were to verify.",
     [](const Gauges& g) { return Of(g.engine.draft_budgets); }},
    {"draft_time_saved_seconds", "", Kind::kGauge, "Time that drafts saved, estimated; negative where they cost some.",
     [](const Gauges& g) { return g.engine.draft_saved_s; }},
    {"shared_prefix_waits_total", "", Kind::kCounter, "Requests that waited for another's blocks instead of computing.",
     [](const Gauges& g) { return Of(g.engine.scheduler.shared_waits); }},
    {"draining", "", Kind::kGauge, "1 while the server shuts down.",
     [](const Gauges& g) { return g.draining ? 1.0 : 0.0; }},
};

// Prometheus text of one process: help and type once a family, then its samples.
class Page {
 public:
  explicit Page(std::string_view model) : label_(fmt::format("model_name=\"{}\"", Escaped(model))) {}

  static std::string Escaped(std::string_view text) {
    std::string out;
    for (char c : text) {
      if (c == '\n') {
        out += "\\n";
        continue;
      }
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
    return out;
  }

  void Head(std::string_view name, std::string_view type, std::string_view help) {
    Print("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  void Value(std::string_view name, std::string_view labels, double value) {
    Print("{}{{{}{}{}}} {}\n", name, label_, labels.empty() ? "" : ",", labels, value);
  }

  void Numbers(std::string_view prefix, std::string_view name, std::string_view type, std::string_view help,
               double value) {
    if (name.empty()) return;
    const std::string full = fmt::format("{}{}", prefix, name);
    Head(full, type, help);
    Value(full, "", value);
  }

  void Counts(std::string_view name, std::string_view help, std::string_view label,
              const std::map<std::string, std::int64_t, std::less<>>& counts) {
    Head(name, "counter", help);
    for (const auto& [value, count] : counts)
      Value(name, fmt::format("{}=\"{}\"", label, Escaped(value)), static_cast<double>(count));
  }

  // One series a place, from 0 on, under either name that is not empty.
  void Places(std::string_view name, std::string_view other, std::string_view help,
              std::span<const std::int64_t> counts) {
    for (const std::string_view full : {name, other}) {
      if (full.empty()) continue;
      Head(full, "counter", help);
      for (std::size_t i = 0; i < counts.size(); ++i)
        Value(full, fmt::format("position=\"{}\"", i), static_cast<double>(counts[i]));
    }
  }

  // Under both names.
  void Distribution(std::string_view name, std::string_view help, std::span<const double> bounds,
                    const Histogram& histogram) {
    for (const std::string_view prefix : {"galley_", "vllm:"}) {
      const std::string full = fmt::format("{}{}", prefix, name);
      Head(full, "histogram", help);
      std::int64_t below = 0;
      for (std::size_t i = 0; i < histogram.counts.size(); ++i) {
        below += histogram.counts[i];
        const std::string bound = i < bounds.size() ? fmt::format("{}", bounds[i]) : "+Inf";
        Value(full + "_bucket", fmt::format("le=\"{}\"", bound), static_cast<double>(below));
      }
      Value(full + "_sum", "", histogram.sum);
      Value(full + "_count", "", static_cast<double>(below));
    }
  }

  template <typename... Args>
  void Print(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string label_;
  std::string text_;
};

}  // namespace

void Histogram::Add(std::span<const double> bounds, double value, std::int64_t times) {
  if (!std::isfinite(value)) return;
  const auto at = std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin();
  counts[static_cast<std::size_t>(at)] += times;
  sum += value * static_cast<double>(times);
}

void Metrics::RecordHttp(std::string_view route, int status) {
  std::lock_guard lock(mutex_);
  ++http_[{std::string(route), status}];
}

void Metrics::RecordRefusal(std::string_view why) {
  std::lock_guard lock(mutex_);
  ++refused_[std::string(why)];
}

void Metrics::RecordGap(double gap_s, std::int64_t tokens) {
  if (tokens <= 0) return;
  std::lock_guard lock(mutex_);
  gap_.Add(kSecondsBounds, gap_s / static_cast<double>(tokens), tokens);
}

void Metrics::RecordRequest(const RequestRecord& record) {
  std::lock_guard lock(mutex_);
  ++requests_;
  ++finished_[std::string(record.reason)];
  prompt_tokens_ += record.prompt_tokens;
  generation_tokens_ += record.completion_tokens;
  total_.Add(kSecondsBounds, record.total_s);
  prompt_size_.Add(kTokensBounds, static_cast<double>(record.prompt_tokens));
  answer_size_.Add(kTokensBounds, static_cast<double>(record.completion_tokens));
  if (record.queue_s) queue_.Add(kSecondsBounds, *record.queue_s);
  if (!record.first_token_s) return;
  first_token_.Add(kSecondsBounds, *record.first_token_s);
  if (record.queue_s) prefill_.Add(kSecondsBounds, *record.first_token_s - *record.queue_s);
  const double decode_s = record.total_s - *record.first_token_s;
  decode_.Add(kSecondsBounds, decode_s);
  if (record.completion_tokens > 1)
    per_token_.Add(kSecondsBounds, decode_s / static_cast<double>(record.completion_tokens - 1));
}

double Metrics::mean_request_s() const {
  std::lock_guard lock(mutex_);
  return requests_ == 0 ? 0 : total_.sum / static_cast<double>(requests_);
}

std::string Metrics::Render(const Gauges& gauges) const {
  Page page(model_);
  for (const Sample& sample : kSamples) {
    const std::string_view type = sample.kind == Kind::kGauge ? "gauge" : "counter";
    page.Numbers("galley_", sample.name, type, sample.help, sample.value(gauges));
    page.Numbers("vllm:", sample.vllm, type, sample.help, sample.value(gauges));
  }
  for (const std::string_view name : {"galley_cache_config_info", "vllm:cache_config_info"}) {
    page.Head(name, "gauge", "Size of the cache; always 1.");
    page.Value(
        name,
        fmt::format("block_size=\"{}\",num_gpu_blocks=\"{}\",enable_prefix_caching=\"{}\"", gauges.engine.block_tokens,
                    gauges.engine.blocks_total, gauges.prefix_cache ? "True" : "False"),
        1);
  }
  page.Places("galley_drafts_verified_by_place_total", "", "Drafts that were verified, by place in the draft.",
              gauges.engine.speculation.verified_at);
  page.Places("galley_drafts_accepted_by_place_total", "vllm:spec_decode_num_accepted_tokens_per_pos_total",
              "Drafts that became tokens, by place in the draft.", gauges.engine.speculation.accepted_at);
  std::lock_guard lock(mutex_);
  for (const std::string_view prefix : {"galley_", "vllm:"}) {
    page.Numbers(prefix, "prompt_tokens_total", "counter", "Prompt tokens of requests that ended.",
                 static_cast<double>(prompt_tokens_));
    page.Numbers(prefix, "generation_tokens_total", "counter", "Tokens generated for requests that ended.",
                 static_cast<double>(generation_tokens_));
  }
  page.Counts("galley_requests_finished_total", "Generation requests by how they ended.", "reason", finished_);
  page.Counts("vllm:request_success_total", "Generation requests by how they ended.", "finished_reason", finished_);
  page.Counts("galley_requests_refused_total", "Requests that were refused, by why.", "why", refused_);
  page.Head("galley_http_requests_total", "counter", "HTTP requests by route and status.");
  for (const auto& [key, count] : http_)
    page.Value("galley_http_requests_total",
               fmt::format("route=\"{}\",status=\"{}\"", Page::Escaped(key.first), key.second),
               static_cast<double>(count));
  page.Distribution("time_to_first_token_seconds", "From accepting a request to its first token.", kSecondsBounds,
                    first_token_);
  page.Distribution("inter_token_latency_seconds", "Between tokens of a sequence.", kSecondsBounds, gap_);
  page.Distribution("request_time_per_output_token_seconds", "Time for each token after the first.", kSecondsBounds,
                    per_token_);
  page.Distribution("e2e_request_latency_seconds", "From accepting a request to its end.", kSecondsBounds, total_);
  page.Distribution("request_queue_time_seconds", "From accepting a request to its first step.", kSecondsBounds,
                    queue_);
  page.Distribution("request_prefill_time_seconds", "From the first step to the first token.", kSecondsBounds,
                    prefill_);
  page.Distribution("request_decode_time_seconds", "From the first token to the end.", kSecondsBounds, decode_);
  page.Distribution("request_prompt_tokens", "Prompt tokens of a request.", kTokensBounds, prompt_size_);
  page.Distribution("request_generation_tokens", "Tokens generated for a request.", kTokensBounds, answer_size_);
  return page.Take();
}

}  // namespace galley::serve
