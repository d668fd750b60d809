// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/sampling_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "galley/protocol/shape.h"
#include "galley/serve/number_range.h"

namespace galley::serve {
namespace {

using protocol::Json;

struct NumberRule {
  NumberRange range;
  void (*set)(SamplingFields& fields, double value);
};

constexpr NumberRule kNumbers[] = {
    {{.name = "frequency_penalty", .low = -2, .high = 2},
     [](SamplingFields& f, double v) { f.rules.frequency_penalty = v; }},
    {{.name = "presence_penalty", .low = -2, .high = 2},
     [](SamplingFields& f, double v) { f.rules.presence_penalty = v; }},
    {kRepetitionRange, [](SamplingFields& f, double v) { f.rules.repetition_penalty = v; }},
    {kTopKRange, [](SamplingFields& f, double v) { f.top_k = TopKOf(v); }},
    {kMinPRange, [](SamplingFields& f, double v) { f.min_p = v; }},
    {{.name = "min_tokens", .low = 0, .high = 1e7, .whole = true},
     [](SamplingFields& f, double v) { f.min_tokens = static_cast<int>(v); }},
    {{.name = "priority", .low = -1e6, .high = 1e6, .whole = true},
     [](SamplingFields& f, double v) { f.priority = static_cast<int>(v); }},
    {{.name = "prompt_logprobs", .low = 0, .high = 20, .whole = true},
     [](SamplingFields& f, double v) { f.prompt_logprobs = static_cast<int>(v); }},
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

ApiError Invalid(std::string_view name, std::string_view limits) {
  return {.status = 400,
          .message = fmt::format("Invalid {0} value, the valid range of {0} is {1}", name, limits),
          .param = std::string(name)};
}

ApiResult<void> ReadNumbers(const Json& body, SamplingFields& fields) {
  for (const NumberRule& rule : kNumbers) {
    const Json& member = protocol::Get(body, rule.range.name);
    if (member.is_null()) continue;
    const std::optional<double> value = rule.range.Read(member);
    if (!value) return Refuse(Invalid(rule.range.name, rule.range.Text()));
    rule.set(fields, *value);
  }
  return {};
}

ApiResult<void> ReadSwitches(const Json& body, SamplingFields& fields) {
  for (const SwitchRule& rule : kSwitches) {
    const Json& member = protocol::Get(body, rule.name);
    if (member.is_null()) continue;
    if (!member.is_bool()) return Refuse(Invalid(rule.name, "true, false"));
    rule.set(fields, *member.if_bool());
  }
  return {};
}

ApiResult<std::vector<TokenId>> ReadIds(const Json& body, std::string_view name, int vocab_size) {
  std::vector<TokenId> ids;
  const Json& member = protocol::Get(body, name);
  if (member.is_null()) return ids;
  const std::string limits = fmt::format("a list of token ids in [0, {})", vocab_size);
  const NumberRange range{.name = name, .low = 0, .high = vocab_size - 1.0, .whole = true};
  if (!member.is_array()) return Refuse(Invalid(name, limits));
  for (const Json& id : protocol::Elements(member)) {
    const std::optional<double> value = range.Read(id);
    if (!value) return Refuse(Invalid(name, limits));
    ids.push_back(static_cast<TokenId>(*value));
  }
  return ids;
}

ApiResult<void> ReadBannedWords(const Json& body, SamplingFields& fields) {
  constexpr std::string_view kName = "bad_words";
  const Json& member = protocol::Get(body, kName);
  const std::span<const Json> words = protocol::Elements(member);
  const bool texts = std::all_of(words.begin(), words.end(),
                                 [](const Json& word) { return word.is_string() && !protocol::Text(word).empty(); });
  if ((!member.is_null() && !member.is_array()) || !texts)
    return Refuse(Invalid(kName, "a list of texts that are not empty"));
  for (const Json& word : words) fields.banned_words.emplace_back(protocol::Text(word));
  return {};
}

// {"id": bias}, the ids being strings as JSON keys are.
ApiResult<void> ReadBias(const Json& body, int vocab_size, SamplingFields& fields) {
  constexpr std::string_view kName = "logit_bias";
  const Json& member = protocol::Get(body, kName);
  if (member.is_null()) return {};
  const std::string limits = fmt::format("an object of token ids in [0, {}) with numbers in [-100, 100]", vocab_size);
  if (!member.is_object()) return Refuse(Invalid(kName, limits));
  for (const Json::Member& entry : *member.if_object()) {
    TokenId id = -1;
    const char* end = entry.key.data() + entry.key.size();
    const auto [stop, code] = std::from_chars(entry.key.data(), end, id);
    const double bias = entry.value.is_number() ? entry.value.AsDouble() : std::nan("");
    if (code != std::errc() || stop != end || id < 0 || id >= vocab_size || !(bias >= -100 && bias <= 100))
      return Refuse(Invalid(kName, limits));
    // -100 is how clients of this API say "never".
    if (bias <= -100)
      fields.rules.banned_ids.push_back(id);
    else
      fields.rules.bias.emplace_back(id, static_cast<float>(bias));
  }
  return {};
}

ApiResult<void> ReadCount(const Json& body, int n_max, SamplingFields& fields) {
  const Json& n = protocol::Get(body, "n");
  if (!n.is_null()) {
    const NumberRange range{.name = "n", .low = 1, .high = static_cast<double>(n_max), .whole = true};
    const std::optional<double> value = range.Read(n);
    if (!value) return Refuse(Invalid("n", range.Text()));
    fields.n = static_cast<int>(*value);
  }
  const Json& best_of = protocol::Get(body, "best_of");
  if (!best_of.is_null() && !(best_of.is_number() && best_of.AsDouble() == fields.n))
    return Refuse({.status = 400, .message = "best_of must equal n: answers are not ranked", .param = "best_of"});
  return {};
}

}  // namespace

ApiResult<SamplingFields> ReadSamplingFields(const Json& body, const ServiceOptions& options, int vocab_size) {
  SamplingFields fields;
  fields.use_cache = options.prefix_cache;
  const SamplingDefaults& defaults = options.defaults;
  fields.top_k = defaults.top_k.value_or(0);
  fields.min_p = defaults.min_p.value_or(0);
  fields.rules.repetition_penalty = defaults.repetition_penalty.value_or(1);
  if (auto read = ReadCount(body, options.n_max, fields); !read) return Refuse(read.error());
  if (auto read = ReadNumbers(body, fields); !read) return Refuse(read.error());
  if (auto read = ReadSwitches(body, fields); !read) return Refuse(read.error());
  if (auto read = ReadBias(body, vocab_size, fields); !read) return Refuse(read.error());
  if (auto read = ReadBannedWords(body, fields); !read) return Refuse(read.error());
  auto stops = ReadIds(body, "stop_token_ids", vocab_size);
  if (!stops) return Refuse(stops.error());
  fields.stop_token_ids = std::move(*stops);
  auto allowed = ReadIds(body, "allowed_token_ids", vocab_size);
  if (!allowed) return Refuse(allowed.error());
  // An empty list would be read as none at all, though it says that nothing may come.
  if (allowed->empty() && !protocol::Get(body, "allowed_token_ids").is_null())
    return Refuse(Invalid("allowed_token_ids", "a list of at least one token id"));
  fields.rules.allowed_ids = std::move(*allowed);
  const Json& salt = protocol::Get(body, "cache_salt");
  if (!salt.is_null() && !salt.is_string()) return Refuse(Invalid("cache_salt", "any text"));
  fields.cache_salt = protocol::Text(salt);
  if (const Json& seed = protocol::Get(body, "seed"); !seed.is_null()) {
    const std::int64_t* value = seed.if_int();
    if (value == nullptr || *value < 0) return Refuse(Invalid("seed", "[0, 2^63), whole numbers"));
    fields.seed = static_cast<std::uint64_t>(*value);
  }
  const Json& choice = protocol::Get(body, "tool_choice");
  if (choice.is_object() && protocol::IsTrue(protocol::Get(choice, "disable_parallel_tool_use")))
    fields.parallel_calls = false;
  fields.gave_temperature = !protocol::Get(body, "temperature").is_null();
  fields.gave_top_p = !protocol::Get(body, "top_p").is_null();
  for (std::string_view name : {"max_tokens", "max_completion_tokens", "max_output_tokens"})
    fields.gave_max_tokens = fields.gave_max_tokens || !protocol::Get(body, name).is_null();
  return fields;
}

}  // namespace galley::serve
