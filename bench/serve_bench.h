// SPDX-License-Identifier: Apache-2.0
// What the parts of serve_bench share. Processor time and memory are of the whole process, the server's.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "galley/net/http_server.h"

namespace galley::bench {

using Clock = std::chrono::steady_clock;

struct Settings {
  int streams = 256;
  int tokens = 200;
  int idle = 1000;
  int io_threads = 1;
  std::string tokenizer = GALLEY_SOURCE_DIR "/models/nano/tokenizer.json";
};

[[nodiscard]] double ProcessSeconds();
[[nodiscard]] double SecondsSince(Clock::time_point begin);
[[nodiscard]] std::int64_t ResidentBytes();
[[nodiscard]] std::unique_ptr<net::HttpServer> Serve(net::Handler handler, const Settings& settings);

// Each prints its lines; false: a limit was missed or a client failed.
[[nodiscard]] bool HttpCosts(const Settings& settings);
[[nodiscard]] bool ApiCosts(const Settings& settings);

}  // namespace galley::bench
