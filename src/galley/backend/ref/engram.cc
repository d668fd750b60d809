// SPDX-License-Identifier: Apache-2.0
// Engram: hashed n-gram rows, gathered from a table and added through a gate (specification 2.10).
#include <cmath>
#include <vector>

#include "galley/backend/ref/math.h"
#include "galley/backend/ref/matrix.h"
#include "galley/backend/ref/ref_backend.h"
#include "galley/tensor/numeric.h"
#include "galley/tensor/quantize.h"

namespace galley::backend {
namespace {

std::int32_t& IdAt(const EngramRowsArgs& args, std::int32_t slot, Position p) {
  return *reinterpret_cast<std::int32_t*>(args.id_ring.At(slot, p));
}

// Compressed ids of position p and the ones before it; from the first missing or dead one on, `pad`.
void History(const EngramRowsArgs& args, std::int32_t slot, Position p, std::vector<std::int64_t>& ids) {
  ids.assign(static_cast<std::size_t>(args.max_ngram), args.pad);
  for (int s = 0; s < args.max_ngram; ++s) {
    if (p < s) break;
    const std::int32_t id = IdAt(args, slot, p - s);
    if (id < 0) break;
    ids[static_cast<std::size_t>(s)] = id;
  }
}

void HashRow(const EngramRowsArgs& args, const EngramHashView& hash, const std::vector<std::int64_t>& ids,
             std::int32_t* out) {
  std::int64_t mixed = ids[0] * hash.multipliers[0];
  int column = 0;
  for (int s = 1; s < args.max_ngram; ++s) {
    mixed ^= ids[static_cast<std::size_t>(s)] * hash.multipliers[s];
    for (int head = 0; head < args.heads; ++head, ++column) {
      out[column] = static_cast<std::int32_t>(mixed % hash.primes[column] + hash.offsets[column]);
    }
  }
}

}  // namespace

void RefBackend::EngramRows(const EngramRowsArgs& args) {
  const std::int64_t columns = static_cast<std::int64_t>(args.max_ngram - 1) * args.heads;
  for (int t = 0; t < args.step.rows; ++t) {
    const std::int32_t slot = args.step.sequence_of(t).slot;
    const bool image = args.step.image_rows != nullptr && args.step.image_rows[t] != 0;
    IdAt(args, slot, args.step.positions[t]) = image ? -1 : args.compressed_ids[args.step.tokens[t]];
    History(args, slot, args.step.positions[t], engram_ids_);
    for (int layer = 0; layer < args.layers; ++layer) {
      HashRow(args, args.hashes[layer], engram_ids_,
              args.rows + (static_cast<std::int64_t>(layer) * args.step.rows + t) * columns);
    }
  }
}

void RefBackend::EngramGather(const EngramGatherArgs& args) {
  const auto dim = static_cast<std::size_t>(args.dim);
  std::vector<float> values(dim);
  const auto cells = static_cast<std::size_t>(args.rows) * static_cast<std::size_t>(args.columns);
  for (std::size_t i = 0; i < cells; ++i) {
    const auto row = static_cast<std::size_t>(args.row_numbers[i]);
    DequantizeFp8(args.codes + row * dim, args.scales + row * (dim / 32), values);
    ref::StoreBf16(values, args.out + i * dim);
  }
}

void RefBackend::EngramMix(const EngramMixArgs& args) {
  const auto dim = static_cast<std::size_t>(args.dim), copies = static_cast<std::size_t>(args.copies);
  const float inverse_root_dim = static_cast<float>(1.0 / std::sqrt(static_cast<double>(args.dim)));
  pool_.ParallelFor(args.step.rows, [&](std::int64_t t) {
    if (args.step.image_rows != nullptr && args.step.image_rows[t] != 0) return;  // gate 0
    const BFloat16* key_value = args.key_value + static_cast<std::size_t>(t) * (copies + 1) * dim;
    std::vector<float> h(dim), key(dim), value(dim), product(dim);
    ref::LoadBf16(key_value + copies * dim, value);
    for (std::size_t c = 0; c < copies; ++c) {
      BFloat16* stream = args.h + (static_cast<std::size_t>(t) * copies + c) * dim;
      ref::LoadBf16(stream, h);
      ref::LoadBf16(key_value + c * dim, key);
      for (std::size_t i = 0; i < dim; ++i) {
        product[i] = h[i] * (ToFloat(args.q_weight[c * dim + i]) * ToFloat(args.k_weight[c * dim + i]));
      }
      const float r = ref::InverseRms(h, args.eps) * ref::InverseRms(key, args.eps);
      const float d = ref::Dot(product.data(), key.data(), dim) * r * inverse_root_dim;
      const float gate = ref::Sigmoid(std::copysign(std::sqrt(std::fmax(std::fabs(d), 1e-6f)), d));
      for (std::size_t i = 0; i < dim; ++i) stream[i] = ToBFloat16(h[i] + gate * value[i]);
    }
  });
}

}  // namespace galley::backend
