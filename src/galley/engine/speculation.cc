// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/speculation.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "galley/base/check.h"
#include "galley/engine/loaded_model.h"

namespace galley::engine {
namespace {

constexpr std::pair<std::string_view, SpeculationMode> kModes[] = {
    {"auto", SpeculationMode::kAuto},           {"off", SpeculationMode::kOff},
    {"dspark", SpeculationMode::kDspark},       {"ngram", SpeculationMode::kNgram},
    {"rejection", SpeculationMode::kRejection},
};

// One for each sequence that may run, with room for a whole draft.
std::vector<Proposal> EmptyProposals(LoadedModel& loaded) {
  std::vector<Proposal> proposals(static_cast<std::size_t>(loaded.model().options().sequences_max));
  for (Proposal& proposal : proposals) {
    proposal.tokens.reserve(kDraftTokensMax);
    proposal.confidences.reserve(kDraftTokensMax);
  }
  return proposals;
}

class HeadDrafter final : public Drafter {
 public:
  explicit HeadDrafter(LoadedModel& loaded) : loaded_(loaded), proposals_(EmptyProposals(loaded)) {
    inputs_.reserve(proposals_.size());
  }

  [[nodiscard]] Result<std::span<Proposal>> Propose(std::span<const DraftAsk> asks) override {
    inputs_.clear();
    int depth = 0;
    for (const DraftAsk& ask : asks) {
      inputs_.push_back({.slot = ask.slot,
                         .position = ask.newest - 1,
                         .token = ask.output.back(),
                         .decoder_floor = ask.decoder_floor,
                         .sampling = ask.sampling});
      depth = std::max(depth, ask.most);
    }
    // One depth for all, and always the same where steps of every shape are recorded.
    depth = loaded_.backend().repeats_steps() ? 0 : std::min(depth, loaded_.config().dspark.block_size);
    ASSIGN_OR_RETURN(const std::span<const model::Draft> drafts,
                     loaded_.model().Drafts(inputs_, loaded_.state(), depth));
    CHECK(asks.size() <= proposals_.size()) << asks.size() << " sequences ask for drafts";
    for (std::size_t i = 0; i < asks.size(); ++i) {
      const auto count =
          static_cast<std::ptrdiff_t>(std::min(drafts[i].tokens.size(), static_cast<std::size_t>(asks[i].most)));
      proposals_[i].tokens.assign(drafts[i].tokens.begin(), drafts[i].tokens.begin() + count);
      proposals_[i].confidences.assign(drafts[i].confidences.begin(), drafts[i].confidences.begin() + count);
      proposals_[i].logits = drafts[i].logits;
    }
    return std::span(proposals_).first(asks.size());
  }

 private:
  LoadedModel& loaded_;
  std::vector<model::DraftInput> inputs_;
  std::vector<Proposal> proposals_;
};

class LookupDrafter final : public Drafter {
 public:
  LookupDrafter(LoadedModel& loaded, const LookupChances& chances)
      : chances_(chances), proposals_(EmptyProposals(loaded)) {}

  [[nodiscard]] Result<std::span<Proposal>> Propose(std::span<const DraftAsk> asks) override {
    CHECK(asks.size() <= proposals_.size()) << asks.size() << " sequences ask for drafts";
    for (std::size_t i = 0; i < asks.size(); ++i) ProposeByLookup(asks[i], chances_, proposals_[i]);
    return std::span(proposals_).first(asks.size());
  }

 private:
  const LookupChances& chances_;
  std::vector<Proposal> proposals_;
};

double ChanceOf(std::span<const backend::TokenChance> chances, TokenId id) {
  const auto found = std::lower_bound(chances.begin(), chances.end(), id,
                                      [](const backend::TokenChance& c, TokenId wanted) { return c.id < wanted; });
  return found != chances.end() && found->id == id ? found->probability : 0;
}

}  // namespace

std::optional<SpeculationMode> SpeculationModeFor(std::string_view name) {
  for (const auto& [known, mode] : kModes) {
    if (known == name) return mode;
  }
  return std::nullopt;
}

Result<SpeculationOptions> SpeculationOptions::Resolve(const model::Config& config) const {
  const bool head = config.dspark.n_stages > 0;
  const int depth = head ? std::min(config.dspark.block_size, kDraftTokensMax) : kDraftTokensMax;
  SpeculationOptions resolved = *this;
  if (mode == SpeculationMode::kAuto) {
    resolved.mode = head ? SpeculationMode::kDspark : SpeculationMode::kOff;
    resolved.lookup = head;
  }
  if (!head && (resolved.mode == SpeculationMode::kDspark || resolved.mode == SpeculationMode::kRejection)) {
    return Err(ErrorCode::kUnsupported, "this model has no draft head; use ngram or off", "speculation");
  }
  if (draft_tokens < 0 || draft_tokens > depth) {
    return Err(ErrorCode::kInvalidArgument, fmt::format("{} is outside 0 … {}", draft_tokens, depth), "draft_tokens");
  }
  if (!(fixed_accepted < 0 || fixed_accepted <= draft_tokens)) {  // NaN fails
    return Err(ErrorCode::kInvalidArgument,
               fmt::format("{} is more than the {} drafts of a step", fixed_accepted, draft_tokens), "fixed_accepted");
  }
  if (draft_tokens == 0) resolved.mode = SpeculationMode::kOff;
  if (resolved.mode == SpeculationMode::kOff) resolved.draft_tokens = 0;
  return resolved;
}

void SpeculationCounts::Add(int drafts, int verify, int accept) {
  if (drafts == 0) return;
  ++rounds;
  drafted += drafts;
  verified += verify;
  accepted += accept;
  for (int i = 0; i < verify; ++i) ++verified_at[static_cast<std::size_t>(i)];
  for (int i = 0; i < accept; ++i) ++accepted_at[static_cast<std::size_t>(i)];
}

void SpeculationCounts::Combine(const SpeculationCounts& other, int sign) {
  rounds += sign * other.rounds;
  drafted += sign * other.drafted;
  verified += sign * other.verified;
  accepted += sign * other.accepted;
  for (std::size_t i = 0; i < verified_at.size(); ++i) verified_at[i] += sign * other.verified_at[i];
  for (std::size_t i = 0; i < accepted_at.size(); ++i) accepted_at[i] += sign * other.accepted_at[i];
}

void ProposeByLookup(const DraftAsk& ask, const LookupChances& chances, Proposal& proposal) {
  proposal.matched = LookUpContinuation(ask.prompt, ask.output, ask.most, proposal.tokens).matched;
  proposal.confidences.clear();
  for (std::size_t i = 0; i < proposal.tokens.size(); ++i) {
    const double chance = std::clamp(chances.Next(proposal.matched + static_cast<int>(i)), 1e-3, 1 - 1e-3);
    proposal.confidences.push_back(static_cast<float>(std::log(chance / (1 - chance))));
  }
}

std::unique_ptr<Drafter> MakeDrafter(SpeculationMode mode, LoadedModel& loaded, const LookupChances& chances) {
  switch (mode) {
    case SpeculationMode::kDspark:
    case SpeculationMode::kRejection:
      return std::make_unique<HeadDrafter>(loaded);
    case SpeculationMode::kNgram:
      return std::make_unique<LookupDrafter>(loaded, chances);
    case SpeculationMode::kAuto:
    case SpeculationMode::kOff:
      break;
  }
  return nullptr;
}

Verdict AcceptOrRedraw(std::span<const backend::TokenChance> target, std::span<const backend::TokenChance> draft,
                       TokenId drafted, const backend::SampleParams& params) {
  CHECK(!target.empty()) << "nothing can be drawn";
  const double p = ChanceOf(target, drafted), q = ChanceOf(draft, drafted);
  if (backend::AcceptNoise(params.seed, params.position) * q < p) return {.id = drafted, .accepted = true};
  Verdict verdict{.id = target.front().id, .accepted = false};
  double winner = -1;
  for (const backend::TokenChance& chance : target) {
    const double excess = chance.probability - ChanceOf(draft, chance.id);
    if (excess <= 0) continue;
    const double score =
        excess / backend::SampleNoise(params.seed, params.position, chance.id, backend::NoiseStream::kResidual);
    if (score > winner) {
      winner = score;
      verdict.id = chance.id;
    }
  }
  return verdict;
}

int FixedAccepted(double fixed_accepted, std::uint64_t seed, Position position) {
  const double whole = std::floor(fixed_accepted);
  const bool one_more = backend::AcceptNoise(seed, position) < fixed_accepted - whole;
  return static_cast<int>(whole) + (one_more ? 1 : 0);
}

}  // namespace galley::engine
