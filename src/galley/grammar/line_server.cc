// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/line_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "galley/base/base64.h"
#include "galley/grammar/model_vocabulary.h"

namespace galley::grammar {
namespace {

// A little more than Limits::nesting_max, so that the compiler and not the reader refuses a deep schema.
constexpr int kRequestNestingMax = 300;

std::string Bool(bool value) {
  return value ? "true" : "false";
}

std::string ErrorReply(std::uint64_t us, std::string_view code, const std::string& message,
                       const CompileError* error = nullptr) {
  std::string out = fmt::format("{{\"ok\":false,\"us\":{},\"error\":{{\"code\":{},\"message\":{}", us, JsonQuote(code),
                                JsonQuote(message));
  if (error != nullptr) {
    out += ",\"pointer\":" + JsonQuote(error->pointer);
    if (!error->keyword.empty()) out += ",\"keyword\":" + JsonQuote(error->keyword);
    if (error->position) out += fmt::format(",\"position\":{}", *error->position);
  }
  return out + "}}";
}

std::optional<std::vector<std::int64_t>> Integers(const JsonValue* value) {
  if (value == nullptr || !value->is(JsonValue::Type::kArray)) return std::nullopt;
  std::vector<std::int64_t> out;
  for (const JsonValue& item : value->items) {
    const auto number = IntegerOf(&item);
    if (!number) return std::nullopt;
    out.push_back(*number);
  }
  return out;
}

std::uint32_t TokenId(std::int64_t value) {
  return value < 0 || value > 0xFFFFFFFE ? 0xFFFFFFFF : static_cast<std::uint32_t>(value);
}

std::optional<std::string> Unhex(std::string_view hex) {
  std::string out;
  if (hex.size() % 2 != 0) return std::nullopt;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    unsigned byte = 0;
    const auto [at, error] = std::from_chars(hex.data() + i, hex.data() + i + 2, byte, 16);
    if (error != std::errc() || at != hex.data() + i + 2) return std::nullopt;
    out.push_back(static_cast<char>(byte));
  }
  return out;
}

CompileOptions ReadOptions(const JsonValue* value) {
  CompileOptions out;
  if (value == nullptr) return out;
  const auto flag = [&](std::string_view name) {
    const JsonValue* v = value->Find(name);
    return v != nullptr && v->is(JsonValue::Type::kBool) && v->boolean;
  };
  out.any_order = flag("any_order");
  out.lenient = flag("lenient");
  if (const JsonValue* v = value->Find("whitespace")) {
    if (v->text == "compact") out.whitespace = Whitespace::kCompact;
    if (v->text == "flexible") out.whitespace = Whitespace::kFlexible;
  }
  // About fifty elementary steps take a microsecond; steps are what the pure layer can count.
  if (const auto us = IntegerOf(value->Find("budget_us"))) {
    out.limits.steps_max = static_cast<std::uint64_t>(std::max<std::int64_t>(*us, 1)) * 50;
  }
  if (const auto bytes = IntegerOf(value->Find("budget_bytes"))) {
    const auto states = static_cast<std::uint64_t>(std::max<std::int64_t>(*bytes, 1)) / 128;
    out.limits.dfa_states_max = static_cast<std::uint32_t>(std::min<std::uint64_t>(out.limits.dfa_states_max, states));
    out.limits.nfa_states_max = static_cast<std::uint32_t>(std::min<std::uint64_t>(out.limits.nfa_states_max, states));
  }
  return out;
}

}  // namespace

std::string MaskBytes(std::span<const MaskWord> mask, std::uint32_t vocabulary_size) {
  std::string out((vocabulary_size + 7) / 8, '\0');
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<char>((mask[i / 8] >> (8 * (i % 8))) & 0xFF);
  return out;
}

const LineServer::OpRow* LineServer::FindOp(std::string_view name) {
  static constexpr std::array kOps = {
      OpRow{"hello", &LineServer::Hello, false},      OpRow{"compile", &LineServer::Compile, false},
      OpRow{"mask", &LineServer::Mask, true},         OpRow{"accept", &LineServer::Accept, true},
      OpRow{"rollback", &LineServer::Rollback, true}, OpRow{"reset", &LineServer::Reset, true},
      OpRow{"state", &LineServer::State, true},       OpRow{"check", &LineServer::Check, true},
      OpRow{"walk", &LineServer::Walk, true},         OpRow{"fast_forward", &LineServer::FastForward, true},
      OpRow{"tree", &LineServer::Tree, true},         OpRow{"quit", &LineServer::Quit, false},
  };
  for (const OpRow& row : kOps) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

std::string LineServer::Handle(std::string_view line) {
  const auto request = ParseJson(line, kRequestNestingMax);
  if (!request) return ErrorReply(0, "bad_json", request.error().message, &request.error());
  const JsonValue* name = request->Find("op");
  const OpRow* op = name == nullptr ? nullptr : FindOp(name->text);
  if (op == nullptr) return ErrorReply(0, "bad_op", "unknown or missing \"op\"");
  if (op->needs_grammar && matcher_ == nullptr) {
    return ErrorReply(0, "bad_op", std::string(op->name) + " needs a grammar; send compile first");
  }
  std::string reply = (this->*op->run)(*request);
  if (op->needs_grammar && matcher_->failed()) {
    return ErrorReply(0, Label(CompileCode::kTooComplex), matcher_->FailureText());
  }
  return reply;
}

// From the start, also after a text that reached a limit.
void LineServer::Restart() {
  if (matcher_->failed()) matcher_ = std::make_unique<Matcher>(matcher_->grammar());
  matcher_->Reset();
}

std::string LineServer::Hello(const JsonValue&) {
  std::string ends;
  for (const std::uint32_t id : options_.vocabulary->ends()) ends += (ends.empty() ? "" : ",") + std::to_string(id);
  return fmt::format(
      "{{\"ok\":true,\"engine\":\"galley\",\"version\":{},\"protocol\":1,\"vocab_size\":{},\"eos\":[{}]}}",
      JsonQuote(options_.version), options_.vocabulary->size(), ends);
}

std::string LineServer::Compile(const JsonValue& request) {
  const JsonValue* kind = request.Find("kind");
  const JsonValue* spec = request.Find("spec");
  if (kind == nullptr || spec == nullptr) return ErrorReply(0, "bad_op", "compile needs \"kind\" and \"spec\"");
  const std::uint64_t start = options_.now_us();
  std::vector<Marker> markers = options_.markers;
  check_marker_ = {};
  if (kind->text == "dsml" || kind->text == "structural_tag") {
    auto known =
        std::find_if(markers.begin(), markers.end(), [](const Marker& marker) { return marker.text == kDsmlMarker; });
    // A vocabulary without the marker can still check texts: it gets an id that no token has.
    if (known == markers.end()) {
      known = markers.insert(markers.end(), {std::string(kDsmlMarker), options_.vocabulary->size()});
    }
    check_marker_ = *known;
  }
  auto grammar = CompileKind(kind->text, *spec, markers, ReadOptions(request.Find("options")), options_.vocabulary);
  if (!grammar) {
    const CompileError& error = grammar.error();
    return ErrorReply(options_.now_us() - start, Label(error.code), error.message, &error);
  }
  auto matcher = std::make_unique<Matcher>(std::move(*grammar));
  const std::uint64_t us = options_.now_us() - start;
  if (matcher->failed()) return ErrorReply(us, Label(CompileCode::kTooComplex), matcher->FailureText());
  matcher_ = std::move(matcher);
  std::string warnings;
  for (const std::string& text : matcher_->grammar().program->warnings()) {
    warnings += (warnings.empty() ? "" : ",") + JsonQuote(text);
  }
  return fmt::format("{{\"ok\":true,\"us\":{},\"bytes\":{},\"warnings\":[{}]}}", us,
                     matcher_->grammar().program->bytes() + matcher_->bytes(), warnings);
}

std::string LineServer::Mask(const JsonValue&) {
  std::vector<MaskWord> mask(options_.vocabulary->mask_words());
  const std::uint64_t start = options_.now_us();
  matcher_->FillMask(mask);
  const std::uint64_t us = options_.now_us() - start;
  return fmt::format("{{\"ok\":true,\"us\":{},\"count\":{},\"bits\":\"{}\",\"terminated\":{}}}", us, CountTokens(mask),
                     Base64Encode(MaskBytes(mask, options_.vocabulary->size())), Bool(matcher_->terminated()));
}

std::string LineServer::Accept(const JsonValue& request) {
  auto tokens = Integers(request.Find("tokens"));
  if (!tokens) {
    const auto one = IntegerOf(request.Find("token"));
    if (!one) return ErrorReply(0, "bad_op", "accept needs \"token\" or \"tokens\"");
    tokens = std::vector<std::int64_t>{*one};
  }
  const std::uint64_t start = options_.now_us();
  std::size_t accepted = 0;
  while (accepted < tokens->size() && matcher_->Accept(TokenId((*tokens)[accepted]))) ++accepted;
  return fmt::format("{{\"ok\":true,\"accepted\":{},\"us\":{}}}", accepted, options_.now_us() - start);
}

std::string LineServer::Rollback(const JsonValue& request) {
  const auto n = IntegerOf(request.Find("n"));
  if (!n || *n < 0) return ErrorReply(0, "bad_op", "rollback needs \"n\", zero or more");
  const std::uint64_t start = options_.now_us();
  matcher_->Rollback(static_cast<std::size_t>(*n));
  return fmt::format("{{\"ok\":true,\"us\":{}}}", options_.now_us() - start);
}

std::string LineServer::Reset(const JsonValue&) {
  Restart();
  return "{\"ok\":true}";
}

std::string LineServer::State(const JsonValue&) {
  return fmt::format("{{\"ok\":true,\"can_stop\":{},\"terminated\":{},\"tokens\":{}}}", Bool(matcher_->can_stop()),
                     Bool(matcher_->terminated()), matcher_->tokens());
}

std::string LineServer::Check(const JsonValue& request) {
  std::optional<std::string> text;
  if (const JsonValue* plain = request.Find("text")) text = plain->text;
  if (const JsonValue* hex = request.Find("hex")) text = Unhex(hex->text);
  if (!text) return ErrorReply(0, "bad_op", "check needs \"text\" or \"hex\"");
  Restart();
  const Matcher::Judgement judgement = matcher_->Check(*text, check_marker_.text, check_marker_.token);
  return fmt::format("{{\"ok\":true,\"prefix\":{},\"complete\":{},\"bytes_ok\":{}}}", Bool(judgement.prefix),
                     Bool(judgement.complete), judgement.bytes_ok);
}

std::string LineServer::Walk(const JsonValue& request) {
  const auto tokens = Integers(request.Find("tokens"));
  if (!tokens) return ErrorReply(0, "bad_op", "walk needs \"tokens\"");
  Restart();
  std::vector<MaskWord> mask(options_.vocabulary->mask_words());
  std::string mask_us, accept_us;
  std::int64_t rejected_at = -1;
  for (std::size_t i = 0; i < tokens->size(); ++i) {
    const std::uint32_t token = TokenId((*tokens)[i]);
    const std::uint64_t start = options_.now_us();
    matcher_->FillMask(mask);
    const std::uint64_t middle = options_.now_us();
    const bool accepted = matcher_->Accept(token);
    const std::uint64_t end = options_.now_us();
    mask_us += fmt::format("{}{}", mask_us.empty() ? "" : ",", middle - start);
    accept_us += fmt::format("{}{}", accept_us.empty() ? "" : ",", end - middle);
    if (!accepted) {
      rejected_at = static_cast<std::int64_t>(i);
      break;
    }
  }
  return fmt::format("{{\"ok\":true,\"mask_us\":[{}],\"accept_us\":[{}],\"rejected_at\":{},\"can_stop\":{}}}", mask_us,
                     accept_us, rejected_at, Bool(matcher_->can_stop()));
}

std::string LineServer::FastForward(const JsonValue&) {
  const std::string text = matcher_->ForcedText();
  std::string tokens;
  for (const std::uint32_t id : options_.vocabulary->Greedy(text)) {
    tokens += (tokens.empty() ? "" : ",") + std::to_string(id);
  }
  return fmt::format("{{\"ok\":true,\"tokens\":[{}],\"text\":{}}}", tokens, JsonQuote(text));
}

std::string LineServer::Tree(const JsonValue& request) {
  const auto parents = Integers(request.Find("parents"));
  const auto tokens = Integers(request.Find("tokens"));
  if (!parents || !tokens || parents->size() != tokens->size()) {
    return ErrorReply(0, "bad_op", "tree needs \"parents\" and \"tokens\" of one length");
  }
  std::vector<std::int32_t> up;
  std::vector<std::uint32_t> ids;
  for (std::size_t i = 0; i < tokens->size(); ++i) {
    if ((*parents)[i] < -1 || (*parents)[i] >= static_cast<std::int64_t>(i)) {
      return ErrorReply(0, "bad_op", fmt::format("parent of node {} is not before it", i));
    }
    up.push_back(static_cast<std::int32_t>((*parents)[i]));
    ids.push_back(TokenId((*tokens)[i]));
  }
  const std::size_t words = options_.vocabulary->mask_words();
  std::vector<MaskWord> masks(ids.size() * words);
  const std::uint64_t start = options_.now_us();
  const std::vector<bool> valid = matcher_->FillTreeMasks(up, ids, masks);
  const std::uint64_t us = options_.now_us() - start;
  std::string bits, flags;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::string sep = i == 0 ? "" : ",";
    bits += sep + "\"" + Base64Encode(MaskBytes({masks.data() + i * words, words}, options_.vocabulary->size())) + "\"";
    flags += sep + Bool(valid[i]);
  }
  return fmt::format("{{\"ok\":true,\"us\":{},\"bits\":[{}],\"valid\":[{}]}}", us, bits, flags);
}

std::string LineServer::Quit(const JsonValue&) {
  done_ = true;
  return "{\"ok\":true}";
}

}  // namespace galley::grammar
