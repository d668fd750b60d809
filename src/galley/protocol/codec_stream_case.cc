// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "galley/protocol/answer.h"
#include "galley/protocol/codec_case.h"
#include "galley/protocol/shape.h"
#include "galley/protocol/token_feed.h"

namespace galley::protocol::internal {
namespace {

constexpr std::int64_t kFixedTime = 1700000000;  // stands for every time in the vectors

// Feeds the chunks of one case and collects what comes out.
class StreamRun {
 public:
  StreamRun(const ParsedRequest& request, AnswerOptions options, const text::Tokenizer* tokenizer)
      : answer_(request, std::move(options)), named_(request.protocol != Protocol::kChat) {
    if (tokenizer != nullptr) feed_.emplace(*tokenizer, request.parsing.stop_sequences);
  }

  // An error when the chunk cannot be used.
  Status Push(const Json& chunk, std::int64_t index) {
    const std::size_t before = size();
    const bool was_done = answer_.done();
    RETURN_IF_ERROR(Dispatch(chunk));
    per_push_.Push(Json(std::uint64_t{size() - before}));
    if (!was_done && answer_.done()) finished_after_ = Json(index);
    return {};
  }

  void Close() {
    const std::size_t before = size();
    Flush();
    Add(answer_.End(std::nullopt, uncounted()));
    per_push_.Push(Json(std::uint64_t{size() - before}));
  }

  void Report(Json& expect) const {
    expect.Set("events", events_);
    expect.Set("finished_after", finished_after_);
    expect.Set("events_per_push", per_push_);
    expect.Set("done_data", answer_.done_data().empty() ? Json() : Json(answer_.done_data()));
    expect.Set("response", answer_.Response());
  }

 private:
  [[nodiscard]] std::size_t size() const { return events_.if_array()->size(); }
  [[nodiscard]] std::int64_t uncounted() const { return feed_ ? feed_->uncounted() : 0; }

  Status Dispatch(const Json& chunk) {
    if (const Json& ready = Get(chunk, "ready"); ready.is_object()) {
      ReadyInfo info{static_cast<std::int64_t>(Unsigned(Get(ready, "prompt_tokens"))),
                     static_cast<std::int64_t>(Unsigned(Get(ready, "cache_hit")))};
      if (const Json& fingerprint = Get(ready, "fingerprint"); fingerprint.is_string())
        info.fingerprint = std::string(Text(fingerprint));
      Add(answer_.Ready(info));
      return {};
    }
    if (const Json& text = Get(chunk, "text"); text.is_string()) {
      Flush();
      OutputPiece piece{std::string(Text(text))};
      piece.tokens = static_cast<std::int64_t>(Unsigned(Get(chunk, "n")));
      Add(answer_.Push(std::move(piece)));
      return {};
    }
    if (const Json& tokens = Get(chunk, "tokens"); tokens.is_array()) return Tokens(chunk, tokens);
    const std::string_view finish = Text(chunk, "finish");
    Flush();
    Add(answer_.End(finish == "length"           ? Finish::kLength
                    : finish == "content_filter" ? Finish::kContentFilter
                                                 : Finish::kStop,
                    uncounted()));
    return {};
  }

  Status Tokens(const Json& chunk, const Json& tokens) {
    if (!feed_) return Err(ErrorCode::kUnsupported, "chunks of token ids need a tokenizer");
    std::vector<TokenId> ids;
    for (const Json& id : Elements(tokens))
      ids.push_back(static_cast<TokenId>(std::min<std::uint64_t>(Unsigned(id), 1u << 30)));
    std::vector<SampledLogprob> logprobs;
    for (const Json& row : Elements(Get(chunk, "logprobs"))) {
      const std::span<const Json> pair = Elements(row);
      SampledLogprob sampled;
      if (pair.size() == 2 && pair[0].is_number()) sampled.logprob = pair[0].AsDouble();
      for (const Json& top : pair.size() == 2 ? Elements(pair[1]) : std::span<const Json>()) {
        const std::span<const Json> entry = Elements(top);
        if (entry.size() == 2 && entry[1].is_number())
          sampled.top.emplace_back(static_cast<TokenId>(Unsigned(entry[0])), entry[1].AsDouble());
      }
      logprobs.push_back(std::move(sampled));
    }
    ASSIGN_OR_RETURN(std::vector<OutputPiece> pieces, feed_->Push(ids, std::move(logprobs)));
    AddPieces(std::move(pieces));
    if (feed_->ended()) Add(answer_.End(Finish::kStop, uncounted()));
    return {};
  }

  void Flush() {
    if (feed_ && !answer_.done()) AddPieces(feed_->Flush());
  }
  void AddPieces(std::vector<OutputPiece> pieces) {
    for (OutputPiece& piece : pieces) Add(answer_.Push(std::move(piece)));
  }
  void Add(std::vector<AnswerEvent> events) {
    for (AnswerEvent& event : events) {
      if (named_)
        events_.Push(Json(Json::Array{Json(event.name), std::move(event.data)}));
      else
        events_.Push(std::move(event.data));
    }
  }

  Answer answer_;
  std::optional<TokenFeed> feed_;
  bool named_;
  Json events_ = Json(Json::Array{});
  Json per_push_ = Json(Json::Array{});
  Json finished_after_;
};

}  // namespace

Json RunStreamCase(const Json& row, const CodecServeOptions& options) {
  const CodecOptions codec = OptionsOfCase(row);
  const Parsed<ParsedRequest> request = ParseRequest(ProtocolOfCase(row), BodyOfCase(row), codec);
  if (!request) return Json::MakeObject({{"expect", ErrorJson(request.error())}});
  AnswerOptions answer;
  answer.id = Text(row, "response_id");
  answer.model = Text(row, "response_model");
  answer.created_s = kFixedTime;
  answer.call_id = [](int index, bool no_thinking) {
    return fmt::format("call_{:02}_{}*", index, no_thinking ? "ET_" : "");
  };
  answer.signature = Text(row, "signature");
  if (const text::Tokenizer* tokenizer = options.tokenizer) {
    answer.count_tokens = [tokenizer](std::string_view text) {
      const auto ids = tokenizer->Encode(text, text::AddedTokens::kMatch);
      return ids ? static_cast<std::int64_t>(ids->size()) : 0;
    };
  }
  StreamRun run(*request, std::move(answer), options.tokenizer);
  Json expect = Json::MakeObject(
      {{"ok", true}, {"model_version", Name(request->version)}, {"parsing", ParsingJson(request->parsing)}});
  const std::span<const Json> chunks = Elements(Get(row, "chunks"));
  Status status;
  std::int64_t index = 0;
  for (; index < std::ssize(chunks) && status; ++index)
    status = run.Push(chunks[static_cast<std::size_t>(index)], index);
  if (status) {
    run.Close();
  } else {
    expect.Set("ok", false)
        .Set("error", Json::MakeObject({{"type", Info(status.error().code).label},
                                        {"message", status.error().message},
                                        {"at_chunk", index - 1}}));
  }
  run.Report(expect);
  return Json::MakeObject({{"expect", std::move(expect)}});
}

}  // namespace galley::protocol::internal
