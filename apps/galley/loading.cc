// SPDX-License-Identifier: Apache-2.0
#include "loading.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <utility>

namespace galley::app {
namespace {

using protocol::Json;

double Giga(std::uint64_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

}  // namespace

double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::optional<double> LoadState::seconds_left() const {
  if (bytes_per_second() <= 0) return std::nullopt;
  return static_cast<double>(total - done) / bytes_per_second();
}

std::string ToLine(const LoadState& state) {
  std::string line = fmt::format("loading weights: {:.1f} of {:.1f} GB ({:.0f} %)", Giga(state.done), Giga(state.total),
                                 std::floor(100 * Giga(state.done) / Giga(state.total)));
  if (const std::optional<double> left = state.seconds_left())
    line += fmt::format(", {:.2f} GB/s, {:.0f} s left", state.bytes_per_second() / 1e9, std::ceil(*left));
  return line;
}

Json ToJson(const LoadState& state, Json head) {
  const std::optional<double> left = state.seconds_left();
  head.Set("bytes", static_cast<std::int64_t>(state.done)).Set("bytes_total", static_cast<std::int64_t>(state.total));
  head.Set("bytes_per_second", std::round(state.bytes_per_second()));
  head.Set("seconds_left", left ? Json(std::ceil(*left)) : Json());
  return head;
}

std::optional<LoadState> LoadMeter::Note(std::uint64_t done, std::uint64_t total, double now) {
  constexpr double kPause = 1;
  if (total == 0) return std::nullopt;  // weights are not read yet
  if (!begin_) begin_ = shown_ = now;
  state_ = {.done = done, .total = total, .seconds = now - *begin_};
  if (now - shown_ < kPause) return std::nullopt;
  shown_ = now;
  return state_;
}

io::Progress ShowLoading(Terminal& terminal) {
  return [meter = LoadMeter(), &terminal](std::uint64_t done, std::uint64_t total) mutable {
    if (const std::optional<LoadState> state = meter.Note(done, total, SecondsNow())) terminal.Progress(ToLine(*state));
    if (done == total) terminal.Progress("");
    return true;
  };
}

}  // namespace galley::app
