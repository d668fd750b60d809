// SPDX-License-Identifier: Apache-2.0
// The op vocabulary: what a model's forward pass is written in. One op is what a fast backend runs as one or a few
// launches, so ops are coarse. Arguments are plain structs of device addresses and sizes; T is the number of rows, D
// the hidden size, C the residual copies. Section numbers refer to the V4.1 specification. Rows of different sequences
// never see each other: the value of a row depends on that row's inputs and its sequence's history and state only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "galley/backend/memory_formats.h"
#include "galley/backend/sampling.h"
#include "galley/backend/step.h"
#include "galley/tensor/numeric.h"

namespace galley::backend {

enum class WeightFormat { kF32, kBF16, kFp8Block32, kMxfp4 };

// A weight matrix as stored: out[r] = sum_c w[r][c] * x[c].
struct Weight {
  WeightFormat format = WeightFormat::kBF16;
  std::int64_t rows = 0;  // outputs
  std::int64_t cols = 0;  // inputs
  const void* data = nullptr;
  // UE8M0. kFp8Block32: [ceil(rows / 32)][ceil(cols / 32)]; kMxfp4: [rows][cols / 32].
  const std::uint8_t* scales = nullptr;
};

// Rotation of the last `dims` values of a vector by position * frequency[i], adjacent values being (re, im) (2.5).
struct Rope {
  const float* frequencies = nullptr;  // [dims / 2]
  int dims = 0;
};

// h[row] = embedding of its token in every copy, pre[row] = (1, 0, …) (2.1).
struct EmbedArgs {
  StepView step;
  const BFloat16* table = nullptr;  // [V][D]
  int dim = 0;
  int copies = 0;
  BFloat16* h = nullptr;  // [T][C][D]
  float* pre = nullptr;   // [T][C]
};

// Hash parameters of one Engram layer (2.10); arrays of `columns` = (max_ngram - 1) * heads.
struct EngramHashView {
  const std::int64_t* multipliers = nullptr;  // [max_ngram]
  const std::int64_t* primes = nullptr;
  const std::int64_t* offsets = nullptr;
};

// Table rows of every token for every Engram layer; also records the compressed ids in the slot's ring (2.10).
struct EngramRowsArgs {
  StepView step;
  const std::int32_t* compressed_ids = nullptr;  // [V]
  std::int32_t pad = 0;                          // compressed id that stands for "no such token"
  Ring id_ring;                                  // one int32 a row; -1 = dead (image)
  int max_ngram = 0;
  int heads = 0;
  int layers = 0;
  const EngramHashView* hashes = nullptr;  // [layers], in host memory
  std::int32_t* rows = nullptr;            // [layers][T][columns]
};

// Dequantised table rows, one after the other: out[row] = [columns * dim] (2.10).
struct EngramGatherArgs {
  int rows = 0;
  int columns = 0;
  int dim = 0;
  const std::int32_t* row_numbers = nullptr;  // [T][columns]
  const std::uint8_t* codes = nullptr;        // e4m3 [table rows][dim]
  const std::uint8_t* scales = nullptr;       // UE8M0 [table rows][dim / 32]
  BFloat16* out = nullptr;                    // [T][columns * dim]
};

// h += gate * value, the gate from the match of h and key (2.10).
struct EngramMixArgs {
  StepView step;
  int dim = 0;
  int copies = 0;
  const BFloat16* key_value = nullptr;  // [T][C + 1][D]: one key per copy, then the value
  const BFloat16* q_weight = nullptr;   // [C][D]
  const BFloat16* k_weight = nullptr;   // [C][D]
  float eps = 0;
  BFloat16* h = nullptr;  // [T][C][D], updated
};

// One site of the hyper-connections (2.2). Each part runs when its inputs are given, in this order: expand the previous
// site's output into h; compute this site's coefficients from h; collapse h with `pre_in` and normalise.
struct MhcBoundaryArgs {
  int rows = 0;
  int dim = 0;
  int copies = 0;
  float norm_eps = 0;
  BFloat16* h = nullptr;  // [T][C][D], updated by expand
  // Expand.
  const BFloat16* y = nullptr;     // [T][D]
  const float* post_in = nullptr;  // [T][C]
  const float* comb_in = nullptr;  // [T][C][C], row = source copy, column = destination copy
  // Coefficients.
  const float* fn = nullptr;     // [C * (C + 2)][C * D]
  const float* base = nullptr;   // [C * (C + 2)]
  const float* scale = nullptr;  // [3]
  int sinkhorn_iters = 0;
  float hc_eps = 0;
  float* pre_out = nullptr;   // [T][C]; may not alias pre_in
  float* post_out = nullptr;  // [T][C]; may alias post_in
  float* comb_out = nullptr;  // [T][C][C]; may alias comb_in
  // Collapse and norm.
  const float* pre_in = nullptr;   // [T][C]
  const BFloat16* norm = nullptr;  // [D]; null: collapse only
  BFloat16* x = nullptr;           // [T][D]
};

// out[row] = mean over the copies of h (2.1, input of the draft head).
struct MeanCopiesArgs {
  int rows = 0;
  int dim = 0;
  int copies = 0;
  const BFloat16* h = nullptr;  // [T][C][D]
  BFloat16* out = nullptr;      // row r at out + r * out_stride
  std::int64_t out_stride = 0;  // in elements
};

// out = w x. FP8 and MXFP4 weights quantise x in groups of 32 first (2.3).
struct LinearArgs {
  int rows = 0;
  Weight weight;
  const BFloat16* x = nullptr;  // [T][weight.cols]
  BFloat16* out = nullptr;      // [T][weight.rows]
};

// Queries and the window record of every row (2.4).
struct AttnInArgs {
  StepView step;
  const BFloat16* x = nullptr;  // [T][D]
  Weight wq_a, wq_b, wkv;
  const BFloat16* q_norm = nullptr;
  const BFloat16* kv_norm = nullptr;
  int heads = 0;
  int head_dim = 0;
  float eps = 0;
  Rope rope;
  BFloat16* qr = nullptr;          // [T][q_lora_rank], normed
  BFloat16* q = nullptr;           // [T][heads][head_dim], rotated
  std::uint8_t* window = nullptr;  // [T][WindowRecordBytes(head_dim)]
};

// Latents and index keys of the groups that the step's rows complete, written into history blocks (2.7, 2.8). The
// inputs of an open group stay in the slot's ring: fp32 c then g, head_dim values each (ratio 2 only).
struct CompressArgs {
  StepView step;
  const BFloat16* x = nullptr;  // [T][D]
  Weight wkv, wgate;            // bf16; wgate unused for ratio 1
  const BFloat16* norm = nullptr;
  Weight index_wk;
  const BFloat16* index_norm = nullptr;
  float eps = 0;
  Rope rope;
  HistorySlab slab;
  Ring input_ring;
};

enum class CandidateRole {
  kNone,    // scores every visible entry
  kSource,  // scores every visible entry and publishes the best blocks of them
  kUser,    // scores only entries inside the published blocks
};

// Top-k entries of the compressed history for every row (2.8), in ascending order, padded with -1. Equal scores: the
// lower entry wins, everywhere.
struct IndexSelectArgs {
  StepView step;
  const BFloat16* x = nullptr;   // [T][D]
  const BFloat16* qr = nullptr;  // [T][q_lora_rank]
  Weight wq_b, weights_proj;
  int heads = 0;
  int topk = 0;
  Rope rope;
  HistorySlab slab;
  CandidateRole role = CandidateRole::kNone;
  int candidate_blocks = 0;
  int candidate_block_size = 0;
  std::int32_t* candidates = nullptr;  // [T][candidate_blocks], written by the source, read by users
  std::int32_t* list = nullptr;        // [T][topk]
  // Copies of the operands, for comparison with the goldens; usually null.
  BFloat16* query_copy = nullptr;  // [T][heads][index_dim]
  float* weight_copy = nullptr;    // [T][heads]
};

// Attention over the window and the selected entries, with sink; inverse RoPE on the result (2.4). Window rows of this
// step come from `window`, older ones from the ring; rows below the floor do not exist.
struct AttentionArgs {
  StepView step;
  const BFloat16* q = nullptr;           // [T][heads][head_dim]
  const std::uint8_t* window = nullptr;  // [T] records
  Ring ring;
  bool decoder_floor = false;  // which floor of the sequence table applies
  int window_size = 0;
  // Places that the window takes in the list of keys, which decides where blocks of 64 begin: min(window_size,
  // max(window_places, p + 1)). An engine passes window_size, so that a row does not depend on its prompt's length; the
  // official prefill of a prompt shorter than the window has as many places as the prompt has rows.
  int window_places = 0;
  int heads = 0;
  int head_dim = 0;
  const float* sink = nullptr;  // [heads]
  Rope rope;
  const std::int32_t* list = nullptr;  // [T][topk]; null: window only
  int topk = 0;
  HistorySlab slab;
  BFloat16* out = nullptr;             // [T][heads][head_dim]
  BFloat16* unrotated_copy = nullptr;  // the result before the inverse RoPE; usually null
};

// Stores the step's window records into the rings: the last ring.rows rows of every sequence. Runs after Attention.
struct WindowWriteArgs {
  StepView step;
  const std::uint8_t* window = nullptr;  // [T] records
  Ring ring;
};

// Grouped output projection: wo_a per group on unquantised input, then wo_b (2.4).
struct AttnOutArgs {
  int rows = 0;
  int groups = 0;
  const BFloat16* o = nullptr;  // [T][heads * head_dim]
  Weight wo_a;                  // [groups * o_lora_rank][heads * head_dim / groups]
  Weight wo_b;                  // [D][groups * o_lora_rank]
  BFloat16* y = nullptr;        // [T][D]
};

// Expert choice and weights (2.9). Experts of a row are listed in falling order of biased score; equal scores: lower
// id.
struct RouteArgs {
  StepView step;
  const BFloat16* x = nullptr;        // [T][D]
  Weight gate;                        // [experts][D]
  const float* bias = nullptr;        // [experts]
  const float* image_bias = nullptr;  // [experts]; null: images use `bias`
  int topk = 0;
  float temperature = 1;
  float scale = 1;
  std::int32_t* experts = nullptr;  // [T][topk]
  float* weights = nullptr;         // [T][topk]
};

struct ExpertWeights {
  Weight w1, w2, w3;
};

// Router and experts of a Moe that is still to come, see Backend::ForeseeMoe.
struct ForeseeArgs {
  int rows = 0;
  const BFloat16* x = nullptr;  // [T][D]
  Weight gate;
  const float* bias = nullptr;  // [experts]
  int topk = 0;
  float temperature = 1;
  const ExpertWeights* routed = nullptr;  // [experts], in host memory
  bool next = true;                       // of the next Moe; false: of the one behind it
};

// Selected experts and the shared one (2.9): fp32 sum over experts in ascending id, then shared.
struct MoeArgs {
  int rows = 0;
  const BFloat16* x = nullptr;            // [T][D]
  const std::int32_t* experts = nullptr;  // [T][topk]
  const float* weights = nullptr;         // [T][topk]
  int topk = 0;
  int expert_count = 0;
  const ExpertWeights* routed = nullptr;  // [expert_count], in host memory
  ExpertWeights shared;
  float swiglu_limit = 0;
  BFloat16* y = nullptr;  // [T][D]
};

// Window rows of the draft stages for committed positions, made from the main hidden (2.12): every stage's
// fp8(rope(RMS(wkv main_x))), main_x = RMS(main_proj main_hidden), stored into its ring.
struct DraftStageKv {
  Weight wkv;
  const BFloat16* kv_norm = nullptr;
  Ring ring;
};
struct DraftWindowArgs {
  StepView step;
  const BFloat16* main_hidden = nullptr;  // [T][targets * D]
  Weight main_proj;
  const BFloat16* main_norm = nullptr;
  int head_dim = 0;
  float eps = 0;
  Rope rope;
  int stages = 0;
  const DraftStageKv* stage = nullptr;  // [stages], in host memory
};

// Attention of a draft block (2.12): every row of a sequence sees the ring's rows of the window that ends before the
// block, in the order of position mod window_size and not below the decoder floor, then all rows of the block, later
// ones too.
struct DraftAttentionArgs {
  StepView step;                         // rows of a sequence are its block
  const BFloat16* q = nullptr;           // [T][heads][head_dim]
  const std::uint8_t* window = nullptr;  // [T] records of the block's rows
  Ring ring;
  int window_size = 0;
  int heads = 0;
  int head_dim = 0;
  const float* sink = nullptr;  // [heads]
  Rope rope;
  BFloat16* out = nullptr;  // [T][heads][head_dim]
};

// The Markov chain of a draft block (2.12): each token biases the logits of the next row, is drawn from them with the
// noise of its own position, and gets a confidence.
struct DraftChainArgs {
  int sequences = 0;
  int block = 0;  // rows of a sequence
  int dim = 0;
  const std::int32_t* first_tokens =
      nullptr;                           // [sequences], in host memory: the tokens already chosen before the block
  const SampleParams* params = nullptr;  // [sequences], in host memory; position: of the first drafted token
  const BFloat16* x = nullptr;           // [sequences * block][D], collapsed, before the norm
  Weight embed, head;                    // bf16 [V][rank]
  Weight confidence;                     // bf16 [1][D + rank]
  float* logits = nullptr;               // [sequences * block][V], the bias is added
  std::int32_t* tokens = nullptr;        // [sequences][block]
  float* confidences = nullptr;          // [sequences][block], logits of acceptance
};

// fp32 logits of the listed rows from the collapsed stream (2.1).
struct HeadArgs {
  int dim = 0;
  int count = 0;
  const std::int32_t* row_list = nullptr;  // [count], in host memory; null: 0 … count - 1
  const BFloat16* x = nullptr;             // [T][D], collapsed, before the norm
  const BFloat16* norm = nullptr;
  float eps = 0;
  Weight head;              // bf16 [V][D]
  float* logits = nullptr;  // [count][V]
};

// Tokens drawn from rows of logits by the rule of sampling.h. The result is in host memory when the call returns; so is
// everything but the logits.
struct DrawArgs {
  int count = 0;
  int vocab = 0;
  const float* logits = nullptr;          // [rows][vocab]; they stay as they are
  const DrawRequest* requests = nullptr;  // [count]
  DrawnToken* drawn = nullptr;            // [count]
  RankedToken* ranked = nullptr;          // [count][kAlternativesMax]; null when no request asks for alternatives
};

// out[i] = in[row_list[i]]; rows of `row_bytes` bytes.
struct GatherRowsArgs {
  int count = 0;
  const std::int32_t* row_list = nullptr;  // [count], in host memory
  std::size_t row_bytes = 0;
  const void* in = nullptr;
  void* out = nullptr;
};

}  // namespace galley::backend
