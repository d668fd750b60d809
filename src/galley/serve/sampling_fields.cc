// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/sampling_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "galley/protocol/shape.h"

namespace galley::serve {
namespace {

using protocol::Json;
using protocol::Protocol;

constexpr unsigned Bit(Protocol protocol) {
  return 1u << static_cast<unsigned>(protocol);
}
constexpr unsigned kChat = Bit(Protocol::kChat), kCompletions = Bit(Protocol::kCompletions),
                   kResponses = Bit(Protocol::kResponses), kMessages = Bit(Protocol::kMessages);
constexpr unsigned kAll = kChat | kCompletions | kResponses | kMessages;

using enum NumberMember::Most;

// The codec holds limits of tokens in 32 bits.
constexpr double kTokensMax = 0xFFFFFFFF;

constexpr NumberMember kNumbers[] = {
    {kAll,
     {.name = "frequency_penalty", .low = -2, .high = 2},
     [](SamplingFields& f, double v) { f.rules.frequency_penalty = v; }},
    {kAll,
     {.name = "presence_penalty", .low = -2, .high = 2},
     [](SamplingFields& f, double v) { f.rules.presence_penalty = v; }},
    {kAll, kRepetitionRange, [](SamplingFields& f, double v) { f.rules.repetition_penalty = v; }},
    {kAll, kTopKRange, [](SamplingFields& f, double v) { f.top_k = TopKOf(v); }},
    {kAll, kMinPRange, [](SamplingFields& f, double v) { f.min_p = v; }},
    {kAll,
     {.name = "min_tokens", .low = 0, .high = 0, .whole = true},
     [](SamplingFields& f, double v) { f.min_tokens = static_cast<int>(v); },
     kContext},
    {kAll,
     {.name = "priority", .low = -1e6, .high = 1e6, .whole = true},
     [](SamplingFields& f, double v) { f.priority = static_cast<int>(v); }},
    {kAll,
     {.name = "prompt_logprobs", .low = 0, .high = 20, .whole = true},
     [](SamplingFields& f, double v) { f.prompt_logprobs = static_cast<int>(v); }},
    {kAll,
     {.name = "n", .low = 1, .high = 0, .whole = true},
     [](SamplingFields& f, double v) { f.n = static_cast<int>(v); },
     kChoices},
    {kAll, kTemperatureRange, nullptr},
    {kAll, kTopPRange, nullptr},
    {kChat, {.name = "max_tokens", .low = 1, .high = 0, .whole = true}, nullptr, kContext},
    {kChat, {.name = "max_completion_tokens", .low = 1, .high = 0, .whole = true}, nullptr, kContext},
    // 0 is the codec's affair: it means something beside `echo`.
    {kCompletions, {.name = "max_tokens", .low = 0, .high = 0, .whole = true}, nullptr, kContext},
    {kResponses, {.name = "max_output_tokens", .low = 1, .high = 0, .whole = true}, nullptr, kContext},
    // Clients of Messages send one limit to models of every size, so what is too much is lowered.
    {kMessages, {.name = "max_tokens", .low = 1, .high = kTokensMax, .whole = true}, nullptr},
    {kChat | kResponses, {.name = "top_logprobs", .low = 0, .high = 20, .whole = true}, nullptr},
    {kCompletions, {.name = "logprobs", .low = 0, .high = 20, .whole = true}, nullptr},
};

struct SwitchRule {
  std::string_view name;
  void (*set)(SamplingFields& fields, bool value);
};

constexpr SwitchRule kSwitches[] = {
    {"ignore_eos", [](SamplingFields& f, bool v) { f.ignore_eos = v; }},
    {"timings", [](SamplingFields& f, bool v) { f.timings = v; }},
    {"use_cache", [](SamplingFields& f, bool v) { f.use_cache = v; }},
    {"parallel_tool_calls", [](SamplingFields& f, bool v) { f.parallel_calls = v; }},
    {"include_stop_str_in_output", [](SamplingFields& f, bool v) { f.keep_stop = v; }},
    {"no_stop_trim", [](SamplingFields& f, bool v) { f.keep_stop = f.keep_stop || v; }},
    {"include_reasoning", [](SamplingFields& f, bool v) { f.reasoning = v; }},
};

struct TextsRule {
  unsigned apis;
  std::string_view name;
  std::size_t most;
  std::size_t bytes_max;                                       // of each; 0: no limit
  bool alone;                                                  // one text may come without a list
  void (*add)(SamplingFields& fields, std::string_view text);  // null: the codec reads it
};

constexpr std::size_t kStopsMax = 16;  // the codec's
constexpr TextsRule kTexts[] = {
    {kChat | kCompletions, "stop", kStopsMax, 0, true, nullptr},
    {kMessages, "stop_sequences", kStopsMax, 0, false, nullptr},
    {kAll, "bad_words", engine::kStopStringsMax, engine::kStopStringBytesMax, false,
     [](SamplingFields& f, std::string_view text) { f.banned_words.emplace_back(text); }},
};

// A value as an error shows it: lists and objects may be as large as bodies.
std::string ValueText(const Json& value) {
  if (value.is_array()) return "[…]";
  if (value.is_object()) return "{…}";
  return Shown(DumpJson(value));
}

// `place` is what stands behind the name: "[3]" for an element of a list.
ApiError Invalid(std::string_view name, std::string_view place, std::string_view value, std::string_view wanted) {
  return {.status = 400,
          .message = fmt::format("Invalid {}{} value {}: it must be {}", name, place, value, wanted),
          .param = std::string(name)};
}
ApiError Invalid(std::string_view name, const Json& value, std::string_view wanted) {
  return Invalid(name, "", ValueText(value), wanted);
}

// In the words of DeepSeek's service, and with the value.
ApiError OutOfRange(std::string_view place, const Json& value, const NumberRange& range) {
  return {.status = 400,
          .message = fmt::format("Invalid {0}{1} value, the valid range of {0}{1} is {2}: {3} was given", range.name,
                                 place, range.Text(), ValueText(value)),
          .param = std::string(range.name)};
}

ApiResult<void> ReadNumbers(unsigned api, const Json& body, const FieldLimits& limits, SamplingFields& fields) {
  for (const NumberMember& member : kNumbers) {
    const Json& given = protocol::Get(body, member.range.name);
    if ((member.apis & api) == 0 || given.is_null()) continue;
    const NumberRange range = RangeOf(member, limits);
    const std::optional<double> value = range.Read(given);
    if (!value) return Refuse(OutOfRange("", given, range));
    if (member.set != nullptr) member.set(fields, *value);
  }
  return {};
}

ApiResult<void> ReadSwitches(const Json& body, SamplingFields& fields) {
  for (const SwitchRule& rule : kSwitches) {
    const Json& member = protocol::Get(body, rule.name);
    if (member.is_null()) continue;
    if (!member.is_bool()) return Refuse(Invalid(rule.name, member, "true or false"));
    rule.set(fields, *member.if_bool());
  }
  return {};
}

ApiResult<void> ReadTexts(const TextsRule& rule, const Json& given, SamplingFields& fields) {
  const std::string wanted = fmt::format("{}a list of up to {} texts", rule.alone ? "a text or " : "", rule.most);
  if (given.is_null()) return {};
  if (!given.is_array() && !(rule.alone && given.is_string())) return Refuse(Invalid(rule.name, given, wanted));
  const std::span<const Json> texts = given.is_array() ? protocol::Elements(given) : std::span(&given, 1);
  if (texts.size() > rule.most)
    return Refuse(Invalid(rule.name, "", fmt::format("of {} elements", texts.size()), wanted));
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string_view text = protocol::Text(texts[i]);
    const std::string place = given.is_array() ? fmt::format("[{}]", i) : std::string();
    if (text.empty()) return Refuse(Invalid(rule.name, place, ValueText(texts[i]), "a text that is not empty"));
    if (rule.bytes_max > 0 && text.size() > rule.bytes_max)
      return Refuse(Invalid(rule.name, place, fmt::format("of {} bytes", text.size()),
                            fmt::format("a text of up to {} bytes", rule.bytes_max)));
    if (rule.add != nullptr) rule.add(fields, text);
  }
  return {};
}

ApiResult<std::vector<TokenId>> ReadIds(const Json& body, std::string_view name, std::int64_t most, int vocab_size) {
  std::vector<TokenId> ids;
  const Json& member = protocol::Get(body, name);
  if (member.is_null()) return ids;
  const std::string wanted = fmt::format("a list of up to {} token ids", most);
  const NumberRange range{.name = name, .low = 0, .high = vocab_size - 1.0, .whole = true};
  if (!member.is_array()) return Refuse(Invalid(name, member, wanted));
  const std::span<const Json> given = protocol::Elements(member);
  if (std::ssize(given) > most) return Refuse(Invalid(name, "", fmt::format("of {} elements", given.size()), wanted));
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::optional<double> value = range.Read(given[i]);
    if (!value) return Refuse(OutOfRange(fmt::format("[{}]", i), given[i], range));
    ids.push_back(static_cast<TokenId>(*value));
  }
  return ids;
}

// {"id": bias}, the ids being strings as JSON keys are.
ApiResult<void> ReadBias(const Json& body, int vocab_size, SamplingFields& fields) {
  constexpr NumberRange kRange{.name = "logit_bias", .low = -100, .high = 100};
  const Json& member = protocol::Get(body, kRange.name);
  if (member.is_null()) return {};
  if (!member.is_object()) return Refuse(Invalid(kRange.name, member, "an object of token ids and numbers"));
  for (const Json::Member& entry : *member.if_object()) {
    TokenId id = -1;
    const char* end = entry.key.data() + entry.key.size();
    const auto [stop, code] = std::from_chars(entry.key.data(), end, id);
    // "05" would be a second spelling of "5".
    const bool zeros = entry.key.size() > 1 && entry.key.front() == '0';
    if (code != std::errc() || stop != end || zeros || id < 0 || id >= vocab_size)
      return Refuse({.status = 400,
                     .message = fmt::format("Invalid logit_bias key {}: it must be a token id in [0, {}]",
                                            Shown(DumpJson(Json(entry.key))), vocab_size - 1),
                     .param = std::string(kRange.name)});
    const std::optional<double> bias = kRange.Read(entry.value);
    if (!bias) return Refuse(OutOfRange(fmt::format("[\"{}\"]", id), entry.value, kRange));
    // -100 is how clients of this API say "never".
    if (*bias <= -100)
      fields.rules.banned_ids.push_back(id);
    else
      fields.rules.bias.emplace_back(id, static_cast<float>(*bias));
  }
  return {};
}

ApiResult<void> ReadAllIds(const Json& body, int vocab_size, SamplingFields& fields) {
  // The end token is one of the engine's.
  auto stops = ReadIds(body, "stop_token_ids", engine::kStopIdsMax - 1, vocab_size);
  if (!stops) return Refuse(stops.error());
  fields.stop_token_ids = std::move(*stops);
  auto allowed = ReadIds(body, "allowed_token_ids", vocab_size, vocab_size);
  if (!allowed) return Refuse(allowed.error());
  // An empty list would be read as none at all, though it says that nothing may come.
  if (const Json& given = protocol::Get(body, "allowed_token_ids"); allowed->empty() && !given.is_null())
    return Refuse(Invalid("allowed_token_ids", "", "[]", "a list of at least one token id"));
  fields.rules.allowed_ids = std::move(*allowed);
  return ReadBias(body, vocab_size, fields);
}

ApiResult<void> CheckBestOf(const Json& body, int n) {
  const Json& best_of = protocol::Get(body, "best_of");
  if (best_of.is_null() || (best_of.is_number() && best_of.AsDouble() == n)) return {};
  return Refuse(Invalid("best_of", best_of, fmt::format("n, which is {}: answers are not ranked", n)));
}

}  // namespace

std::span<const NumberMember> NumberMembers() {
  return kNumbers;
}

NumberRange RangeOf(const NumberMember& member, const FieldLimits& limits) {
  NumberRange range = member.range;
  if (member.most == kContext) range.high = static_cast<double>(limits.max_seq_len);
  if (member.most == kChoices) range.high = limits.options.n_max;
  return range;
}

ApiResult<SamplingFields> ReadSamplingFields(Protocol protocol, const Json& body, const FieldLimits& limits) {
  SamplingFields fields;
  fields.use_cache = limits.options.prefix_cache;
  const SamplingDefaults& defaults = limits.options.defaults;
  fields.top_k = defaults.top_k.value_or(0);
  fields.min_p = defaults.min_p.value_or(0);
  fields.rules.repetition_penalty = defaults.repetition_penalty.value_or(1);
  if (auto read = ReadNumbers(Bit(protocol), body, limits, fields); !read) return Refuse(read.error());
  if (auto checked = CheckBestOf(body, fields.n); !checked) return Refuse(checked.error());
  if (auto read = ReadSwitches(body, fields); !read) return Refuse(read.error());
  for (const TextsRule& rule : kTexts) {
    if ((rule.apis & Bit(protocol)) == 0) continue;
    if (auto read = ReadTexts(rule, protocol::Get(body, rule.name), fields); !read) return Refuse(read.error());
  }
  if (auto read = ReadAllIds(body, limits.vocab_size, fields); !read) return Refuse(read.error());
  const Json& salt = protocol::Get(body, "cache_salt");
  if (!salt.is_null() && !salt.is_string()) return Refuse(Invalid("cache_salt", salt, "a text"));
  fields.cache_salt = protocol::Text(salt);
  if (const Json& seed = protocol::Get(body, "seed"); !seed.is_null()) {
    const std::int64_t* value = seed.if_int();
    // A number with a point or an exponent does not say which integer was meant.
    if (value == nullptr || *value < 0)
      return Refuse(Invalid("seed", seed, "a whole number in [0, 2^63), written in digits only"));
    fields.seed = static_cast<std::uint64_t>(*value);
  }
  const Json& choice = protocol::Get(body, "tool_choice");
  if (const Json& one = protocol::Get(choice, "disable_parallel_tool_use"); !one.is_null()) {
    if (!one.is_bool()) return Refuse(Invalid("tool_choice.disable_parallel_tool_use", one, "true or false"));
    fields.parallel_calls = fields.parallel_calls && !protocol::IsTrue(one);
  }
  fields.gave_temperature = !protocol::Get(body, "temperature").is_null();
  fields.gave_top_p = !protocol::Get(body, "top_p").is_null();
  for (std::string_view name : {"max_tokens", "max_completion_tokens", "max_output_tokens"})
    fields.gave_max_tokens = fields.gave_max_tokens || !protocol::Get(body, name).is_null();
  return fields;
}

}  // namespace galley::serve
