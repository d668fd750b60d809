// SPDX-License-Identifier: Apache-2.0
#include "op_cases.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "galley/tensor/quantize.h"

namespace galley::conformance {
namespace {

using backend::WeightFormat;
constexpr auto kFp8 = WeightFormat::kFp8Block32, kFp4 = WeightFormat::kMxfp4, kBf16 = WeightFormat::kBF16;

constexpr double kBf16Limit = 4e-3;       // one rounding in a few falls the other way
constexpr double kFloatLimit = 2e-5;      // fp32 sums in another order
constexpr double kQuantizedLimit = 2e-2;  // such a rounding before a quantiser moves a value by a step of its grid

std::size_t Size(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

// Rows of a step: sequences of given starts and lengths, with slots and blocks in an order of their own.
struct StepData {
  backend::StepView view;
  std::vector<backend::SequenceEntry> table;
  std::vector<std::int32_t> positions, blocks;
  int slots = 0, block_count = 0;
};
struct SequenceShape {
  int start, rows;
};

StepData MakeStep(OpRig& rig, const std::vector<SequenceShape>& sequences, int vocab, bool images = false) {
  StepData step;
  std::vector<std::int32_t> tokens, row_sequence;
  std::vector<std::uint8_t> image_rows;
  step.slots = static_cast<int>(sequences.size()) + 1;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const SequenceShape& shape = sequences[s];
    step.table.push_back({.slot = static_cast<std::int32_t>(sequences.size() - s),
                          .first_row = static_cast<std::int32_t>(tokens.size()),
                          .rows = shape.rows,
                          .start = shape.start,
                          .block_offset = static_cast<std::int32_t>(step.blocks.size()),
                          .encoder_floor = shape.start > 300 ? shape.start - 40 : 0,
                          .decoder_floor = shape.start > 20 ? shape.start - 10 : 0});
    for (int b = 0; b <= (shape.start + shape.rows) / backend::kBlockTokens; ++b) {
      step.blocks.push_back(step.block_count++);
    }
    for (int i = 0; i < shape.rows; ++i) {
      tokens.push_back(rig.Integer(0, vocab - 1));
      step.positions.push_back(shape.start + i);
      row_sequence.push_back(static_cast<std::int32_t>(s));
      image_rows.push_back(rig.Integer(0, 4) == 0 ? 1 : 0);
    }
  }
  std::reverse(step.blocks.begin(), step.blocks.end());
  step.view = {.rows = static_cast<int>(tokens.size()),
               .sequences = static_cast<int>(sequences.size()),
               .tokens = rig.Place(tokens),
               .positions = rig.Place(step.positions),
               .row_sequence = rig.Place(row_sequence),
               .image_rows = images ? rig.Place(image_rows) : nullptr,
               .table = rig.Place(step.table),
               .blocks = rig.Place(step.blocks)};
  return step;
}

backend::Rope MakeRope(OpRig& rig) {
  std::vector<float> frequencies;
  for (int i = 0; i < 32; ++i) frequencies.push_back(std::pow(10000.0f, -static_cast<float>(i) / 32.0f));
  return {.frequencies = rig.Place(frequencies), .dims = 64};
}

std::byte* Bytes(void* memory) {
  return static_cast<std::byte*>(memory);
}
// A ring of `rows` rows in each slot of `memory`.
backend::Ring RingOf(void* memory, int rows, std::size_t row_bytes) {
  return {.base = Bytes(memory), .slot_bytes = Size(rows) * row_bytes, .rows = rows, .row_bytes = row_bytes};
}

std::vector<std::uint8_t> RandomRecords(OpRig& rig, int count, int head_dim) {
  std::vector<std::uint8_t> bytes;
  std::vector<float> values(Size(head_dim));
  for (int i = 0; i < count; ++i) {
    for (float& v : values) v = rig.Normal();
    std::vector<std::uint8_t> record(backend::WindowRecordBytes(head_dim));
    QuantizeFp8(values, record.data(), record.data() + head_dim);
    bytes.insert(bytes.end(), record.begin(), record.end());
  }
  return bytes;
}

// A slab whose every entry holds quantised random values, as bytes.
std::vector<std::uint8_t> RandomSlab(OpRig& rig, backend::HistorySlab shape, int blocks) {
  std::vector<std::uint8_t> bytes(Size(blocks) * shape.block_bytes());
  shape.base = reinterpret_cast<std::byte*>(bytes.data());
  std::vector<float> latent(Size(shape.latent_dim)), key(Size(shape.index_dim));
  for (std::int32_t b = 0; b < blocks; ++b) {
    for (std::int64_t j = 0; j < shape.entries(); ++j) {
      for (float& v : latent) v = rig.Normal();
      for (float& v : key) v = rig.Normal();
      const backend::HistoryEntry entry = backend::EntryAt(shape, &b, j);
      QuantizeFp4Kv(latent, entry.latent, entry.latent_scales);
      QuantizeFp4Index(key, entry.key, entry.key_scales);
    }
  }
  return bytes;
}

void Linear(OpRig& rig, WeightFormat format, int rows, std::int64_t out, std::int64_t in) {
  const backend::Weight weight = rig.Matrix(format, out, in);
  rig.backend().Linear({.rows = rows,
                        .weight = weight,
                        .x = rig.Normals(Size(rows * in)),
                        .out = rig.Out<BFloat16>("out", Size(rows), Size(out), Check::kBFloat16, kBf16Limit)});
}

void Embed(OpRig& rig) {
  const StepData step = MakeStep(rig, {{0, 5}, {9, 2}}, 50);
  rig.backend().Embed({.step = step.view,
                       .table = rig.Normals(50 * 96),
                       .dim = 96,
                       .copies = 4,
                       .h = rig.Out<BFloat16>("h", 7, 4 * 96, Check::kExact),
                       .pre = rig.Out<float>("pre", 7, 4, Check::kExact)});
}

void EngramRows(OpRig& rig) {
  constexpr int kVocab = 60, kNgram = 4, kHeads = 3, kColumns = 9, kRing = 5;
  const StepData step = MakeStep(rig, {{0, 4}, {7, 12}, {3, 1}}, kVocab, true);
  std::vector<std::int32_t> ids, ring;
  for (int i = 0; i < kVocab; ++i) ids.push_back(rig.Integer(0, 30));
  for (int i = 0; i < step.slots * kRing; ++i) ring.push_back(rig.Integer(-1, 30));
  std::vector<std::int64_t> multipliers, primes, offsets;
  for (int i = 0; i < kNgram; ++i) multipliers.push_back(2 * rig.Integer(1, 1 << 28) + 1);
  for (int i = 0; i < kColumns; ++i) primes.push_back(97 + 2 * i), offsets.push_back(200 * i);
  const backend::EngramHashView hash{rig.Place(multipliers), rig.Place(primes), rig.Place(offsets)};
  const std::vector<backend::EngramHashView> hashes = {hash, hash};
  auto* memory = rig.InOut("ring", ring, kRing, Check::kExact);
  rig.backend().EngramRows({.step = step.view,
                            .compressed_ids = rig.Place(ids),
                            .pad = 7,
                            .id_ring = RingOf(memory, kRing, 4),
                            .max_ngram = kNgram,
                            .heads = kHeads,
                            .layers = 2,
                            .hashes = hashes.data(),
                            .rows = rig.Out<std::int32_t>("rows", 2 * Size(step.view.rows), kColumns, Check::kExact)});
}

void EngramGatherAndMix(OpRig& rig, int rows, int dim) {
  constexpr int kColumns = 6, kHeadDim = 64, kTable = 40;
  std::vector<std::uint8_t> codes, scales;
  for (int i = 0; i < kTable * kHeadDim; ++i) codes.push_back(EncodeE4M3(rig.Normal() * 10));
  for (int i = 0; i < kTable * kHeadDim / 32; ++i) scales.push_back(static_cast<std::uint8_t>(rig.Integer(120, 126)));
  std::vector<std::int32_t> numbers;
  for (int i = 0; i < rows * kColumns; ++i) numbers.push_back(rig.Integer(0, kTable - 1));
  rig.backend().EngramGather({.rows = rows,
                              .columns = kColumns,
                              .dim = kHeadDim,
                              .row_numbers = rig.Place(numbers),
                              .codes = rig.Place(codes),
                              .scales = rig.Place(scales),
                              .out = rig.Out<BFloat16>("values", Size(rows), kColumns * kHeadDim, Check::kExact)});
  const StepData step = MakeStep(rig, {{0, rows}}, 10, true);
  std::vector<BFloat16> h(Size(rows * 4 * dim));
  for (BFloat16& v : h) v = ToBFloat16(rig.Normal());
  rig.backend().EngramMix({.step = step.view,
                           .dim = dim,
                           .copies = 4,
                           .key_value = rig.Normals(Size(rows * 5 * dim)),
                           .q_weight = rig.Normals(Size(4 * dim)),
                           .k_weight = rig.Normals(Size(4 * dim)),
                           .eps = 1e-20f,
                           .h = rig.InOut("h", h, Size(4 * dim), Check::kBFloat16, kBf16Limit)});
}

// `part`: 0 everything, 1 expand only, 2 coefficients and collapse without expand, 3 collapse without norm.
void Mhc(OpRig& rig, int rows, int dim, int part) {
  const auto t = Size(rows), d = Size(dim);
  std::vector<BFloat16> h(t * 4 * d);
  for (BFloat16& v : h) v = ToBFloat16(rig.Normal());
  backend::MhcBoundaryArgs args{.rows = rows, .dim = dim, .copies = 4, .norm_eps = 1e-20f};
  args.h = rig.InOut("h", h, 4 * d, Check::kBFloat16, kBf16Limit);
  auto* post = rig.Floats(t * 4);
  auto* comb = rig.Floats(t * 16, 0.5f);
  if (part != 2) args.y = rig.Normals(t * d), args.post_in = post, args.comb_in = comb;
  if (part == 0 || part == 2) {
    args.fn = rig.Floats(24 * 4 * d, 1.0f / std::sqrt(4.0f * static_cast<float>(dim)));
    args.base = rig.Floats(24);
    args.scale = rig.Floats(3);
    args.sinkhorn_iters = 20;
    args.hc_eps = 1e-6f;
    args.pre_out = rig.Out<float>("pre", t, 4, Check::kFloat, 1e-4);
    args.post_out = rig.Out<float>("post", t, 4, Check::kFloat, 1e-4);
    args.comb_out = rig.Out<float>("comb", t, 16, Check::kFloat, 1e-4);
  }
  if (part != 1) {
    args.pre_in = rig.Floats(t * 4);
    args.x = rig.Out<BFloat16>("x", t, d, Check::kBFloat16, kBf16Limit);
    if (part != 3) args.norm = rig.Normals(d);
  }
  rig.backend().MhcBoundary(args);
}

void MeanAndGather(OpRig& rig) {
  constexpr int kRows = 5, kDim = 72;
  rig.backend().MeanCopies({.rows = kRows,
                            .dim = kDim,
                            .copies = 4,
                            .h = rig.Normals(kRows * 4 * kDim),
                            .out = rig.Out<BFloat16>("mean", kRows, 2 * kDim, Check::kBFloat16, kBf16Limit),
                            .out_stride = 2 * kDim});
  const std::vector<std::int32_t> list = {4, 0, 2};
  rig.backend().GatherRows({.count = 3,
                            .row_list = list.data(),
                            .row_bytes = kDim * 2,
                            .in = rig.Normals(kRows * kDim),
                            .out = rig.Out<BFloat16>("gathered", 3, kDim, Check::kExact)});
}

void AttnIn(OpRig& rig, const std::vector<SequenceShape>& sequences, int dim, int rank, int heads) {
  const StepData step = MakeStep(rig, sequences, 10);
  const auto t = Size(step.view.rows);
  rig.backend().AttnIn({.step = step.view,
                        .x = rig.Normals(t * Size(dim)),
                        .wq_a = rig.Matrix(kFp8, rank, dim),
                        .wq_b = rig.Matrix(kFp8, heads * 512, rank),
                        .wkv = rig.Matrix(kFp8, 512, dim),
                        .q_norm = rig.Normals(Size(rank)),
                        .kv_norm = rig.Normals(512),
                        .heads = heads,
                        .head_dim = 512,
                        .eps = 1e-20f,
                        .rope = MakeRope(rig),
                        .qr = rig.Out<BFloat16>("qr", t, Size(rank), Check::kBFloat16, kBf16Limit),
                        .q = rig.Out<BFloat16>("q", t, Size(heads * 512), Check::kBFloat16, kQuantizedLimit),
                        .window = rig.Out<std::uint8_t>("window", t, 528, Check::kList, 0.02)});
}

void Compress(OpRig& rig, const std::vector<SequenceShape>& sequences, int dim, int ratio) {
  const StepData step = MakeStep(rig, sequences, 10);
  backend::HistorySlab slab{.ratio = ratio, .latent_dim = 512, .index_dim = 128};
  constexpr int kRing = 7;
  std::vector<float> inputs(Size(step.slots * kRing) * 1024);
  for (float& v : inputs) v = rig.Normal();
  const std::vector<std::uint8_t> bytes = RandomSlab(rig, slab, step.block_count);
  slab.base = Bytes(rig.InOut("history", bytes, slab.block_bytes(), Check::kList, 0.02));
  const bool pairs = ratio == 2;
  auto* ring = rig.InOut("inputs", inputs, 1024, Check::kFloat, kFloatLimit);
  rig.backend().Compress({.step = step.view,
                          .x = rig.Normals(Size(step.view.rows * dim)),
                          .wkv = rig.Matrix(kBf16, 512, dim),
                          .wgate = pairs ? rig.Matrix(kBf16, 512, dim) : backend::Weight{},
                          .norm = rig.Normals(512),
                          .index_wk = rig.Matrix(kBf16, 128, 512),
                          .index_norm = rig.Normals(128),
                          .eps = 1e-20f,
                          .rope = MakeRope(rig),
                          .slab = slab,
                          .input_ring = RingOf(ring, kRing, 4096)});
}

struct IndexShape {
  std::vector<SequenceShape> sequences;
  int heads, topk, ratio, blocks;
  backend::CandidateRole role;
};
void IndexSelect(OpRig& rig, const IndexShape& shape) {
  constexpr int kRank = 64, kDim = 96;
  const StepData step = MakeStep(rig, shape.sequences, 10);
  const auto t = Size(step.view.rows);
  backend::HistorySlab slab{.ratio = shape.ratio, .latent_dim = 512, .index_dim = 128};
  slab.base = Bytes(rig.Place(RandomSlab(rig, slab, step.block_count)));
  std::int32_t* candidates = nullptr;
  if (shape.role == backend::CandidateRole::kUser) {
    std::vector<std::int32_t> blocks(t * Size(shape.blocks), -1);
    for (std::size_t row = 0; row < t; ++row) {
      // Every second block from the newest one down, in ascending order.
      const int visible = (step.positions[row] + 1) / shape.ratio, last = (visible + 7) / 8 - 1;
      std::vector<std::int32_t> chosen;
      for (int b = last; b >= 0 && static_cast<int>(chosen.size()) < shape.blocks; b -= 2) chosen.push_back(b);
      std::reverse(chosen.begin(), chosen.end());
      std::copy(chosen.begin(), chosen.end(), blocks.begin() + static_cast<std::ptrdiff_t>(row * Size(shape.blocks)));
    }
    candidates = rig.Place(blocks);
  } else if (shape.role == backend::CandidateRole::kSource) {
    candidates = rig.Out<std::int32_t>("candidates", t, Size(shape.blocks), Check::kList, 0.01);
  }
  rig.backend().IndexSelect(
      {.step = step.view,
       .x = rig.Normals(t * kDim),
       .qr = rig.Normals(t * kRank),
       .wq_b = rig.Matrix(kFp8, shape.heads * 128, kRank),
       .weights_proj = rig.Matrix(kBf16, shape.heads, kDim),
       .heads = shape.heads,
       .topk = shape.topk,
       .rope = MakeRope(rig),
       .slab = slab,
       .role = shape.role,
       .candidate_blocks = shape.blocks,
       .candidate_block_size = 8,
       .candidates = candidates,
       .list = rig.Out<std::int32_t>("list", t, Size(shape.topk), Check::kList, 0.02),
       .query_copy = rig.Out<BFloat16>("query", t, Size(shape.heads * 128), Check::kBFloat16, kQuantizedLimit),
       .weight_copy = rig.Out<float>("weight", t, Size(shape.heads), Check::kFloat, kBf16Limit)});
}

void Attention(OpRig& rig, const std::vector<SequenceShape>& sequences, int heads, int topk, int ratio, bool decoder) {
  const StepData step = MakeStep(rig, sequences, 10);
  const auto t = Size(step.view.rows);
  constexpr int kRing = 133;
  const backend::Ring ring = RingOf(rig.Place(RandomRecords(rig, step.slots * kRing, 512)), kRing, 528);
  backend::HistorySlab slab{.ratio = ratio, .latent_dim = 512, .index_dim = 128};
  std::vector<std::int32_t> list(t * Size(topk), -1);
  if (topk > 0) {
    slab.base = Bytes(rig.Place(RandomSlab(rig, slab, step.block_count)));
    for (std::size_t row = 0; row < t; ++row) {
      const int visible = (step.positions[row] + 1) / ratio, stride = std::max(1, visible / topk);
      for (int i = 0; i < topk && i * stride < visible; ++i) list[row * Size(topk) + Size(i)] = i * stride;
    }
  }
  rig.backend().Attention(
      {.step = step.view,
       .q = rig.Normals(t * Size(heads * 512)),
       .window = rig.Place(RandomRecords(rig, step.view.rows, 512)),
       .ring = ring,
       .decoder_floor = decoder,
       .window_size = 128,
       .window_places = 128,
       .heads = heads,
       .head_dim = 512,
       .sink = rig.Floats(Size(heads)),
       .rope = MakeRope(rig),
       .list = topk > 0 ? rig.Place(list) : nullptr,
       .topk = topk,
       .slab = slab,
       .out = rig.Out<BFloat16>("out", t, Size(heads * 512), Check::kBFloat16, kBf16Limit),
       .unrotated_copy = rig.Out<BFloat16>("unrotated", t, Size(heads * 512), Check::kBFloat16, kBf16Limit)});
  const std::vector<std::uint8_t> before(Size(step.slots * kRing) * 528, 0x11);
  auto* written = rig.InOut("ring", before, 528, Check::kExact);
  rig.backend().WindowWrite({.step = step.view,
                             .window = rig.Place(RandomRecords(rig, step.view.rows, 512)),
                             .ring = RingOf(written, kRing, 528)});
}

void AttnOut(OpRig& rig, int rows, int groups, int width, int rank, int dim) {
  rig.backend().AttnOut({.rows = rows,
                         .groups = groups,
                         .o = rig.Normals(Size(rows * groups * width)),
                         .wo_a = rig.Matrix(kFp8, groups * rank, width),
                         .wo_b = rig.Matrix(kFp8, dim, groups * rank),
                         .y = rig.Out<BFloat16>("y", Size(rows), Size(dim), Check::kBFloat16, kQuantizedLimit)});
}

void RouteAndMoe(OpRig& rig, int rows, int experts, int topk, int dim, int inter) {
  const StepData step = MakeStep(rig, {{0, rows}}, 10, true);
  const auto t = Size(rows);
  const BFloat16* x = rig.Normals(t * Size(dim));
  rig.backend().Route({.step = step.view,
                       .x = x,
                       .gate = rig.Matrix(kBf16, experts, dim),
                       .bias = rig.Floats(Size(experts), 0.1f),
                       .image_bias = rig.Floats(Size(experts), 0.1f),
                       .topk = topk,
                       .temperature = 1,
                       .scale = 1.5f,
                       .experts = rig.Out<std::int32_t>("experts", t, Size(topk), Check::kList, 0.02),
                       .weights = rig.Out<float>("weights", t, Size(topk), Check::kFloat, 1e-2)});
  std::vector<std::int32_t> chosen;
  std::vector<float> weights;
  for (int i = 0; i < rows; ++i) {
    std::vector<std::int32_t> ids;
    while (static_cast<int>(ids.size()) < topk) {
      // Small ids more often, so that experts have few and many rows.
      const auto id = static_cast<std::int32_t>(static_cast<float>(experts) * std::pow(rig.Uniform(0, 1), 2.0f));
      if (id < experts && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
    chosen.insert(chosen.end(), ids.begin(), ids.end());
    for (int j = 0; j < topk; ++j) weights.push_back(rig.Uniform(0.05f, 0.6f));
  }
  const auto expert = [&](WeightFormat format, backend::MatrixUse use) -> backend::ExpertWeights {
    return {.w1 = rig.Matrix(format, inter, dim, use),
            .w2 = rig.Matrix(format, dim, inter, use),
            .w3 = rig.Matrix(format, inter, dim, use)};
  };
  std::vector<backend::ExpertWeights> routed;
  for (int e = 0; e < experts; ++e) routed.push_back(expert(kFp4, backend::MatrixUse::kChosen));
  const backend::ExpertWeights shared = expert(kFp8, backend::MatrixUse::kEveryStep);
  rig.backend().Moe({.rows = rows,
                     .x = x,
                     .experts = rig.Place(chosen),
                     .weights = rig.Place(weights),
                     .topk = topk,
                     .expert_count = experts,
                     .routed = routed.data(),
                     .shared = shared,
                     .swiglu_limit = 1.5f,
                     .y = rig.Out<BFloat16>("y", t, Size(dim), Check::kBFloat16, kQuantizedLimit)});
}

void Head(OpRig& rig, int vocab, int dim) {
  const std::vector<std::int32_t> rows = {3, 1};
  rig.backend().Head({.dim = dim,
                      .count = 2,
                      .row_list = rows.data(),
                      .x = rig.Normals(Size(4 * dim)),
                      .norm = rig.Normals(Size(dim)),
                      .eps = 1e-20f,
                      .head = rig.Matrix(kBf16, vocab, dim),
                      .logits = rig.Out<float>("logits", 2, Size(vocab), Check::kFloat, 1e-3)});
}

void Draft(OpRig& rig, int start, int window, int heads) {
  constexpr int kBlock = 5, kRing = 133, kDim = 96, kRank = 32, kVocab = 700;
  const StepData step = MakeStep(rig, {{start, kBlock}, {start / 3, kBlock}}, 10);
  const auto t = Size(step.view.rows);
  const std::vector<std::uint8_t> records = RandomRecords(rig, step.slots * kRing, 512);
  const backend::Ring ring = RingOf(rig.Place(records), kRing, 528);
  rig.backend().DraftAttention({.step = step.view,
                                .q = rig.Normals(t * Size(heads * 512)),
                                .window = rig.Place(RandomRecords(rig, step.view.rows, 512)),
                                .ring = ring,
                                .window_size = window,
                                .heads = heads,
                                .head_dim = 512,
                                .sink = rig.Floats(Size(heads)),
                                .rope = MakeRope(rig),
                                .out = rig.Out<BFloat16>("out", t, Size(heads * 512), Check::kBFloat16, kBf16Limit)});
  auto* target = rig.InOut("stage ring", records, 528, Check::kList, 0.02);
  const std::vector<backend::DraftStageKv> stages = {
      {.wkv = rig.Matrix(kFp8, 512, kDim), .kv_norm = rig.Normals(512), .ring = RingOf(target, kRing, 528)}};
  rig.backend().DraftWindow({.step = step.view,
                             .main_hidden = rig.Normals(t * 2 * kDim),
                             .main_proj = rig.Matrix(kFp8, kDim, 2 * kDim),
                             .main_norm = rig.Normals(kDim),
                             .head_dim = 512,
                             .eps = 1e-20f,
                             .rope = MakeRope(rig),
                             .stages = 1,
                             .stage = stages.data()});
  std::vector<float> logits(t * kVocab);
  for (float& v : logits) v = 2 * rig.Normal();
  const std::vector<std::int32_t> first = {4, 600};
  const std::vector<backend::SampleParams> params = {
      {.temperature = 0.8f, .top_k = 40, .top_p = 0.9f, .seed = 77, .position = start},
      {.temperature = start % 2 == 0 ? 0.0f : 1.0f, .top_p = 0.7f, .min_p = 0.05f, .seed = 5, .position = 9}};
  rig.backend().DraftChain({.sequences = 2,
                            .block = kBlock,
                            .dim = kDim,
                            .first_tokens = first.data(),
                            .params = params.data(),
                            .x = rig.Normals(t * kDim),
                            .embed = rig.Matrix(kBf16, kVocab, kRank),
                            .head = rig.Matrix(kBf16, kVocab, kRank),
                            .confidence = rig.Matrix(kBf16, 1, kDim + kRank),
                            .logits = rig.InOut("logits", logits, kVocab, Check::kFloat, kFloatLimit),
                            .tokens = rig.Out<std::int32_t>("tokens", 2, kBlock, Check::kExact),
                            .confidences = rig.Out<float>("confidences", 2, kBlock, Check::kFloat, 1e-4)});
}

std::vector<OpCase> MakeCases() {
  std::vector<OpCase> cases;
  const auto add = [&cases](std::string name, std::function<void(OpRig&)> run) {
    cases.push_back({std::move(name), std::move(run)});
  };
  struct LinearShape {
    WeightFormat format;
    const char* name;
    int rows;
    std::int64_t out, in;
  };
  constexpr LinearShape kLinears[] = {{kFp8, "fp8", 1, 64, 64},       {kFp8, "fp8", 7, 80, 96},
                                      {kFp8, "fp8", 19, 512, 5120},   {kFp8, "fp8", 64, 384, 8192},
                                      {kFp8, "fp8", 16, 272, 2048},   {kFp8, "fp8", 200, 128, 1280},
                                      {kBf16, "bf16", 40, 200, 1024}, {kFp8, "fp8", 130, 96, 2304},
                                      {kFp8, "fp8", 300, 256, 1280},  {kFp8, "fp8", 20, 8192, 320},
                                      {kFp8, "fp8", 50, 8192, 192},   {kFp8, "fp8", 200, 4096, 704},
                                      {kFp8, "fp8", 530, 1664, 1088}, {kFp8, "fp8", 600, 2000, 128},
                                      {kFp4, "fp4", 5, 48, 160},      {kFp4, "fp4", 33, 128, 5120},
                                      {kBf16, "bf16", 3, 33, 72},     {kBf16, "bf16", 21, 384, 5120},
                                      {kBf16, "bf16", 2, 40, 37},     {WeightFormat::kF32, "f32", 3, 40, 50}};
  for (const LinearShape& s : kLinears) {
    add(fmt::format("Linear_{}_{}x{}x{}", s.name, s.rows, s.out, s.in),
        [s](OpRig& rig) { Linear(rig, s.format, s.rows, s.out, s.in); });
  }
  AddDrawCases(cases);
  add("Embed", Embed);
  add("EngramRows", EngramRows);
  add("Engram_small", [](OpRig& rig) { EngramGatherAndMix(rig, 3, 64); });
  add("Engram_true", [](OpRig& rig) { EngramGatherAndMix(rig, 9, 5120); });
  for (const int part : {0, 1, 2, 3}) {
    add(fmt::format("Mhc_part{}_5x96", part), [part](OpRig& rig) { Mhc(rig, 5, 96, part); });
    add(fmt::format("Mhc_part{}_19x5120", part), [part](OpRig& rig) { Mhc(rig, 19, 5120, part); });
    // More rows than a block of threads takes, and than a launch of few.
    add(fmt::format("Mhc_part{}_70x640", part), [part](OpRig& rig) { Mhc(rig, 70, 640, part); });
    add(fmt::format("Mhc_part{}_1100x96", part), [part](OpRig& rig) { Mhc(rig, 1100, 96, part); });
  }
  add("Mhc_4200x96", [](OpRig& rig) { Mhc(rig, 4200, 96, 0); });  // several launches of many groups
  // Every kernel for many rows with all its blocks of threads, once with several tiles for some of them.
  add("Mhc_200_true", [](OpRig& rig) { Mhc(rig, 200, 5120, 0); });
  add("Mhc_970_true", [](OpRig& rig) { Mhc(rig, 970, 5120, 0); });
  add("Mhc_130x4096_true", [](OpRig& rig) { Mhc(rig, 130, 4096, 0); });
  add("MeanAndGather", MeanAndGather);
  add("AttnIn_small", [](OpRig& rig) { AttnIn(rig, {{0, 3}, {70, 6}}, 64, 64, 2); });
  add("AttnIn_rows1000", [](OpRig& rig) { AttnIn(rig, {{0, 900}, {7, 100}}, 64, 1024, 2); });
  add("AttnIn_rows12", [](OpRig& rig) { AttnIn(rig, {{3, 10}, {70, 2}}, 1024, 256, 2); });
  add("AttnIn_rows40", [](OpRig& rig) { AttnIn(rig, {{0, 30}, {7, 10}}, 1088, 384, 2); });
  add("AttnIn_true", [](OpRig& rig) { AttnIn(rig, {{100000, 2}, {5, 1}}, 5120, 1280, 64); });
  add("Compress_ratio1", [](OpRig& rig) { Compress(rig, {{0, 3}, {130, 9}}, 96, 1); });
  add("Compress_ratio2", [](OpRig& rig) { Compress(rig, {{0, 1}, {131, 20}, {6, 2}, {9, 1}}, 160, 2); });
  add("Compress_true", [](OpRig& rig) { Compress(rig, {{1, 4}}, 5120, 2); });
  using backend::CandidateRole;
  add("Index_none_small", [](OpRig& rig) {
    IndexSelect(rig, {{{0, 9}, {300, 5}}, 4, 32, 2, 6, CandidateRole::kNone});
  });
  add("Index_none_true", [](OpRig& rig) { IndexSelect(rig, {{{9000, 2}}, 32, 512, 2, 2048, CandidateRole::kNone}); });
  add("Index_heads64", [](OpRig& rig) { IndexSelect(rig, {{{1500, 3}}, 64, 128, 1, 40, CandidateRole::kNone}); });
  add("Index_source", [](OpRig& rig) {
    IndexSelect(rig, {{{0, 20}, {2500, 3}}, 32, 64, 1, 50, CandidateRole::kSource});
  });
  add("Index_user", [](OpRig& rig) { IndexSelect(rig, {{{0, 20}, {2500, 3}}, 32, 64, 1, 50, CandidateRole::kUser}); });
  // More scores than are chosen from at once.
  add("Index_source_long", [](OpRig& rig) {
    IndexSelect(rig, {{{9001, 5}, {130, 2}}, 8, 70, 1, 300, CandidateRole::kSource});
  });
  add("Index_user_long", [](OpRig& rig) {
    IndexSelect(rig, {{{9001, 2}, {0, 1}}, 8, 500, 1, 600, CandidateRole::kUser});
  });
  add("Attention_window", [](OpRig& rig) { Attention(rig, {{0, 5}, {200, 3}, {126, 4}}, 2, 0, 1, false); });
  add("Attention_entries", [](OpRig& rig) { Attention(rig, {{0, 3}, {77, 2}, {400, 140}}, 4, 32, 2, true); });
  add("Attention_rows70", [](OpRig& rig) { Attention(rig, {{0, 40}, {300, 30}}, 40, 64, 1, true); });
  add("Attention_heads72", [](OpRig& rig) { Attention(rig, {{0, 3}, {77, 2}, {400, 20}}, 72, 32, 2, true); });
  add("Attention_short", [](OpRig& rig) {
    Attention(rig, {{0, 60}, {1, 60}, {0, 63}, {9, 50}, {2, 60}}, 33, 0, 1, true);
  });
  add("Attention_true", [](OpRig& rig) { Attention(rig, {{3000, 2}, {600, 1}}, 64, 512, 1, false); });
  add("AttnOut_small", [](OpRig& rig) { AttnOut(rig, 3, 2, 512, 32, 64); });
  add("AttnOut_rows1100", [](OpRig& rig) { AttnOut(rig, 1100, 4, 128, 256, 1024); });
  add("AttnOut_rows12", [](OpRig& rig) { AttnOut(rig, 12, 2, 1024, 128, 384); });
  add("AttnOut_rows40", [](OpRig& rig) { AttnOut(rig, 40, 4, 1024, 256, 384); });
  add("AttnOut_rows200", [](OpRig& rig) { AttnOut(rig, 200, 2, 512, 128, 256); });
  add("AttnOut_true", [](OpRig& rig) { AttnOut(rig, 2, 8, 4096, 1024, 5120); });
  add("Moe_small", [](OpRig& rig) { RouteAndMoe(rig, 5, 6, 2, 64, 32); });
  add("Moe_rows40", [](OpRig& rig) { RouteAndMoe(rig, 40, 8, 3, 160, 96); });
  add("Moe_rows300", [](OpRig& rig) { RouteAndMoe(rig, 300, 12, 4, 256, 128); });
  add("Moe_rows700", [](OpRig& rig) { RouteAndMoe(rig, 700, 40, 3, 384, 384); });
  add("Moe_true", [](OpRig& rig) { RouteAndMoe(rig, 3, 10, 6, 5120, 2304); });
  add("Head_small", [](OpRig& rig) { Head(rig, 77, 64); });
  add("Head_wide", [](OpRig& rig) { Head(rig, 2000, 5120); });
  add("Head_tiled_true", [](OpRig& rig) { Head(rig, 32768, 1024); });
  add("Draft_early", [](OpRig& rig) { Draft(rig, 60, 128, 3); });
  add("Draft_late", [](OpRig& rig) { Draft(rig, 333, 128, 3); });
  add("Draft_heads40", [](OpRig& rig) { Draft(rig, 333, 128, 40); });
  return cases;
}

}  // namespace

const std::vector<OpCase>& OpCases() {
  static const std::vector<OpCase> cases = MakeCases();
  return cases;
}

}  // namespace galley::conformance
