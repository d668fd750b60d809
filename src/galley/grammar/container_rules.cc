// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/container_rules.h"

#include <algorithm>

namespace galley::grammar {
namespace {

// Words of an object: position among ordered names, members so far, pending label, number of seen unordered names,
// those names ascending, then interned undeclared names ascending.
constexpr std::size_t kPosition = 0, kCount = 1, kPending = 2, kSeen = 3, kHeader = 4;

Payload Begun(const Payload& payload) {
  return payload.empty() ? Payload{0, 0, kNoPending, 0} : payload;
}

std::span<const std::uint32_t> SeenNames(const Payload& payload) {
  if (payload.empty()) return {};
  return {payload.data() + kHeader, payload[kSeen]};
}

void InsertSorted(Payload& payload, std::size_t first, std::size_t last, std::uint32_t value) {
  const auto begin = payload.begin() + static_cast<std::ptrdiff_t>(first);
  const auto end = payload.begin() + static_cast<std::ptrdiff_t>(last);
  payload.insert(std::lower_bound(begin, end, value), value);
}

}  // namespace

namespace object_rules {

std::span<const std::uint32_t> Undeclared(const Payload& payload) {
  if (payload.empty()) return {};
  const std::size_t start = kHeader + payload[kSeen];
  return {payload.data() + start, payload.size() - start};
}

std::uint32_t Pending(const Payload& payload) {
  return payload.empty() ? kNoPending : payload[kPending];
}

bool CanClose(const ObjectSpec& spec, const Payload& payload) {
  const Payload p = Begun(payload);
  if (p[kCount] < spec.members_min || spec.next_required[p[kPosition]] < spec.ordered) return false;
  const auto seen = SeenNames(p);
  for (std::uint32_t i = spec.ordered; i < spec.names; ++i) {
    if (spec.required[i] && !std::binary_search(seen.begin(), seen.end(), i)) return false;
  }
  return true;
}

std::optional<NameContext> Next(const ObjectSpec& spec, const Payload& payload) {
  const Payload p = Begun(payload);
  const std::uint32_t position = p[kPosition], count = p[kCount];
  const auto seen = SeenNames(p);
  NameContext out;
  out.excluded.assign(seen.begin(), seen.end());
  std::uint32_t free_required = 0, free_left = 0, ordered_required = 0;
  for (std::uint32_t i = spec.ordered; i < spec.names; ++i) {
    if (std::binary_search(seen.begin(), seen.end(), i)) continue;
    free_required += spec.required[i] ? 1 : 0;
    free_left += spec.allowed[i] ? 1 : 0;
  }
  bool only_required = false;
  if (spec.members_max != kUnbounded) {
    for (std::uint32_t i = position; i < spec.ordered; ++i) ordered_required += spec.required[i] ? 1 : 0;
    const std::uint32_t required = free_required + ordered_required;
    const std::uint32_t room = spec.members_max > count ? spec.members_max - count : 0;
    if (room == 0 || room < required) return std::nullopt;
    only_required = room == required;
  }
  const std::uint32_t due = spec.next_required[position];
  out.first = position;
  out.others = due >= spec.ordered && spec.others() && !only_required;
  if (due < spec.ordered) {
    out.last = due;
    if (only_required) out.first = due;
  } else if (only_required) {
    out.first = spec.ordered;
    for (std::uint32_t i = spec.ordered; i < spec.names; ++i) {
      if (!spec.required[i]) out.excluded.push_back(i);
    }
    std::sort(out.excluded.begin(), out.excluded.end());
    out.excluded.erase(std::unique(out.excluded.begin(), out.excluded.end()), out.excluded.end());
  }
  // Members still owed after this one must fit into what may follow it.
  const std::uint32_t owed = spec.members_min > count + 1 ? spec.members_min - count - 1 : 0;
  if (owed > 0 && !spec.others() && (free_left == 0 || free_left - 1 < owed)) {
    const std::uint32_t all = spec.allowed_before[spec.ordered];
    std::uint32_t end = position;  // one past the last ordered name that leaves enough
    while (end < spec.ordered && all - spec.allowed_before[end + 1] + free_left >= owed) ++end;
    if (end == position) return std::nullopt;
    out.last = std::min(out.last, end - 1);
  }
  return out;
}

Payload AfterName(const ObjectSpec& spec, const Payload& payload, std::uint32_t label, std::uint32_t undeclared) {
  Payload p = Begun(payload);
  p[kPending] = label;
  p[kPosition] = label < spec.ordered ? label + 1 : spec.ordered;
  const std::uint32_t cap = spec.members_max == kUnbounded ? spec.members_min : spec.members_max;
  p[kCount] = std::min(p[kCount] + 1, cap);
  if (label >= spec.names) {
    InsertSorted(p, kHeader + p[kSeen], p.size(), undeclared);
  } else if (label >= spec.ordered) {
    InsertSorted(p, kHeader, kHeader + p[kSeen], label);
    ++p[kSeen];
  }
  return p;
}

Payload AfterValue(const Payload& payload) {
  Payload p = Begun(payload);
  p[kPending] = kNoPending;
  return p;
}

}  // namespace object_rules

namespace array_rules {
namespace {

Payload BegunArray(const ArraySpec& spec, const Payload& payload) {
  if (!payload.empty()) return payload;
  const std::size_t marks = spec.unique ? (spec.options.back().size() + 31) / 32 : spec.contains.size();
  return Payload(1 + marks, 0);
}

// The payload behind an element, or nothing when a maximum forbids it.
std::optional<Payload> After(const ArraySpec& spec, const Payload& p, std::uint32_t marks) {
  Payload out = p;
  out[0] = std::min(p[0] + 1, spec.index_cap());
  if (spec.unique) {
    const std::uint32_t bit = 1u << (marks % 32);
    if ((p[1 + marks / 32] & bit) != 0) return std::nullopt;
    out[1 + marks / 32] |= bit;
    return out;
  }
  for (std::size_t i = 0; i < spec.contains.size(); ++i) {
    if ((marks >> i & 1) == 0) continue;
    const ArraySpec::Contains& c = spec.contains[i];
    if (c.max != kUnbounded && p[1 + i] >= c.max) return std::nullopt;
    out[1 + i] = std::min(p[1 + i] + 1, c.max == kUnbounded ? c.min : c.max);
  }
  return out;
}

std::vector<Step> Candidates(const ArraySpec& spec, const Payload& p) {
  std::vector<Step> out;
  if (spec.options.empty() || (spec.items_max != kUnbounded && p[0] >= spec.items_max)) return out;
  const std::size_t index = std::min<std::size_t>(p[0], spec.options.size() - 1);
  for (const ArraySpec::Option& option : spec.options[index]) {
    if (auto after = After(spec, p, option.marks)) out.push_back({option.rule, std::move(*after)});
  }
  return out;
}

}  // namespace

bool CanClose(const ArraySpec& spec, const Payload& payload) {
  if (payload.empty()) {
    return spec.items_min == 0 && std::all_of(spec.contains.begin(), spec.contains.end(),
                                              [](const ArraySpec::Contains& c) { return c.min == 0; });
  }
  if (payload[0] < spec.items_min) return false;
  for (std::size_t i = 0; i < spec.contains.size(); ++i) {
    if (payload[1 + i] < spec.contains[i].min) return false;
  }
  return true;
}

bool Closable(const ArraySpec& spec, const Payload& payload, ClosableStates& states) {
  // Each value once, in any order: there are enough of them, or there never were.
  if (spec.unique) return spec.options.back().size() >= spec.items_min;
  const Payload start = BegunArray(spec, payload);
  std::map<Payload, bool>& closable = states.known;
  const auto known = closable.find(start);
  if (known != closable.end()) return known->second;
  // Depth first, without recursion: minItems may be in the thousands.
  std::vector<std::pair<Payload, std::vector<Step>>> path;
  std::vector<Payload> visited;
  const auto open = [&](const Payload& p) {
    closable.emplace(p, false);
    visited.push_back(p);
    path.emplace_back(p, Candidates(spec, p));
  };
  open(start);
  while (!path.empty()) {
    bool found = CanClose(spec, path.back().first);
    while (!found && !path.back().second.empty()) {
      Payload next = std::move(path.back().second.back().after);
      path.back().second.pop_back();
      const auto it = closable.find(next);
      if (it == closable.end()) {
        if (closable.size() >= states.max) {
          states.overflowed = true;
          return false;
        }
        open(next);
        found = CanClose(spec, path.back().first);
      } else {
        found = it->second;
      }
    }
    if (found) {
      for (const auto& [p, rest] : path) closable[p] = true;
      // States seen and left on the way may be closable too; forget what is not certain.
      for (const Payload& p : visited) {
        if (!closable[p]) closable.erase(p);
      }
      return true;
    }
    path.pop_back();
  }
  return false;
}

std::vector<Step> Next(const ArraySpec& spec, const Payload& payload, ClosableStates& states) {
  std::vector<Step> out = Candidates(spec, BegunArray(spec, payload));
  std::erase_if(out, [&](const Step& step) { return !Closable(spec, step.after, states); });
  return out;
}

}  // namespace array_rules

}  // namespace galley::grammar
