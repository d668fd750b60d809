// SPDX-License-Identifier: Apache-2.0
#include "galley/backend/cuda/draw_staging.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "galley/backend/cuda/device_memory.h"

namespace galley::backend::cuda {
namespace {

// Where each array begins in the packed bytes.
struct Layout {
  std::size_t changes = 0, words = 0, bytes = 0;
};

// Masks that several draws in a row share are there once.
template <typename Visit>
void ForMasks(const DrawArgs& args, Visit&& visit) {
  const std::uint32_t *allowed = nullptr, *repeated = nullptr;
  for (int i = 0; i < args.count; ++i) {
    const RowChanges& changes = args.requests[i].changes;
    visit(i, changes.allowed, changes.allowed == allowed, changes.repeated, changes.repeated == repeated);
    allowed = changes.allowed, repeated = changes.repeated;
  }
}

Layout LayoutOf(const DrawArgs& args) {
  std::size_t changes = 0, masks = 0;
  for (int i = 0; i < args.count; ++i) changes += args.requests[i].changes.logits.size();
  ForMasks(args, [&](int, const std::uint32_t* allowed, bool same_allowed, const std::uint32_t* repeated,
                     bool same_repeated) {
    masks += (allowed != nullptr && !same_allowed ? 1u : 0u) + (repeated != nullptr && !same_repeated ? 1u : 0u);
  });
  Layout layout;
  layout.changes = static_cast<std::size_t>(args.count) * sizeof(DrawRow);
  layout.words = layout.changes + changes * sizeof(LogitChange);
  layout.bytes = layout.words + masks * MaskWords(args.vocab) * sizeof(std::uint32_t);
  return layout;
}

void Pack(const DrawArgs& args, const Layout& layout, std::byte* to) {
  auto* rows = reinterpret_cast<DrawRow*>(to);
  auto* changes = reinterpret_cast<LogitChange*>(to + layout.changes);
  auto* words = reinterpret_cast<std::uint32_t*>(to + layout.words);
  const auto mask_words = static_cast<std::int32_t>(MaskWords(args.vocab));
  std::int32_t change = 0, word = 0, allowed_at = -1, repeated_at = -1;
  const auto place = [&](const std::uint32_t* mask) {
    if (mask == nullptr) return std::int32_t{-1};
    std::copy_n(mask, mask_words, words + word);
    return std::exchange(word, word + mask_words);
  };
  ForMasks(args, [&](int i, const std::uint32_t* allowed, bool same_allowed, const std::uint32_t* repeated,
                     bool same_repeated) {
    const DrawRequest& request = args.requests[i];
    const auto count = static_cast<std::int32_t>(request.changes.logits.size());
    if (!same_allowed) allowed_at = place(allowed);
    if (!same_repeated) repeated_at = place(repeated);
    rows[i] = {.params = request.params,
               .row = request.row,
               .given = request.given,
               .alternatives = request.alternatives,
               .allowed = allowed_at,
               .repeated = repeated_at,
               .changes = change,
               .change_count = count,
               .repetition = request.changes.repetition};
    std::ranges::copy(request.changes.logits, changes + change);
    change += count;
  });
}

bool HasFilters(const DrawRequest& r) {
  return r.params.top_k > 0 || r.params.top_p < 1.0f || r.alternatives > 0;
}
// Only a temperature.
bool IsPlain(const DrawRequest& r) {
  return !HasFilters(r) && !(r.params.min_p > 0) && r.changes.empty() && r.given < 0 && r.alternatives < 0;
}

Status Checked(cudaError_t code) {
  if (code == cudaSuccess) return {};
  return Err(DeviceError(code, "arguments of draws"));
}

}  // namespace

void ChooseForm(std::span<const DrawRequest> requests, DrawLaunch& launch) {
  launch.filters = std::ranges::any_of(requests, HasFilters);
  launch.plain = launch.vocab % 4 == 0 && std::ranges::all_of(requests, IsPlain);
}

DrawStaging::~DrawStaging() {
  if (copied_ != nullptr) cudaEventDestroy(copied_);
  if (copies_ != nullptr) cudaStreamDestroy(copies_);
}

Status DrawStaging::Reserve(std::size_t in_bytes, std::size_t out_bytes) {
  if (copies_ == nullptr) {
    RETURN_IF_ERROR(Checked(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking)));
    RETURN_IF_ERROR(Checked(cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming)));
  }
  if (packed_.bytes() < in_bytes) {
    const std::size_t bytes = std::max(in_bytes, 2 * packed_.bytes());
    packed_ = AllocateForCopies(bytes);
    ASSIGN_OR_RETURN(arguments_, AllocateDevice(bytes, "arguments of draws", copies_));
  }
  if (results_.bytes() < out_bytes) {
    constexpr HostWeights kResults = {"results of draws", "a lower --max-seqs"};
    ASSIGN_OR_RETURN(results_, AllocateHost(std::max(out_bytes, 2 * results_.bytes()), kResults, 0));
  }
  return {};
}

Result<DrawLaunch> DrawStaging::Upload(const DrawArgs& args, cudaStream_t stream) {
  const auto count = static_cast<std::size_t>(args.count);
  const Layout layout = LayoutOf(args);
  const std::size_t ranked = args.ranked == nullptr ? 0 : count * kAlternativesMax;
  RETURN_IF_ERROR(Reserve(layout.bytes, count * sizeof(DrawnToken) + ranked * sizeof(RankedToken)));
  Pack(args, layout, packed_.data());
  std::byte* const device = arguments_.data();
  RETURN_IF_ERROR(Checked(cudaMemcpyAsync(device, packed_.data(), layout.bytes, cudaMemcpyHostToDevice, copies_)));
  RETURN_IF_ERROR(Checked(cudaEventRecord(copied_, copies_)));
  RETURN_IF_ERROR(Checked(cudaStreamWaitEvent(stream, copied_)));
  auto* drawn = results_.as<DrawnToken>();
  DrawLaunch launch{.count = args.count,
                    .vocab = args.vocab,
                    .logits = args.logits,
                    .rows = reinterpret_cast<const DrawRow*>(device),
                    .words = reinterpret_cast<const std::uint32_t*>(device + layout.words),
                    .changes = reinterpret_cast<const LogitChange*>(device + layout.changes),
                    .drawn = drawn,
                    .ranked = reinterpret_cast<RankedToken*>(drawn + count)};
  ChooseForm({args.requests, count}, launch);
  return launch;
}

Status DrawStaging::Issue(const DrawArgs& args, cudaStream_t stream) {
  if (args.vocab > kDrawVocabMax) {
    return Err(ErrorCode::kUnsupported,
               fmt::format("the cuda backend draws from at most {} tokens, not {}; use --backend cpu", kDrawVocabMax,
                           args.vocab));
  }
  ASSIGN_OR_RETURN(const DrawLaunch launch, Upload(args, stream));
  DrawRows(launch, stream);
  return {};
}

void DrawStaging::Deliver(const DrawArgs& args) const {
  const auto count = static_cast<std::size_t>(args.count);
  const auto* drawn = results_.as<DrawnToken>();
  std::copy_n(drawn, count, args.drawn);
  if (args.ranked == nullptr) return;
  const auto* ranked = reinterpret_cast<const RankedToken*>(drawn + count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto wanted = static_cast<std::size_t>(std::max(args.requests[i].alternatives, 0));
    std::copy_n(ranked + i * kAlternativesMax, wanted, args.ranked + i * kAlternativesMax);
  }
}

}  // namespace galley::backend::cuda
