// SPDX-License-Identifier: Apache-2.0
// Manifold-constrained hyper-connections: four residual copies mixed around every sub-layer (specification 2.2).
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "galley/backend/ref/math.h"
#include "galley/backend/ref/ref_backend.h"
#include "galley/base/check.h"

namespace galley::backend {
namespace {

constexpr int kMaxCopies = 8;

// Doubly stochastic mixing matrix [C][C] from its logits, in place: row softmax, then alternating normalisations that
// end on a column step.
void Sinkhorn(float* m, int copies, int iterations, float eps) {
  for (int j = 0; j < copies; ++j) {
    float* row = m + j * copies;
    const float largest = *std::max_element(row, row + copies);
    float sum = 0;
    for (int k = 0; k < copies; ++k) sum += row[k] = std::exp(row[k] - largest);
    for (int k = 0; k < copies; ++k) row[k] = row[k] / sum + eps;
  }
  for (int iteration = 0; iteration < iterations; ++iteration) {
    for (int j = 0; iteration > 0 && j < copies; ++j) {
      float sum = 0;
      for (int k = 0; k < copies; ++k) sum += m[j * copies + k];
      for (int k = 0; k < copies; ++k) m[j * copies + k] /= sum + eps;
    }
    for (int k = 0; k < copies; ++k) {
      float sum = 0;
      for (int j = 0; j < copies; ++j) sum += m[j * copies + k];
      for (int j = 0; j < copies; ++j) m[j * copies + k] /= sum + eps;
    }
  }
}

// h[k] = bf(post[k] * y + sum over j of comb[j][k] * h[j]).
void Expand(const MhcBoundaryArgs& args, std::size_t t) {
  const auto dim = static_cast<std::size_t>(args.dim), copies = static_cast<std::size_t>(args.copies);
  BFloat16* h = args.h + t * copies * dim;
  const BFloat16* y = args.y + t * dim;
  const float* post = args.post_in + t * copies;
  const float* comb = args.comb_in + t * copies * copies;
  std::array<float, kMaxCopies> old{};
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < copies; ++j) old[j] = ToFloat(h[j * dim + i]);
    for (std::size_t k = 0; k < copies; ++k) {
      float mixed = 0;
      for (std::size_t j = 0; j < copies; ++j) mixed += comb[j * copies + k] * old[j];
      h[k * dim + i] = ToBFloat16(post[k] * ToFloat(y[i]) + mixed);
    }
  }
}

void Coefficients(const MhcBoundaryArgs& args, std::size_t t) {
  const auto copies = static_cast<std::size_t>(args.copies);
  const std::size_t length = copies * static_cast<std::size_t>(args.dim);
  std::vector<float> v(length);
  ref::LoadBf16(args.h + t * length, v);
  const float r = ref::InverseRms(v, args.norm_eps);
  const auto mix = [&](std::size_t i, int scale) {
    return ref::Dot(args.fn + i * length, v.data(), length) * r * args.scale[scale] + args.base[i];
  };
  float* comb = args.comb_out + t * copies * copies;
  for (std::size_t k = 0; k < copies; ++k) {
    args.pre_out[t * copies + k] = ref::Sigmoid(mix(k, 0)) + args.hc_eps;
    args.post_out[t * copies + k] = 2 * ref::Sigmoid(mix(copies + k, 1));
  }
  for (std::size_t i = 0; i < copies * copies; ++i) comb[i] = mix(2 * copies + i, 2);
  Sinkhorn(comb, args.copies, args.sinkhorn_iters, args.hc_eps);
}

// x = RMS(bf(sum over k of pre[k] * h[k])).
void Collapse(const MhcBoundaryArgs& args, std::size_t t) {
  const auto dim = static_cast<std::size_t>(args.dim), copies = static_cast<std::size_t>(args.copies);
  const BFloat16* h = args.h + t * copies * dim;
  const float* pre = args.pre_in + t * copies;
  std::vector<float> x(dim);
  for (std::size_t i = 0; i < dim; ++i) {
    float sum = 0;
    for (std::size_t k = 0; k < copies; ++k) sum += pre[k] * ToFloat(h[k * dim + i]);
    x[i] = RoundToBFloat16(sum);
  }
  if (args.norm != nullptr) ref::RmsNorm(x, args.norm, args.norm_eps);
  ref::StoreBf16(x, args.x + t * dim);
}

}  // namespace

void RefBackend::MhcBoundary(const MhcBoundaryArgs& args) {
  CHECK(args.copies <= kMaxCopies) << args.copies << " residual copies";
  CHECK(args.pre_out == nullptr || args.pre_out != args.pre_in) << "pre_out aliases pre_in";
  pool_.ParallelFor(args.rows, [&](std::int64_t row) {
    const auto t = static_cast<std::size_t>(row);
    if (args.y != nullptr) Expand(args, t);
    if (args.fn != nullptr) Coefficients(args, t);
    if (args.x != nullptr) Collapse(args, t);
  });
}

void RefBackend::MeanCopies(const MeanCopiesArgs& args) {
  const auto dim = static_cast<std::size_t>(args.dim), copies = static_cast<std::size_t>(args.copies);
  for (std::int64_t t = 0; t < args.rows; ++t) {
    const BFloat16* h = args.h + static_cast<std::size_t>(t) * copies * dim;
    for (std::size_t i = 0; i < dim; ++i) {
      float sum = 0;
      for (std::size_t c = 0; c < copies; ++c) sum += ToFloat(h[c * dim + i]);
      args.out[static_cast<std::size_t>(t * args.out_stride) + i] = ToBFloat16(sum / static_cast<float>(copies));
    }
  }
}

}  // namespace galley::backend
