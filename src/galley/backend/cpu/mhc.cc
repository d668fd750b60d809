// SPDX-License-Identifier: Apache-2.0
// Hyper-connections (specification 2.2) and Engram (2.10).
#include <algorithm>
#include <array>
#include <cmath>

#include "galley/backend/cpu/cpu_backend.h"
#include "galley/backend/engram_file.h"
#include "galley/base/check.h"
#include "galley/base/math.h"

namespace galley::backend::cpu {
namespace {

constexpr int kMaxCopies = 8;
constexpr std::int64_t kColumnStep = 1024;  // columns of a task that expands

float Sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

// Row softmax of a matrix [C][C], in place.
void SoftenRows(float* m, int copies, float eps) {
  for (int j = 0; j < copies; ++j) {
    float* row = m + j * copies;
    const float largest = *std::max_element(row, row + copies);
    float sum = 0;
    for (int k = 0; k < copies; ++k) sum += row[k] = std::exp(row[k] - largest);
    for (int k = 0; k < copies; ++k) row[k] = row[k] / sum + eps;
  }
}

// The coefficients of one row from its products with fn and its sum of squares; of the mixing matrix, which becomes
// doubly stochastic by alternating normalisations that end on a column step, what comes before those.
void Coefficients(const MhcBoundaryArgs& args, std::size_t t, const float* products) {
  const auto copies = static_cast<std::size_t>(args.copies), length = copies * static_cast<std::size_t>(args.dim);
  const std::size_t outputs = copies * (copies + 2);
  const float r = 1.0f / std::sqrt(products[outputs] / static_cast<float>(length) + args.norm_eps);
  const auto mix = [&](std::size_t i, int scale) { return products[i] * r * args.scale[scale] + args.base[i]; };
  float* comb = args.comb_out + t * copies * copies;
  for (std::size_t k = 0; k < copies; ++k) {
    args.pre_out[t * copies + k] = Sigmoid(mix(k, 0)) + args.hc_eps;
    args.post_out[t * copies + k] = 2 * Sigmoid(mix(copies + k, 1));
  }
  for (std::size_t i = 0; i < copies * copies; ++i) comb[i] = mix(2 * copies + i, 2);
  SoftenRows(comb, args.copies, args.hc_eps);
}

}  // namespace

void CpuBackend::MhcBoundary(const MhcBoundaryArgs& args) {
  CHECK(args.copies <= kMaxCopies) << args.copies << " residual copies";
  CHECK(args.pre_out == nullptr || args.pre_out != args.pre_in) << "pre_out aliases pre_in";
  memory_.Reset();
  const auto dim = static_cast<std::size_t>(args.dim), copies = static_cast<std::size_t>(args.copies);
  const std::size_t length = copies * dim;
  const double size = static_cast<double>(args.rows) * static_cast<double>(length);
  if (args.y != nullptr) {
    const std::int64_t pieces = CeilDiv<std::int64_t>(args.dim, kColumnStep);
    team_.Run(args.rows * pieces, 6 * size, [&](std::int64_t task, int) {
      const auto t = static_cast<std::size_t>(task / pieces);
      const auto begin = static_cast<std::size_t>(task % pieces * kColumnStep);
      kernels_.expand(args.h + t * length + begin, dim, args.copies, args.y + t * dim + begin,
                      args.post_in + t * copies, args.comb_in + t * copies * copies,
                      std::min<std::size_t>(dim - begin, kColumnStep));
    });
  }
  const std::size_t outputs = copies * (copies + 2);
  float* products = nullptr;
  if (args.fn != nullptr) {
    products = memory_.Take<float>(static_cast<std::size_t>(args.rows) * (outputs + 1));
    // A row of fn serves a group of rows while it is in the cache.
    constexpr std::int64_t kGroup = 16;
    constexpr std::size_t kOutputs = 4;  // of a task
    const std::int64_t groups = CeilDiv<std::int64_t>(args.rows, kGroup);
    const auto width = static_cast<std::int64_t>(CeilDiv(outputs, kOutputs)) + 1;
    team_.Run(groups * width, size * static_cast<double>(outputs), [&](std::int64_t task, int) {
      const std::size_t i = static_cast<std::size_t>(task % width) * kOutputs;
      const std::int64_t end = std::min<std::int64_t>(args.rows, (task / width + 1) * kGroup);
      for (auto t = static_cast<std::size_t>(task / width * kGroup); t < static_cast<std::size_t>(end); ++t) {
        const BFloat16* h = args.h + t * length;
        float* out = products + t * (outputs + 1);
        if (i < outputs) {
          kernels_.dots_f32(args.fn + i * length, std::min(kOutputs, outputs - i), h, length, out + i);
        } else {
          out[outputs] = kernels_.sum_squares(h, length);
        }
      }
    });
  }
  if (products == nullptr && args.x == nullptr) return;
  // Four rows' matrices are balanced together where that leaves work for everybody.
  const auto together = std::clamp<std::int64_t>(CeilDiv<std::int64_t>(args.rows, team_.threads()), 1, 4);
  team_.Run(CeilDiv<std::int64_t>(args.rows, together), 4 * size + 20'000.0 * args.rows, [&](std::int64_t group, int) {
    const auto first = static_cast<std::size_t>(group * together);
    const std::size_t end = std::min(static_cast<std::size_t>(args.rows), first + static_cast<std::size_t>(together));
    if (products != nullptr) {
      for (std::size_t t = first; t < end; ++t) Coefficients(args, t, products + t * (outputs + 1));
      kernels_.balance(args.comb_out + first * copies * copies, end - first, args.copies, args.sinkhorn_iters,
                       args.hc_eps);
    }
    for (std::size_t t = first; args.x != nullptr && t < end; ++t) {
      BFloat16* x = args.x + t * dim;
      kernels_.collapse(args.h + t * length, dim, args.copies, args.pre_in + t * copies, x, dim);
      if (args.norm != nullptr) NormRow(x, args.norm, args.norm_eps, dim);
    }
  });
}

void CpuBackend::MeanCopies(const MeanCopiesArgs& args) {
  const auto dim = static_cast<std::size_t>(args.dim), copies = static_cast<std::size_t>(args.copies);
  std::array<float, kMaxCopies> share{};
  // A power of two of copies, so that scaling before the sum is exact; other counts round once more.
  share.fill(1.0f / static_cast<float>(args.copies));
  for (std::int64_t t = 0; t < args.rows; ++t) {
    kernels_.collapse(args.h + static_cast<std::size_t>(t) * copies * dim, dim, args.copies, share.data(),
                      args.out + t * args.out_stride, dim);
  }
}

void CpuBackend::EngramAhead(const EngramGatherArgs& args) {
  if (engram_on_disk_) AskForRows(args);
}

void CpuBackend::EngramGather(const EngramGatherArgs& args) {
  const auto dim = static_cast<std::size_t>(args.dim);
  const auto columns = static_cast<std::size_t>(args.columns);
  team_.Run(args.rows, 4.0 * args.rows * args.columns * args.dim, [&](std::int64_t t, int) {
    for (std::size_t i = static_cast<std::size_t>(t) * columns; i < static_cast<std::size_t>(t + 1) * columns; ++i) {
      const auto row = static_cast<std::size_t>(args.row_numbers[i]);
      kernels_.decode_fp8(args.codes + row * dim, args.scales + row * (dim / 32), args.out + i * dim, dim);
    }
  });
}

void CpuBackend::EngramMix(const EngramMixArgs& args) {
  const auto dim = static_cast<std::size_t>(args.dim), copies = static_cast<std::size_t>(args.copies);
  const float inverse_root_dim = static_cast<float>(1.0 / std::sqrt(static_cast<double>(args.dim)));
  const auto inverse_rms = [&](const BFloat16* x) {
    return 1.0f / std::sqrt(kernels_.sum_squares(x, dim) / static_cast<float>(dim) + args.eps);
  };
  team_.Run(args.step.rows, 16.0 * args.step.rows * static_cast<double>(copies * dim), [&](std::int64_t t, int) {
    if (args.step.image_rows != nullptr && args.step.image_rows[t] != 0) return;  // gate 0
    const BFloat16* key_value = args.key_value + static_cast<std::size_t>(t) * (copies + 1) * dim;
    for (std::size_t c = 0; c < copies; ++c) {
      BFloat16* stream = args.h + (static_cast<std::size_t>(t) * copies + c) * dim;
      const BFloat16* key = key_value + c * dim;
      const float r = inverse_rms(stream) * inverse_rms(key);
      const float d =
          kernels_.dot4(stream, key, args.q_weight + c * dim, args.k_weight + c * dim, dim) * r * inverse_root_dim;
      const float gate = Sigmoid(std::copysign(std::sqrt(std::fmax(std::fabs(d), 1e-6f)), d));
      kernels_.add_scaled(stream, key_value + copies * dim, gate, dim);
    }
  });
}

}  // namespace galley::backend::cpu
