// SPDX-License-Identifier: Apache-2.0
// Draws with filters, changes of logits and log-probabilities, of rows that are usual and of rows that are not. Tokens
// are compared exactly: equal scores and borders that fall on equal logits have one right answer.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>

#include "op_cases.h"

namespace galley::conformance {
namespace {

using backend::DrawnToken;
using backend::DrawRequest;
using backend::kAlternativesMax;
using backend::LogitChange;
using backend::RankedToken;

constexpr int kRows = 12;

// One kind of row after the other.
std::vector<float> RowsOfLogits(OpRig& rig, int vocab) {
  std::vector<float> logits;
  for (int row = 0; row < kRows; ++row) {
    const int odd = rig.Integer(0, vocab - 1);
    for (int v = 0; v < vocab; ++v) {
      const float x = rig.Normal();
      switch (row) {
        default:
          logits.push_back(x * 3);
          break;
        case 1:
          logits.push_back(v % 2 == 0 ? 4.5f : x);
          break;  // half of them equal
        case 2:
          logits.push_back(std::round(x * 8) / 4);
          break;  // few values
        case 3:
          logits.push_back(1);
          break;  // all equal
        case 4:
          logits.push_back(20 + x * 1e-5f);
          break;  // nearly equal
        case 5:
          logits.push_back(x * 40);
          break;  // far apart
        case 6:
          logits.push_back(v % 3 == 0 ? NAN : v % 3 == 1 ? -INFINITY : x);
          break;
        case 7:
          logits.push_back(v == odd ? x : -INFINITY);
          break;  // a single token
        case 8:
          logits.push_back(v % 2 == 0 ? NAN : -INFINITY);
          break;  // none
        case 9:
          logits.push_back(v == odd || v == vocab / 2 ? INFINITY : x);
          break;
        case 10:
          logits.push_back(v == odd ? 60 : x * 2);
          break;  // hardly a choice
      }
    }
  }
  return logits;
}

backend::SampleParams Params(OpRig& rig, int i) {
  constexpr backend::SampleParams kKinds[] = {
      {.temperature = 0},
      {.temperature = 1.0f},
      {.temperature = 0.7f, .top_k = 40},
      {.temperature = 1.0f, .top_p = 0.95f},
      {.temperature = 1.3f, .top_k = 100, .top_p = 0.8f, .min_p = 0.01f},
      {.temperature = 0.2f, .min_p = 0.1f},
      {.temperature = 2.0f, .top_k = 1},
      {.temperature = 0.01f, .top_p = 1e-6f},
      {.temperature = 1.0f, .top_k = 1'000'000, .top_p = 0.999f, .min_p = 1e-4f},
  };
  backend::SampleParams params = kKinds[static_cast<std::size_t>(i) % std::size(kKinds)];
  params.seed = static_cast<std::uint64_t>(rig.Integer(0, 1 << 30)) << 30 | 12345u;
  params.position = (static_cast<Position>(i) << 31) + 7;
  return params;
}

// What requests refer to, at places that stay.
struct Referred {
  std::deque<std::vector<std::uint32_t>> masks;
  std::deque<std::vector<LogitChange>> changes;

  // Of the tokens for which `in` is true.
  template <typename In>
  const std::uint32_t* Mask(int vocab, In&& in) {
    std::vector<std::uint32_t>& words = masks.emplace_back(backend::MaskWords(vocab));
    for (int v = 0; v < vocab; ++v) words[static_cast<std::size_t>(v) / 32] |= (in(v) ? 1u : 0u) << (v % 32);
    return words.data();
  }
};

// Every kind of change in turn, and all of them.
backend::RowChanges Changes(OpRig& rig, int vocab, int kind, Referred& referred) {
  backend::RowChanges changes;
  if (kind % 2 == 1) {
    const int only = rig.Integer(0, vocab - 1);
    changes.allowed = kind == 1   ? referred.Mask(vocab, [&](int v) { return v == only; })
                      : kind == 3 ? referred.Mask(vocab, [](int) { return false; })
                                  : referred.Mask(vocab, [&](int) { return rig.Integer(0, 3) > 0; });
  }
  if (kind / 2 % 2 == 1) {
    changes.repeated = referred.Mask(vocab, [&](int) { return rig.Integer(0, 4) == 0; });
    changes.repetition = kind > 7 ? 0.8f : 1.7f;
  }
  if (kind / 4 % 2 == 1) {
    std::vector<int> ids(static_cast<std::size_t>(vocab));
    std::iota(ids.begin(), ids.end(), 0);
    std::vector<LogitChange>& list = referred.changes.emplace_back();
    const int count = std::min(vocab, kind < 8 ? 5 : 700);
    for (int i = 0; i < count; ++i) {
      std::swap(ids[static_cast<std::size_t>(i)], ids[static_cast<std::size_t>(rig.Integer(i, vocab - 1))]);
      list.push_back({.id = ids[static_cast<std::size_t>(i)],
                      .bias = i % 3 == 0 ? 0 : rig.Uniform(-3, 5),
                      .penalty = i % 3 == 1 ? 0 : rig.Uniform(-1, 2)});
    }
    changes.logits = list;
  }
  return changes;
}

// Logits, which are there again after the draws, and what was drawn.
void Draw(OpRig& rig, int vocab, int draws, bool changed, bool plain) {
  const std::vector<float> logits = RowsOfLogits(rig, vocab);
  Referred referred;
  std::vector<DrawRequest> requests;
  for (int i = 0; i < draws; ++i) {
    DrawRequest& request = requests.emplace_back(DrawRequest{
        .row = (i / 9 + i) % kRows, .params = Params(rig, i), .changes = {}, .given = -1, .alternatives = -1});
    if (plain) request.params.top_k = 0, request.params.top_p = 1, request.params.min_p = 0;
    if (!changed) continue;
    request.changes = Changes(rig, vocab, i % 16, referred);
    if (i % 3 != 0) request.alternatives = i % 5 == 0 ? kAlternativesMax : i % 4;
    if (i % 7 == 6) request.given = rig.Integer(0, vocab - 1), request.alternatives = 1;
  }
  std::vector<DrawnToken> drawn(requests.size());
  std::vector<RankedToken> ranked(requests.size() * kAlternativesMax, RankedToken{.id = -7, .logprob = 0});
  const float* placed = rig.InOut("logits", logits, static_cast<std::size_t>(vocab), Check::kExact);
  const auto draw = [&](std::size_t first, std::size_t count) {
    const Status status = rig.backend().Draw({.count = static_cast<int>(count),
                                              .vocab = vocab,
                                              .logits = placed,
                                              .requests = requests.data() + first,
                                              .drawn = drawn.data() + first,
                                              .ranked = ranked.data() + first * kAlternativesMax});
    CHECK(status) << status.error().ToString();
  };
  draw(0, requests.size());
  // The same alone, whatever shares a call.
  const std::vector<DrawnToken> together = drawn;
  for (std::size_t i = 0; i < std::min<std::size_t>(requests.size(), 40); ++i) {
    draw(i, 1);
    CHECK(drawn[i].id == together[i].id) << "draw " << i << ": " << drawn[i].id << " alone, " << together[i].id;
  }
  std::vector<std::int32_t> ids, kinds;
  std::vector<float> logprobs;
  const auto report = [&](std::int32_t id, float logprob) {
    ids.push_back(id);
    kinds.push_back(std::isnan(logprob) ? 2 : std::isinf(logprob) ? 1 : 0);
    logprobs.push_back(kinds.back() == 0 ? logprob : 0);
  };
  for (std::size_t i = 0; i < requests.size(); ++i) {
    report(drawn[i].id, requests[i].alternatives < 0 ? 0 : drawn[i].logprob);
    for (int j = 0; j < requests[i].alternatives; ++j) {
      const RankedToken& token = ranked[i * kAlternativesMax + static_cast<std::size_t>(j)];
      report(token.id, token.id < 0 ? 0 : token.logprob);
    }
  }
  static_cast<void>(rig.InOut("tokens", ids, 1, Check::kExact));
  static_cast<void>(rig.InOut("kinds of logprobs", kinds, 1, Check::kExact));
  static_cast<void>(rig.InOut("logprobs", logprobs, 1, Check::kFloat, 1e-7));
}

}  // namespace

void AddDrawCases(std::vector<OpCase>& cases) {
  const auto add = [&cases](std::string name, int vocab, int draws, bool changed, bool plain = false) {
    cases.push_back({std::move(name), [=](OpRig& rig) { Draw(rig, vocab, draws, changed, plain); }});
  };
  for (const int vocab : {4, 36, 37, 2560}) add(fmt::format("Draw_plain_{}", vocab), vocab, 108, false, true);
  add("Draw_plain_129280_true", 129280, 108, false, true);
  add("Draw_filters_2560", 2560, 108, false);
  for (const int vocab : {31, 1000, 4097}) add(fmt::format("Draw_changed_{}", vocab), vocab, 144, true);
  add("Draw_changed_256_draws", 2000, 256, true);
  add("Draw_129280_true", 129280, 108, false);
  add("Draw_changed_129280_true", 129280, 144, true);
  add("Draw_changed_150001_true", 150001, 48, true);
}

}  // namespace galley::conformance
