// SPDX-License-Identifier: Apache-2.0
// Counts and times of the service, and their Prometheus text: each series under `galley_…` and, where vLLM has one with
// the same meaning, under its `vllm:…` name too. Any thread may record; a scrape takes the same lock for microseconds.
// Times are seconds of one monotonic clock.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "galley/engine/engine.h"

namespace galley::serve {

inline constexpr std::array kSecondsBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,  0.25, 0.5,
                                              1.0,   2.5,    5.0,   10.0, 25.0,  50.0, 100., 250., 1000.};
inline constexpr std::array kTokensBounds = {1.,    2.,    5.,    10., 20., 50., 100., 200., 500.,
                                             1000., 2000., 5000., 1e4, 2e4, 5e4, 1e5,  2e5,  1e6};

// Counts of values up to each bound; the last one counts those above all bounds.
struct Histogram {
  std::array<std::int64_t, kSecondsBounds.size() + 1> counts{};
  double sum = 0;

  void Add(std::span<const double> bounds, double value, std::int64_t times = 1);
};

// What a generation request came to.
struct RequestRecord {
  std::string_view reason = "stop";  // stop, length, tool_calls, abort, error
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::optional<double> queue_s{};        // accepted → first rows planned
  std::optional<double> first_token_s{};  // accepted → first token
  double total_s = 0;                     // accepted → end
};

// What is true at the moment of a scrape.
struct Gauges {
  engine::EngineStats engine;
  std::int64_t open_requests = 0;  // generation requests that have not ended
  std::int64_t max_seq_len = 0;
  bool prefix_cache = true;  // unless a request says otherwise
  bool draining = false;
};

class Metrics {
 public:
  explicit Metrics(std::string model) : model_(std::move(model)) {}

  void RecordHttp(std::string_view route, int status);
  void RecordRequest(const RequestRecord& record);
  // `gap_s` between what reached the client and what came before, which stands for `tokens` tokens.
  void RecordGap(double gap_s, std::int64_t tokens);
  void RecordRefusal(std::string_view why);

  [[nodiscard]] std::string Render(const Gauges& gauges) const;
  // Mean time of a request, for the advice when to come back; 0 before the first.
  [[nodiscard]] double mean_request_s() const;

 private:
  std::string model_;
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::int64_t> http_;
  std::map<std::string, std::int64_t, std::less<>> finished_;
  std::map<std::string, std::int64_t, std::less<>> refused_;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t generation_tokens_ = 0;
  std::int64_t requests_ = 0;
  Histogram first_token_, gap_, total_, queue_, prefill_, decode_, per_token_, prompt_size_, answer_size_;
};

}  // namespace galley::serve
