// SPDX-License-Identifier: Apache-2.0
// One answer of the model: runs the generator, splits what it says into reasoning and answer, and hands the text on as
// it becomes certain. Shared by `generate` and `chat`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "command.h"
#include "galley/base/error.h"
#include "galley/base/options.h"
#include "galley/engine/generator.h"
#include "galley/engine/output_stream.h"
#include "galley/engine/stop_strings.h"

namespace galley::app {

// What the options say about generation, checked.
struct AnswerSettings {
  engine::SamplingParams sampling;
  bool seed_given = false;  // otherwise sampling.seed was drawn
  int max_tokens = 0;
  engine::StopSet stops;
};
[[nodiscard]] Result<AnswerSettings> ReadAnswerSettings(const options::Values& values);
[[nodiscard]] std::uint64_t DrawSeed();

[[nodiscard]] Result<engine::GeneratorOptions> ReadGeneratorOptions(Context& context,
                                                                    const std::filesystem::path& model_dir);

enum class Part { kReasoning, kAnswer };

// Splits generated tokens at the end-of-thinking token. That counts by its id only: an answer that spells it says
// nothing but text. Stop strings apply to the answer, not to the reasoning.
class AnswerStream {
 public:
  struct Piece {
    Part part;
    std::string text;
  };

  AnswerStream(const text::Tokenizer& tokenizer, const engine::StopSet& stops, bool thinking);
  AnswerStream(const AnswerStream&) = delete;  // reasoning_ refers to no_stops_
  AnswerStream& operator=(const AnswerStream&) = delete;

  // Text that became certain, possibly empty. Ids without a token say nothing.
  [[nodiscard]] Piece Append(TokenId id);
  [[nodiscard]] Piece Finish();
  [[nodiscard]] std::optional<std::size_t> stopped() const { return answer_.stopped(); }

 private:
  const text::Tokenizer* tokenizer_;
  std::optional<TokenId> think_end_;
  Part part_;
  engine::StopSet no_stops_;
  engine::OutputStream reasoning_;
  engine::OutputStream answer_;
};

struct AnswerRequest {
  std::vector<TokenId> prompt_ids;
  std::shared_ptr<const engine::TokenConstraint> constraint = {};
  bool thinking = false;  // the prompt ends inside the reasoning
  std::function<void(Part part, std::string_view text)> on_text;
  std::function<void(std::int64_t done, std::int64_t total)> on_prefill;
  std::function<bool()> cancelled;
};

struct Answer {
  std::string reasoning;
  std::string text;
  std::optional<std::size_t> stop_index;  // the stop string that ended it
  engine::GenerateResult result;
};

[[nodiscard]] Result<Answer> GenerateAnswer(engine::Generator& generator, const AnswerSettings& settings,
                                            const AnswerRequest& request);

// "stop", "length" or "cancelled".
[[nodiscard]] std::string_view Name(engine::FinishReason reason);

// "prompt: 814 tokens in 1.25 s (651.2/s); answer: 42 tokens in 0.50 s (84.0/s)".
[[nodiscard]] std::string TimingsLine(std::size_t prompt_tokens, const engine::GenerateResult& result);

// Writes an answer to the terminal: reasoning dimmed on one that can, between <think> and </think> elsewhere.
class AnswerPrinter {
 public:
  AnswerPrinter(Terminal& terminal, const options::Environment& environment);
  void Print(Part part, std::string_view text);
  // Ends the answer with a newline and returns the terminal to its usual face.
  void End();

 private:
  void LeaveReasoning();

  Terminal* terminal_;
  bool dim_;
  bool in_reasoning_ = false;
  bool line_open_ = false;  // the last byte written was no newline
};

// Progress of a prompt that takes more than one step.
[[nodiscard]] std::function<void(std::int64_t done, std::int64_t total)> PrefillProgress(Terminal& terminal,
                                                                                         std::int64_t chunk);

}  // namespace galley::app
