// SPDX-License-Identifier: Apache-2.0
// An engine without a model, for tests and benchmarks of the service: it says what it is told to, one token a sequence
// and step, on a thread of its own, and counts what is asked of it. Everything may be called from any thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "galley/serve/engine_port.h"

namespace galley::serve {

struct FakeEngineOptions {
  std::int64_t max_seq_len = 8192;
  std::chrono::microseconds step_gap{0};  // pause after each step
  std::int64_t cached_tokens = 0;         // what every request finds in the cache
  // Tokens of a branch. Default: none, so that the answer is empty.
  std::function<std::vector<TokenId>(const engine::EngineRequest& request, int branch)> say{};
  bool drafts = false;  // every token of a branch but the first is an accepted draft
  std::optional<Error> fail_submit{};
  std::optional<Error> fail_after{};  // ends every branch once its tokens are out
};

class FakeEngine : public EnginePort {
 public:
  // `tokenizer` outlives the engine.
  FakeEngine(const text::Tokenizer& tokenizer, FakeEngineOptions options);
  ~FakeEngine() override;

  [[nodiscard]] const text::Tokenizer& tokenizer() const override;
  [[nodiscard]] std::int64_t max_seq_len() const override;
  [[nodiscard]] TokenId eos_id() const override;
  [[nodiscard]] Result<RequestId> Submit(engine::EngineRequest request, engine::EventSink sink) override;
  void Cancel(RequestId request) override;
  [[nodiscard]] engine::EngineStats stats() const override;
  // Takes everything and enforces nothing; compiled() has what was asked for.
  [[nodiscard]] ApiResult<std::shared_ptr<const engine::TokenConstraint>> Compile(
      const ConstraintSpec& spec, std::vector<std::string>& warnings) override;
  void ClearCache() override;

  // While not admitting, requests wait without having started; while not stepping, those that run say nothing.
  void SetAdmitting(bool admitting);
  void SetStepping(bool stepping);

  [[nodiscard]] std::vector<engine::EngineRequest> requests() const;  // as submitted
  [[nodiscard]] int live() const;                                     // requests that have not ended
  [[nodiscard]] int cancels() const;
  [[nodiscard]] int cache_clears() const;
  [[nodiscard]] std::int64_t steps() const;  // in which a sequence got a token or its own end
  [[nodiscard]] std::vector<ConstraintSpec> compiled() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Ids of `text`, in which spellings of control tokens are meant, and the end of the answer.
[[nodiscard]] std::vector<TokenId> Saying(const text::Tokenizer& tokenizer, std::string_view text);

}  // namespace galley::serve
