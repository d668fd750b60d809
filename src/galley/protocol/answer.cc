// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/answer.h"

#include <fmt/format.h>

#include <array>

#include "galley/base/rng.h"
#include "galley/protocol/answer_internal.h"
#include "galley/text/utf8.h"

namespace galley::protocol {
namespace internal {
namespace {

Json BytesJson(std::string_view bytes) {
  Json list(Json::Array{});
  for (char c : bytes) list.Push(Json(static_cast<int>(static_cast<unsigned char>(c))));
  return list;
}

Json TokenJson(std::string_view bytes, double logprob) {
  return Json::MakeObject({{"token", TokenText(bytes)}, {"logprob", logprob}, {"bytes", BytesJson(bytes)}});
}

}  // namespace

std::string TokenText(std::string_view bytes) {
  if (text::IsValidUtf8(bytes)) return std::string(bytes);
  std::string escaped;
  for (char c : bytes) escaped += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return escaped;
}

AnswerEvent ErrorEvent(const AnswerFailure& failure) {
  return {"", Json::MakeObject({{"error", Json::MakeObject({{"message", failure.message},
                                                            {"type", failure.type},
                                                            {"param", nullptr},
                                                            {"code", failure.code}})}})};
}

std::optional<Json> LogprobsJson(const std::vector<Logprob>& logprobs, const Inference& inference) {
  if (!inference.logprobs || logprobs.empty()) return std::nullopt;
  const std::size_t wanted = inference.top_logprobs.value_or(0);
  Json list(Json::Array{});
  for (const Logprob& entry : logprobs) {
    Json top(Json::Array{});
    for (std::size_t i = 0; i < entry.top.size() && i < wanted; ++i)
      top.Push(TokenJson(entry.top[i].bytes, entry.top[i].logprob));
    Json token = TokenJson(entry.bytes, entry.logprob);
    token.Set("top_logprobs", std::move(top));
    list.Push(std::move(token));
  }
  return list;
}

}  // namespace internal

std::function<std::string(int, bool)> SeededCallIds(std::uint64_t seed) {
  return [seed](int index, bool no_thinking) {
    constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    std::string id = fmt::format("call_{:02}_{}", index, no_thinking ? "ET_" : "");
    const std::uint64_t key = MixBits(seed + static_cast<std::uint64_t>(index));
    const std::array<std::uint32_t, 2> key_words = {static_cast<std::uint32_t>(key),
                                                    static_cast<std::uint32_t>(key >> 32)};
    for (std::uint32_t i = 0; i < 24; ++i) {
      const std::uint32_t draw = Philox4x32({i, 0, 0, 0}, key_words)[0];
      id += i < 20 ? kAlphabet[draw % kAlphabet.size()] : static_cast<char>('0' + draw % 10);
    }
    return id;
  };
}

Answer::Answer(const ParsedRequest& request, AnswerOptions options)
    : request_(&request), options_(std::move(options)), parser_(ParserOptionsFor(request)) {
  using Maker = std::unique_ptr<AnswerWriter> (*)(const ParsedRequest&, const AnswerOptions&);
  static constexpr std::array<Maker, 4> kMakers = {internal::MakeChatWriter, internal::MakeResponsesWriter,
                                                   internal::MakeMessagesWriter, internal::MakeCompletionsWriter};
  if (!options_.call_id) options_.call_id = SeededCallIds(0);
  writer_ = kMakers[static_cast<std::size_t>(request.protocol)](request, options_);
}

Answer::~Answer() = default;

std::vector<AnswerEvent> Answer::Ready(const ReadyInfo& ready) {
  std::vector<AnswerEvent> out;
  if (started_ || ended_) return out;
  ready_ = ready;
  StartOnce(out);
  return out;
}

std::vector<AnswerEvent> Answer::Push(OutputPiece piece) {
  std::vector<AnswerEvent> out;
  if (ended_) return out;
  StartOnce(out);
  std::vector<OutputEvent> events;
  parser_.Push(std::move(piece), events);
  Write(events, out);
  if (!parser_.done() && options_.calls_max > 0 && calls_ >= options_.calls_max) {
    events.clear();
    parser_.End(std::nullopt, events);  // whatever came behind the last call has no place in the answer
  }
  if (parser_.done()) EndOnce(0, out);
  return out;
}

std::vector<AnswerEvent> Answer::End(std::optional<Finish> finish, std::int64_t uncounted) {
  std::vector<AnswerEvent> out;
  if (ended_) return out;
  StartOnce(out);
  std::vector<OutputEvent> events;
  parser_.End(finish, events);
  Write(events, out);
  EndOnce(uncounted, out);
  return out;
}

std::vector<AnswerEvent> Answer::Fail(const AnswerFailure& failure) {
  std::vector<AnswerEvent> out;
  if (ended_) return out;
  StartOnce(out);
  ended_ = true;
  writer_->Fail(failure, out);
  return out;
}

std::string_view Answer::done_data() const {
  const bool has_done = request_->protocol == Protocol::kChat || request_->protocol == Protocol::kCompletions;
  return has_done ? "[DONE]" : "";
}

void Answer::StartOnce(std::vector<AnswerEvent>& out) {
  if (std::exchange(started_, true)) return;
  writer_->Start(ready_, out);
}

void Answer::Write(std::vector<OutputEvent>& events, std::vector<AnswerEvent>& out) {
  for (const OutputEvent& event : events) {
    if (event.kind == OutputKind::kReasoning) {
      reasoning_ += event.text;
      if (request_->hide_reasoning) continue;
    }
    if (event.kind == OutputKind::kCallStart && options_.calls_max > 0 && ++calls_ > options_.calls_max) return;
    writer_->Event(event, out);
  }
}

void Answer::EndOnce(std::int64_t uncounted, std::vector<AnswerEvent>& out) {
  ended_ = true;
  usage_ = {ready_.prompt_tokens, ready_.cached_tokens, parser_.tokens() + uncounted};
  usage_.accepted_drafts = accepted_drafts_;
  if (request_->conversation.thinking && options_.count_tokens)
    usage_.reasoning_tokens = options_.count_tokens(reasoning_);
  writer_->End(parser_.result(), usage_, out);
}

}  // namespace galley::protocol
