// SPDX-License-Identifier: Apache-2.0
// Router and mixture of experts (specification 2.9): experts that somebody chose are run together, each on its own
// rows, in three loops over outputs.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "galley/backend/cpu/cpu_backend.h"
#include "galley/base/math.h"

namespace galley::backend::cpu {
namespace {

constexpr int kFewRows = 16;  // of a step that decodes
// Guesses from the layer before are read while they come true this often, over about so many layers: a wrong one keeps
// the disk from what the better guess, one attention later, asks for.
constexpr double kWorthReading = 0.7, kRemembered = 64;

// softplus as torch has it: above 20 the input itself.
float Softplus(float x) {
  return x > 20.0f ? x : std::log1p(std::exp(x));
}

// Chooses one row's experts from its scores (sqrt-softplus applied).
void Choose(const RouteArgs& args, const float* scores, const float* bias, float* biased, std::int32_t* experts,
            float* weights) {
  const auto count = static_cast<std::size_t>(args.gate.rows);
  for (std::size_t e = 0; e < count; ++e) {
    biased[e] = scores[e] + bias[e];
    // A NaN ranks with minus infinity, which keeps the order total; equals go in ascending order.
    if (std::isnan(biased[e])) biased[e] = -std::numeric_limits<float>::infinity();
  }
  float sum = 0;
  for (int i = 0; i < args.topk; ++i) {
    std::size_t best = count;
    for (std::size_t e = 0; e < count; ++e) {
      const auto end = experts + i;
      if (best != count && biased[e] <= biased[best]) continue;
      if (std::find(experts, end, static_cast<std::int32_t>(e)) == end) best = e;
    }
    experts[i] = static_cast<std::int32_t>(best);
    sum += scores[best];
  }
  for (int i = 0; i < args.topk; ++i) weights[i] = scores[experts[i]] / (sum + 1e-20f) * args.scale;
}

}  // namespace

void CpuBackend::Route(const RouteArgs& args) {
  memory_.Reset();
  const int rows = args.step.rows;
  const auto experts = static_cast<std::size_t>(args.gate.rows), topk = static_cast<std::size_t>(args.topk);
  auto* scores = memory_.Take<float>(static_cast<std::size_t>(rows) * experts * 2);
  float* biased = scores + static_cast<std::size_t>(rows) * experts;
  ProductArgs product =
      ProductOf(args.gate, PackFor(args.gate.format, false, args.x, args.gate.cols, rows, args.gate.cols), rows);
  product.out = scores;
  RunProducts({&product, 1});
  team_.Run(rows, 60.0 * rows * static_cast<double>(experts), [&](std::int64_t row, int) {
    const auto t = static_cast<std::size_t>(row);
    float* s = scores + t * experts;
    for (std::size_t e = 0; e < experts; ++e) s[e] = std::sqrt(Softplus(s[e] / args.temperature));
    const bool image = args.step.image_rows != nullptr && args.step.image_rows[t] != 0 && args.image_bias != nullptr;
    Choose(args, s, image ? args.image_bias : args.bias, biased + t * experts, args.experts + t * topk,
           args.weights + t * topk);
  });
}

// An expert with the rows that chose it. The shared one is the last batch and has them all.
struct CpuBackend::ExpertBatch {
  const ExpertWeights* expert = nullptr;
  int rows = 0;
  const std::int32_t* row_list = nullptr;  // [rows]; null: every row
  const float* row_weights = nullptr;      // [rows]; null: 1
  int first = 0;                           // of its rows among those of all batches
  PackedRows x;
  PackedRows activated;
};

std::span<CpuBackend::ExpertBatch> CpuBackend::GatherExperts(const MoeArgs& args) {
  const std::size_t choices = static_cast<std::size_t>(args.rows) * static_cast<std::size_t>(args.topk);
  auto* rows = memory_.Take<std::int32_t>(choices);
  auto* weights = memory_.Take<float>(choices);
  auto* begins = memory_.Take<std::int32_t>(static_cast<std::size_t>(args.expert_count) + 1);
  std::fill_n(begins, args.expert_count + 1, 0);
  for (std::size_t i = 0; i < choices; ++i) ++begins[args.experts[i] + 1];
  for (int e = 0; e < args.expert_count; ++e) begins[e + 1] += begins[e];
  auto* next = memory_.Take<std::int32_t>(static_cast<std::size_t>(args.expert_count));
  std::copy_n(begins, args.expert_count, next);
  for (std::size_t i = 0; i < choices; ++i) {
    const std::int32_t at = next[args.experts[i]]++;
    rows[at] = static_cast<std::int32_t>(i / static_cast<std::size_t>(args.topk));
    weights[at] = args.weights[i];
  }
  auto* batches = memory_.Take<ExpertBatch>(static_cast<std::size_t>(args.expert_count) + 1);
  std::size_t used = 0;
  for (int e = 0; e < args.expert_count; ++e) {
    const int count = begins[e + 1] - begins[e];
    if (count == 0) continue;
    batches[used++] = {.expert = &args.routed[e],
                       .rows = count,
                       .row_list = rows + begins[e],
                       .row_weights = weights + begins[e],
                       .first = begins[e],
                       .x = {},
                       .activated = {}};
  }
  ExpertBatch shared;
  shared.expert = &args.shared;
  shared.rows = args.rows;
  shared.first = static_cast<int>(choices);
  batches[used++] = shared;
  return {batches, used};
}

void CpuBackend::RunExperts(const MoeArgs& args, std::span<ExpertBatch> batches, BFloat16* results) {
  const PackedRows shared_x = PackForLayer(args.shared.w1, args.x, args.rows);
  const WeightFormat routed_format = batches[0].expert->w1.format;
  const PackedRows routed_x =
      routed_format == args.shared.w1.format ? shared_x : PackForLayer(batches[0].expert->w1, args.x, args.rows);
  const std::span products(memory_.Take<ProductArgs>(2 * batches.size()), 2 * batches.size());  // gate and up of each
  std::size_t rows_in_all = 0;
  for (std::size_t b = 0; b < batches.size(); ++b) {
    ExpertBatch& batch = batches[b];
    rows_in_all += static_cast<std::size_t>(batch.rows);
    batch.x = batch.row_list == nullptr ? shared_x : routed_x;
    const auto size = static_cast<std::size_t>(batch.rows) * static_cast<std::size_t>(batch.expert->w1.rows);
    for (const std::size_t up : {0u, 1u}) {
      ProductArgs& product = products[2 * b + up];
      product = ProductOf(up == 0 ? batch.expert->w1 : batch.expert->w3, batch.x, batch.rows);
      product.x_rows = batch.row_list;
      product.out = memory_.Take<float>(size);
    }
  }
  RunProducts(products);

  // Activation and packing, row by row.
  struct Row {
    const ExpertBatch* batch;
    const float* gate;
    const float* up;
    int index;
  };
  const std::span rows(memory_.Take<Row>(rows_in_all), rows_in_all);
  std::size_t row_count = 0;
  std::int64_t widest = 0;
  for (std::size_t b = 0; b < batches.size(); ++b) {
    ExpertBatch& batch = batches[b];
    const Weight& w2 = batch.expert->w2;
    widest = std::max(widest, w2.cols);
    batch.activated.stride = PackedStride(w2.cols);
    batch.activated.data = memory_.Take<std::byte>(batch.activated.stride * static_cast<std::size_t>(batch.rows));
    for (int i = 0; i < batch.rows; ++i)
      rows[row_count++] = {&batch, products[2 * b].out + i * w2.cols, products[2 * b + 1].out + i * w2.cols, i};
  }
  const auto count = static_cast<std::int64_t>(rows.size());
  worker_memory_.Reserve(static_cast<std::size_t>(widest) * sizeof(BFloat16));
  team_.Run(count, 8.0 * static_cast<double>(count) * static_cast<double>(widest), [&](std::int64_t i, int worker) {
    const Row& row = rows[static_cast<std::size_t>(i)];
    const ExpertBatch& batch = *row.batch;
    const Weight& w2 = batch.expert->w2;
    auto* values = reinterpret_cast<BFloat16*>(worker_memory_.of(worker));
    kernels_.swiglu(row.gate, row.up, args.swiglu_limit,
                    batch.row_weights == nullptr ? 1.0f : batch.row_weights[row.index], values,
                    static_cast<std::size_t>(w2.cols));
    kernels_.pack({.x = values,
                   .cols = w2.cols,
                   .quantise = IsQuantised(w2.format),
                   .packing = PackingOf(w2.format),
                   .out = const_cast<std::byte*>(batch.activated.data) +
                          batch.activated.stride * static_cast<std::size_t>(row.index)});
  });

  for (std::size_t b = 0; b < batches.size(); ++b) {
    const ExpertBatch& batch = batches[b];
    products[b] = ProductOf(batch.expert->w2, batch.activated, batch.rows);
    products[b].out_bf16 = results + static_cast<std::size_t>(batch.first * batch.expert->w2.rows);
  }
  RunProducts(products.first(batches.size()));
}

void CpuBackend::RunAsTheyCome(const MoeArgs& args, std::span<ExpertBatch> batches, BFloat16* results) {
  std::vector<ExpertBatch> pending(batches.begin(), batches.end()), ready;
  while (!pending.empty()) {
    ready.clear();
    std::erase_if(pending, [&](ExpertBatch batch) {
      const bool stored = batch.row_list != nullptr;  // the shared one is always in memory
      if (stored && !store_->Ready(*batch.expert)) return false;
      if (stored) batch.expert = &store_->Loaded(*batch.expert);
      ready.push_back(batch);
      return true;
    });
    if (ready.empty()) {
      store_->Wait(std::span(&pending.front().expert, 1));
    } else {
      RunExperts(args, ready, results);
    }
  }
}

void CpuBackend::RunStoredExperts(const MoeArgs& args, std::span<ExpertBatch> batches, BFloat16* results) {
  // A group takes at most half of the store, so that the next group is read while this one runs.
  std::vector<std::size_t> ends;
  std::size_t bytes = 0;
  for (std::size_t b = 0; b < batches.size(); ++b) {
    const std::size_t own = batches[b].row_list == nullptr ? 0 : ExpertRoom(BytesOf(*batches[b].expert));
    if (bytes + own > store_->budget() / 2 && bytes > 0) {
      ends.push_back(b);
      bytes = 0;
    }
    bytes += own;
  }
  ends.push_back(batches.size());
  const auto experts_of = [&](std::size_t begin, std::size_t end) {
    std::vector<const ExpertWeights*> experts;
    for (std::size_t b = begin; b < end; ++b) {
      if (batches[b].row_list != nullptr) experts.push_back(batches[b].expert);
    }
    return experts;
  };
  if (!expected_.empty()) {
    const std::vector<const ExpertWeights*> all = experts_of(0, batches.size());
    const auto right = std::count_if(expected_.begin(), expected_.end(), [&](const ExpertWeights* expert) {
      return std::find(all.begin(), all.end(), expert) != all.end();
    });
    early_right_ += (static_cast<double>(right) / static_cast<double>(expected_.size()) - early_right_) / kRemembered;
  }
  expected_ = std::exchange(foreseen_, {});
  const bool early = early_right_ >= kWorthReading;
  std::size_t begin = 0;
  for (std::size_t group = 0; group < ends.size(); ++group) {
    const std::vector<const ExpertWeights*> needed = experts_of(begin, ends[group]);
    store_->Start(needed);
    if (group + 1 < ends.size()) {
      store_->Prefetch(experts_of(ends[group], ends[group + 1]));
    } else if (early) {
      store_->Prefetch(expected_);
    }
    const std::span<ExpertBatch> own = batches.subspan(begin, ends[group] - begin);
    if (args.rows > kFewRows) store_->Wait(needed);  // so many rows are packed once
    RunAsTheyCome(args, own, results);
    begin = ends[group];
  }
}

void CpuBackend::ForeseeMoe(const ForeseeArgs& args) {
  if (store_ == nullptr || args.rows > kFewRows) return;  // many need nearly every expert, whichever they are
  memory_.Reset();
  const auto experts = static_cast<std::size_t>(args.gate.rows), topk = static_cast<std::size_t>(args.topk);
  auto* scores = memory_.Take<float>(static_cast<std::size_t>(args.rows) * experts);
  ProductArgs product = ProductOf(
      args.gate, PackFor(args.gate.format, false, args.x, args.gate.cols, args.rows, args.gate.cols), args.rows);
  product.out = scores;
  RunProducts({&product, 1});
  std::vector<std::int32_t> chosen(topk);
  std::vector<float> biased(experts), weights(topk);
  std::vector<const ExpertWeights*> guess;
  RouteArgs route;
  route.gate = args.gate;
  route.topk = args.topk;
  for (std::size_t t = 0; t < static_cast<std::size_t>(args.rows); ++t) {
    float* s = scores + t * experts;
    for (std::size_t e = 0; e < experts; ++e) s[e] = std::sqrt(Softplus(s[e] / args.temperature));
    Choose(route, s, args.bias, biased.data(), chosen.data(), weights.data());
    for (const std::int32_t e : chosen) guess.push_back(&args.routed[e]);
  }
  if (args.next) {
    store_->Prefetch(guess);
  } else {
    foreseen_ = std::move(guess);
  }
}

void CpuBackend::Moe(const MoeArgs& args) {
  memory_.Reset();
  const std::span<ExpertBatch> batches = GatherExperts(args);
  const auto dim = static_cast<std::size_t>(args.shared.w1.cols);
  const auto topk = static_cast<std::size_t>(args.topk), rows = static_cast<std::size_t>(args.rows);
  // Results of all batches, one row for each choice and then one for each row of the step.
  auto* results = memory_.Take<BFloat16>((rows * topk + rows) * dim);
  if (store_ == nullptr) {
    RunExperts(args, batches, results);
  } else {
    RunStoredExperts(args, batches, results);
  }

  // Where each row's results are, in ascending order of experts: batches are.
  auto* places = memory_.Take<std::int32_t>(rows * topk);
  auto* found = memory_.Take<std::int32_t>(rows);
  std::fill_n(found, rows, 0);
  for (const ExpertBatch& batch : batches) {
    for (int i = 0; batch.row_list != nullptr && i < batch.rows; ++i) {
      const auto row = static_cast<std::size_t>(batch.row_list[i]);
      places[row * topk + static_cast<std::size_t>(found[row]++)] = batch.first + i;
    }
  }
  worker_memory_.Reserve(dim * sizeof(float));
  team_.Run(args.rows, static_cast<double>(rows * (topk + 1) * dim), [&](std::int64_t row, int worker) {
    const auto t = static_cast<std::size_t>(row);
    auto* sum = reinterpret_cast<float*>(worker_memory_.of(worker));
    std::fill_n(sum, dim, 0.0f);
    for (std::size_t i = 0; i < topk; ++i)
      kernels_.accumulate(sum, results + static_cast<std::size_t>(places[t * topk + i]) * dim, dim);
    kernels_.accumulate(sum, results + (rows * topk + t) * dim, dim);
    kernels_.to_bf16(sum, args.y + t * dim, dim);
  });
}

}  // namespace galley::backend::cpu
