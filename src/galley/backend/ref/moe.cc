// SPDX-License-Identifier: Apache-2.0
// Linear layers, router, mixture of experts and the head (specification 2.3, 2.9, 2.1).
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "galley/backend/ref/math.h"
#include "galley/backend/ref/matrix.h"
#include "galley/backend/ref/ref_backend.h"

namespace galley::backend {
namespace {

// softplus as torch has it: above 20 the input itself.
float Softplus(float x) {
  return x > 20.0f ? x : std::log1p(std::exp(x));
}

// w2(bf(weight * silu(min(w1 x, limit)) * clamp(w3 x, +-limit))) for `rows` rows, rounded to bf16.
std::vector<float> Expert(ThreadPool& pool, const ExpertWeights& expert, const std::vector<float>& x, int rows,
                          float limit, const std::vector<float>& weights) {
  std::vector<float> g = ref::Multiply(pool, expert.w1, x, rows);
  std::vector<float> u = ref::Multiply(pool, expert.w3, x, rows);
  const auto width = static_cast<std::size_t>(expert.w1.rows);
  for (std::size_t i = 0; i < g.size(); ++i) {
    const float gate = std::min(RoundToBFloat16(g[i]), limit);
    const float up = std::clamp(RoundToBFloat16(u[i]), -limit, limit);
    const float activated = gate / (1.0f + std::exp(-gate)) * up;
    g[i] = RoundToBFloat16(weights.empty() ? activated : weights[i / width] * activated);
  }
  std::vector<float> y = ref::Multiply(pool, expert.w2, std::move(g), rows);
  ref::RoundBf16(y);
  return y;
}

void AddRoutedExpert(ThreadPool& pool, const MoeArgs& args, int expert, const std::vector<float>& x,
                     std::vector<float>& sum) {
  const auto dim = static_cast<std::ptrdiff_t>(args.shared.w1.cols);
  std::vector<std::ptrdiff_t> rows;
  std::vector<float> weights, inputs;
  for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(args.rows) * args.topk; ++i) {
    if (args.experts[i] != expert) continue;
    rows.push_back(i / args.topk);
    weights.push_back(args.weights[i]);
    inputs.insert(inputs.end(), x.begin() + rows.back() * dim, x.begin() + (rows.back() + 1) * dim);
  }
  if (rows.empty()) return;
  const std::vector<float> y =
      Expert(pool, args.routed[expert], inputs, static_cast<int>(rows.size()), args.swiglu_limit, weights);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    float* out = sum.data() + rows[i] * dim;
    for (std::ptrdiff_t d = 0; d < dim; ++d)
      out[d] += y[i * static_cast<std::size_t>(dim) + static_cast<std::size_t>(d)];
  }
}

}  // namespace

void RefBackend::Linear(const LinearArgs& args) {
  const std::vector<float> out =
      ref::Multiply(pool_, args.weight, ref::ToFloats(args.x, args.rows * args.weight.cols), args.rows);
  ref::StoreBf16(out, args.out);
}

void RefBackend::Route(const RouteArgs& args) {
  const auto experts = static_cast<std::size_t>(args.gate.rows), topk = static_cast<std::size_t>(args.topk);
  std::vector<float> scores = ref::MultiplyUnquantized(
      pool_, args.gate, ref::ToFloats(args.x, args.step.rows * args.gate.cols), args.step.rows);
  std::vector<std::int32_t> order(experts);
  for (std::size_t t = 0; t < static_cast<std::size_t>(args.step.rows); ++t) {
    float* s = scores.data() + t * experts;
    for (std::size_t e = 0; e < experts; ++e) s[e] = std::sqrt(Softplus(s[e] / args.temperature));
    const bool image = args.step.image_rows != nullptr && args.step.image_rows[t] != 0 && args.image_bias != nullptr;
    const float* bias = image ? args.image_bias : args.bias;
    std::vector<float> biased(experts);
    for (std::size_t e = 0; e < experts; ++e) {
      biased[e] = s[e] + bias[e];
      if (std::isnan(biased[e])) biased[e] = -std::numeric_limits<float>::infinity();  // keeps the order total
    }
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return biased[static_cast<std::size_t>(a)] > biased[static_cast<std::size_t>(b)];
    });
    float sum = 0;
    for (std::size_t i = 0; i < topk; ++i) sum += s[order[i]];
    for (std::size_t i = 0; i < topk; ++i) {
      args.experts[t * topk + i] = order[i];
      args.weights[t * topk + i] = s[order[i]] / (sum + 1e-20f) * args.scale;
    }
  }
}

void RefBackend::Moe(const MoeArgs& args) {
  const std::vector<float> x = ref::ToFloats(args.x, args.rows * args.shared.w1.cols);
  std::vector<float> sum(x.size(), 0.0f);
  for (int e = 0; e < args.expert_count; ++e) AddRoutedExpert(pool_, args, e, x, sum);
  const std::vector<float> shared = Expert(pool_, args.shared, x, args.rows, args.swiglu_limit, {});
  for (std::size_t i = 0; i < sum.size(); ++i) args.y[i] = ToBFloat16(sum[i] + shared[i]);
}

void RefBackend::Head(const HeadArgs& args) {
  const auto dim = static_cast<std::size_t>(args.dim);
  std::vector<float> x(static_cast<std::size_t>(args.count) * dim);
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.count); ++i) {
    const auto row = std::span(x).subspan(i * dim, dim);
    const std::size_t from = args.row_list == nullptr ? i : static_cast<std::size_t>(args.row_list[i]);
    ref::LoadBf16(args.x + from * dim, row);
    ref::RmsNorm(row, args.norm, args.eps);
  }
  const std::vector<float> logits = ref::MultiplyUnquantized(pool_, args.head, x, args.count);
  std::copy(logits.begin(), logits.end(), args.logits);
}

}  // namespace galley::backend
