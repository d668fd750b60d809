// SPDX-License-Identifier: Apache-2.0
// How far the loading of a model's weights has got: counted, and shown to the person at the terminal. Values of one
// thread. Seconds and bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "galley/io/weight_file.h"
#include "galley/protocol/json.h"
#include "terminal.h"

namespace galley::app {

struct LoadState {
  std::uint64_t done = 0, total = 0;
  double seconds = 0;  // since the first bytes were asked for

  [[nodiscard]] double bytes_per_second() const { return seconds > 0 ? static_cast<double>(done) / seconds : 0; }
  [[nodiscard]] std::optional<double> seconds_left() const;  // nothing while there is no rate
};
// "loading weights: 12.3 of 340.2 GB (3 %), 6.83 GB/s, 48 s left"
[[nodiscard]] std::string ToLine(const LoadState& state);
// Members bytes, bytes_total, bytes_per_second and seconds_left, which may be null; `head` comes before them.
[[nodiscard]] protocol::Json ToJson(const LoadState& state, protocol::Json head);

// Pure but for the time that it is given.
class LoadMeter {
 public:
  // A state to show now: none in the first second of loading, and one a second behind that.
  [[nodiscard]] std::optional<LoadState> Note(std::uint64_t done, std::uint64_t total, double now);
  [[nodiscard]] const LoadState& state() const { return state_; }

 private:
  LoadState state_;
  std::optional<double> begin_;
  double shown_ = 0;
};

// Of a clock that never goes back.
[[nodiscard]] double SecondsNow();

// A progress line on a terminal, for EngineOptions::on_load. Keeps `terminal`.
[[nodiscard]] io::Progress ShowLoading(Terminal& terminal);

}  // namespace galley::app
