// SPDX-License-Identifier: Apache-2.0
#include "answer.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>
#include <utility>

#include "files.h"
#include "galley/protocol/render.h"
#include "galley/text/utf8.h"
#include "loading.h"

namespace galley::app {
namespace {

double PerSecond(std::size_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

// Whether the terminal understands attributes and its owner wants them (https://no-color.org).
bool WantsAttributes(const Terminal& terminal, const options::Environment& environment) {
  const auto value = [&](std::string_view name) {
    const auto found = environment.find(name);
    return found == environment.end() ? std::string() : found->second;
  };
  return terminal.out_is_tty() && value("NO_COLOR").empty() && value("TERM") != "dumb";
}

}  // namespace

std::uint64_t DrawSeed() {
  // Within what --seed accepts, so that a reported seed can be given back.
  std::random_device device;
  const std::uint64_t high = device(), low = device();
  return (high << 32 | low) >> 1;
}

Result<AnswerSettings> ReadAnswerSettings(const options::Values& values) {
  RETURN_IF_ERROR(text::ValidateUtf8(values.String("system"), "system"));
  AnswerSettings settings;
  settings.sampling.temperature = values.Float("temperature");
  settings.sampling.top_p = values.Float("top-p");
  settings.sampling.top_k = static_cast<int>(values.Int("top-k"));
  settings.sampling.min_p = values.Float("min-p");
  settings.seed_given = values.Has("seed");
  settings.sampling.seed = settings.seed_given ? static_cast<std::uint64_t>(values.Int("seed")) : DrawSeed();
  settings.max_tokens = static_cast<int>(values.Int("max-tokens"));
  ASSIGN_OR_RETURN(settings.stops, engine::StopSet::Create(values.List("stop")));
  return settings;
}

Result<engine::GeneratorOptions> ReadGeneratorOptions(Context& context, const std::filesystem::path& model_dir) {
  const options::Values& values = context.values;
  engine::GeneratorOptions options;
  ASSIGN_OR_RETURN(options.speculation, ReadSpeculation(values));
  options.model_dir = model_dir;
  options.prefill_chunk = static_cast<int>(values.Int("prefill-chunk"));
  options.max_seq_len = values.Int("max-seq-len");
  options.device = ReadDevice(context);
  options.on_load = ShowLoading(context.terminal);
  if (values.String("decoder-truncation") == "compact")
    options.decoder_keep = static_cast<int>(values.Int("decoder-keep"));
  return options;
}

AnswerStream::AnswerStream(const text::Tokenizer& tokenizer, const engine::StopSet& stops, bool thinking)
    : tokenizer_(&tokenizer),
      think_end_(tokenizer.AddedIdOf(protocol::SpecialTokens{}.think_end)),
      part_(thinking ? Part::kReasoning : Part::kAnswer),
      reasoning_(tokenizer, no_stops_),
      answer_(tokenizer, stops) {}

AnswerStream::Piece AnswerStream::Append(TokenId id) {
  const Part part = part_;
  if (part == Part::kReasoning && id == think_end_) {
    part_ = Part::kAnswer;
    return {part, reasoning_.Finish()};
  }
  if (!tokenizer_->has_token(id)) return {part, {}};
  Result<std::string> text = part == Part::kReasoning ? reasoning_.Append(id) : answer_.Append(id);
  return {part, text ? std::move(*text) : std::string()};
}

AnswerStream::Piece AnswerStream::Finish() {
  return {part_, part_ == Part::kReasoning ? reasoning_.Finish() : answer_.Finish()};
}

Result<Answer> GenerateAnswer(engine::Generator& generator, const AnswerSettings& settings,
                              const AnswerRequest& request) {
  Answer answer;
  AnswerStream stream(generator.tokenizer(), settings.stops, request.thinking);
  const auto take = [&](const AnswerStream::Piece& piece) {
    if (piece.text.empty()) return;
    (piece.part == Part::kReasoning ? answer.reasoning : answer.text) += piece.text;
    if (request.on_text) request.on_text(piece.part, piece.text);
  };

  engine::GenerateRequest generate;
  generate.prompt_ids = request.prompt_ids;
  generate.sampling = settings.sampling;
  generate.max_tokens = settings.max_tokens;
  generate.stop_ids = {generator.config().eos_token_id};
  generate.constraint = request.constraint;
  generate.on_prefill = request.on_prefill;
  generate.cancelled = request.cancelled;
  generate.on_token = [&](const engine::GeneratedToken& token) {
    const std::vector<TokenId>& stop_ids = generate.stop_ids;
    const bool ends = std::find(stop_ids.begin(), stop_ids.end(), token.id) != stop_ids.end();
    if (!ends) take(stream.Append(token.id));
    return !stream.stopped();
  };
  ASSIGN_OR_RETURN(answer.result, generator.Generate(generate));
  take(stream.Finish());
  answer.stop_index = stream.stopped();
  return answer;
}

std::string_view Name(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kStop:
      return "stop";
    case engine::FinishReason::kLength:
      return "length";
    case engine::FinishReason::kCancelled:
      return "cancelled";
  }
  return "";
}

std::string TimingsLine(std::size_t prompt_tokens, const engine::GenerateResult& result) {
  const std::size_t tokens = result.tokens.size();
  const engine::Timings& timings = result.timings;
  return fmt::format("prompt: {} tokens in {:.2f} s ({:.1f}/s); answer: {} tokens in {:.2f} s ({:.1f}/s)",
                     prompt_tokens, timings.prefill_s, PerSecond(prompt_tokens, timings.prefill_s), tokens,
                     timings.decode_s, PerSecond(tokens, timings.decode_s));
}

AnswerPrinter::AnswerPrinter(Terminal& terminal, const options::Environment& environment)
    : terminal_(&terminal), dim_(WantsAttributes(terminal, environment)) {}

void AnswerPrinter::Print(Part part, std::string_view text) {
  if (text.empty()) return;
  terminal_->Progress("");
  if (part == Part::kReasoning && !in_reasoning_) terminal_->Write(dim_ ? "\033[2m" : "<think>\n");
  if (part == Part::kAnswer) LeaveReasoning();
  in_reasoning_ = part == Part::kReasoning;
  terminal_->WriteForeign(text);
  line_open_ = !text.ends_with('\n');
}

void AnswerPrinter::LeaveReasoning() {
  if (!in_reasoning_) return;
  if (line_open_) terminal_->Write("\n");
  terminal_->Write(dim_ ? "\033[0m" : "</think>\n");
  in_reasoning_ = false;
  line_open_ = false;
}

void AnswerPrinter::End() {
  terminal_->Progress("");
  LeaveReasoning();
  if (line_open_) terminal_->Write("\n");
  line_open_ = false;
}

std::function<void(std::int64_t, std::int64_t)> PrefillProgress(Terminal& terminal, std::int64_t chunk) {
  return [&terminal, chunk](std::int64_t done, std::int64_t total) {
    constexpr std::int64_t kBarWidth = 30;
    if (total <= chunk) return;
    if (done >= total) return terminal.Progress("");
    const auto filled = static_cast<std::size_t>(done * kBarWidth / total);
    terminal.Progress(fmt::format("prompt [{}{}] {}/{} tokens", std::string(filled, '#'),
                                  std::string(static_cast<std::size_t>(kBarWidth) - filled, '.'), done, total));
  };
}

}  // namespace galley::app
