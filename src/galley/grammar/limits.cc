// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <type_traits>

#include "galley/base/options.h"

namespace galley::grammar {
namespace {

struct Row {
  std::string_view name;
  options::Type type;
  void (*set)(Limits&, std::int64_t);
  std::uint64_t (*get)(const Limits&);
  std::int64_t high;
};

template <auto kMember>
constexpr Row RowOf(std::string_view name, options::Type type, std::int64_t high) {
  return {.name = name,
          .type = type,
          .set =
              [](Limits& limits, std::int64_t value) {
                limits.*kMember = static_cast<std::remove_reference_t<decltype(limits.*kMember)>>(value);
              },
          .get = [](const Limits& limits) { return static_cast<std::uint64_t>(limits.*kMember); },
          .high = high};
}

constexpr options::Type kCount = options::Type::kInt, kBytes = options::Type::kBytes;
constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t k32 = std::numeric_limits<std::uint32_t>::max();
constexpr Row kRows[] = {
    RowOf<&Limits::nesting_max>("nesting_max", kCount, 1'000),  // each level takes stack
    RowOf<&Limits::json_values_max>("json_values_max", kCount, k32),
    RowOf<&Limits::nfa_states_max>("nfa_states_max", kCount, k32),
    RowOf<&Limits::dfa_states_max>("dfa_states_max", kCount, k32),
    RowOf<&Limits::goals_max>("goals_max", kCount, k32),
    RowOf<&Limits::branches_max>("branches_max", kCount, k32),
    RowOf<&Limits::array_states_max>("array_states_max", kCount, k32),
    RowOf<&Limits::state_items_max>("state_items_max", kCount, k32),
    RowOf<&Limits::steps_max>("steps_max", kCount, kAny),
    RowOf<&Limits::mask_steps_max>("mask_steps_max", kCount, kAny),
    RowOf<&Limits::spec_bytes_max>("spec_bytes_max", kBytes, kAny),
    RowOf<&Limits::compile_bytes_max>("compile_bytes_max", kBytes, kAny),
    RowOf<&Limits::lexeme_bytes_max>("lexeme_bytes_max", kBytes, kAny),
    RowOf<&Limits::matcher_bytes_max>("matcher_bytes_max", kBytes, kAny >> 1),
    RowOf<&Limits::call_bytes_max>("call_bytes_max", kBytes, kAny >> 1),
};

Status SetOne(std::string_view text, Limits& limits) {
  const std::size_t sign = std::min(text.find('='), text.size());
  const std::string_view name = text.substr(0, sign);
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return r.name == name; });
  if (row == std::end(kRows) || sign == text.size()) {
    std::string names;
    for (const Row& known : kRows) names += (names.empty() ? "" : ", ") + std::string(known.name);
    return Err(ErrorCode::kInvalidArgument, fmt::format("give NAME=NUMBER, where NAME is one of {}", names),
               std::string(text));
  }
  const options::Spec spec{.name = name, .type = row->type, .ints = {1, row->high}, .multiples = true};
  ASSIGN_OR_RETURN(const options::Value value, options::ParseValue(spec, text.substr(sign + 1), name));
  row->set(limits, std::get<std::int64_t>(value));
  return {};
}

}  // namespace

Status SetLimits(std::span<const std::string> given, Limits& limits) {
  for (const std::string& texts : given) {
    for (std::string_view rest = texts; !rest.empty();) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      RETURN_IF_ERROR(SetOne(rest.substr(0, comma), limits));
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }
  return {};
}

std::string Limits::Text() const {
  std::string text;
  for (const Row& row : kRows) text += fmt::format("{}={},", row.name, row.get(*this));
  return text;
}

Limits Limits::Metered() const {
  Limits out = *this;
  out.meter = std::make_shared<Meter>(steps_max, compile_bytes_max);
  return out;
}

std::shared_ptr<Meter> Limits::MeterOrNew() const {
  return meter != nullptr ? meter : std::make_shared<Meter>(steps_max, compile_bytes_max);
}

std::string Limits::Reached(const Meter& reached, const std::string& what) const {
  switch (reached.limit()) {
    case Meter::Limit::kSteps:
      return fmt::format("{} needs more than the {} steps allowed ({}); make it simpler", what, reached.steps_max(),
                         reached.running() ? "mask_steps_max" : "steps_max");
    case Meter::Limit::kBytes:
      return fmt::format("{} needs more than the {} MiB of memory allowed ({}); make it smaller", what,
                         reached.bytes_max() >> 20, reached.running() ? "lexeme_bytes_max" : "compile_bytes_max");
    case Meter::Limit::kStates:
      return fmt::format(
          "{} needs more than {} states in one lexeme (dfa_states_max); loosen its patterns, bounds and "
          "repeats",
          what, dfa_states_max);
    case Meter::Limit::kNfaStates:
      return fmt::format("{} unrolls to more than {} states in one lexeme (nfa_states_max); shorten its repeats", what,
                         nfa_states_max);
    case Meter::Limit::kNone:
      break;
  }
  return what + " reached no limit";
}

}  // namespace galley::grammar
