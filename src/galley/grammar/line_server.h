// SPDX-License-Identifier: Apache-2.0
// The line protocol of `galley grammar-serve`: one JSON request, one JSON reply, for measuring and debugging the engine
// from outside. Requests: hello, compile, mask, accept, rollback, reset, state, check, walk, fast_forward, tree, quit.
// One per connection, one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "galley/grammar/compile.h"

namespace galley::grammar {

struct LineServerOptions {
  std::shared_ptr<const Vocabulary> vocabulary;
  std::vector<Marker> markers;            // control tokens that grammars may name
  std::function<std::uint64_t()> now_us;  // monotonic microseconds
  std::string version;
};

class LineServer {
 public:
  explicit LineServer(LineServerOptions options) : options_(std::move(options)) {}

  // The reply to one request, without line end. Never fails: a bad request gets an error reply.
  [[nodiscard]] std::string Handle(std::string_view line);
  // True after `quit`.
  [[nodiscard]] bool done() const { return done_; }

 private:
  using Op = std::string (LineServer::*)(const JsonValue&);
  struct OpRow {
    std::string_view name;
    Op run;
    bool needs_grammar;
  };
  static const OpRow* FindOp(std::string_view name);

  std::string Hello(const JsonValue& request);
  std::string Compile(const JsonValue& request);
  std::string Mask(const JsonValue& request);
  std::string Accept(const JsonValue& request);
  std::string Rollback(const JsonValue& request);
  std::string Reset(const JsonValue& request);
  void Restart();
  std::string State(const JsonValue& request);
  std::string Check(const JsonValue& request);
  std::string Walk(const JsonValue& request);
  std::string FastForward(const JsonValue& request);
  std::string Tree(const JsonValue& request);
  std::string Quit(const JsonValue& request);

  LineServerOptions options_;
  std::unique_ptr<Matcher> matcher_;
  Marker check_marker_;
  bool done_ = false;
};

// The mask as bytes, least significant bit first, (size + 7) / 8 of them.
[[nodiscard]] std::string MaskBytes(std::span<const MaskWord> mask, std::uint32_t vocabulary_size);

}  // namespace galley::grammar
