// SPDX-License-Identifier: Apache-2.0
// What the server itself costs, without a model, once for HTTP alone and once for the Chat Completions API over an
// engine that says what it is told to:
//   streams  processor time for each token at 256 streams that all get one token a step; limit 20 µs
//   idle     memory of 1,000 event streams in which nothing happens; limit 64 MB
//   prompt   time from accepting a connection to handing over its request of 1 MB to the handler or, read, rendered and
//            tokenized, to the engine; limit 50 ms
// The clients are another process. Times on a busy machine are worth less than the processor time, which is why that is
// what counts for the streams. Without a tokenizer it takes that of the embedded model.
//   build/release/bench/serve_bench [--streams 256] [--tokens 200] [--idle 1000] [--io-threads 1] [TOKENIZER_JSON]
#include <sys/resource.h>

#include <CLI/CLI.hpp>

#include "serve_bench.h"

int main(int argc, char** argv) {
  galley::bench::Settings settings;
  CLI::App app("What the server costs without a model");
  app.add_option("--streams", settings.streams, "Streams at once")->check(CLI::Range(1, 8000));
  app.add_option("--tokens", settings.tokens, "Tokens of each stream")->check(CLI::Range(1, 1'000'000));
  app.add_option("--idle", settings.idle, "Idle streams")->check(CLI::Range(1, 8000));
  app.add_option("--io-threads", settings.io_threads, "I/O threads of the server")->check(CLI::Range(1, 64));
  app.add_option("TOKENIZER_JSON", settings.tokenizer, "Tokenizer of the prompts and answers");
  CLI11_PARSE(app, argc, argv);
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  bool good = galley::bench::HttpCosts(settings);
  good = galley::bench::ApiCosts(settings) && good;
  return good ? 0 : 1;
}
