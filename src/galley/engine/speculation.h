// SPDX-License-Identifier: Apache-2.0
// Speculative decoding: where drafts come from, and what became of them. Drafts only guess; which tokens come is
// decided by the verify rows of the target model, so a drafter can be wrong but cannot change an output. Drafters are
// owned by the executor and called on its thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "galley/backend/sampling.h"
#include "galley/base/error.h"
#include "galley/base/strong_id.h"
#include "galley/engine/calibration.h"
#include "galley/engine/lookup.h"

namespace galley::model {
struct Config;
}

namespace galley::engine {

class LoadedModel;

enum class SpeculationMode {
  kAuto,  // kDspark with lookup when the model has a draft head, else kOff
  kOff,
  kDspark,     // the model's own draft head; same output as kOff
  kNgram,      // continuations of earlier occurrences of the newest tokens; same output as kOff
  kRejection,  // draft head with classic rejection sampling: a few per cent more accepted, other tokens than kOff
};
// "auto", "off", …; nothing for another name.
[[nodiscard]] std::optional<SpeculationMode> SpeculationModeFor(std::string_view name);

struct DraftAsk;
struct Proposal;

inline constexpr int kDraftTokensMax = 5;  // what rings can take back when the model does not say

struct SpeculationOptions {
  SpeculationMode mode = SpeculationMode::kAuto;
  int draft_tokens = kDraftTokensMax;  // most drafts a step; 0: off
  // With a draft head: sequences that repeat what they had are drafted for by lookup, at no cost of a draft pass, where
  // steps may have any number of rows.
  bool lookup = false;
  // Verify as many drafts a step as pay, by confidences and measured times; false: every draft of every step.
  bool adaptive = true;
  // Not negative: as many drafts a round are taken as accepted, on average, whatever the model says. For comparing
  // speeds; the output is then worth nothing.
  double fixed_accepted = -1;
  // Told of every round whose drafts were all verified, on the engine's device thread. For calibration.
  std::function<void(DraftRound round)> on_round = {};
  // Changes proposals before they are verified, on the engine's device thread; as many tokens as confidences, and no
  // more than asked for. For tests: what is drafted must not matter.
  std::function<void(const DraftAsk& ask, Proposal& proposal)> alter = {};

  // What `config` makes of them: never kAuto; kOff when no drafts can come. Errors: kInvalidArgument naming the field.
  [[nodiscard]] Result<SpeculationOptions> Resolve(const model::Config& config) const;
};

// Rounds of speculation: steps of one sequence that had drafts to verify.
struct SpeculationCounts {
  std::int64_t rounds = 0;
  std::int64_t drafted = 0;
  std::int64_t verified = 0;
  std::int64_t accepted = 0;
  std::array<std::int64_t, kDraftTokensMax> verified_at = {};  // by place in the draft
  std::array<std::int64_t, kDraftTokensMax> accepted_at = {};

  void Add(int drafts, int verify, int accept);
  void Add(const SpeculationCounts& other) { Combine(other, 1); }
  void Subtract(const SpeculationCounts& earlier) { Combine(earlier, -1); }

 private:
  void Combine(const SpeculationCounts& other, int sign);
};

// What a drafter is told about a sequence.
struct DraftAsk {
  SlotId slot;
  Position newest = 0;  // position of the newest token, whose row has not been run
  Position decoder_floor = 0;
  int most = 1;  // drafts that can be verified
  std::span<const TokenId> prompt;
  std::span<const TokenId> output;  // at least one token
  backend::SampleParams sampling;   // seed of the branch; the position is the drafter's business
};

struct Proposal {
  std::vector<TokenId> tokens;     // for positions newest + 1 and on, at most `most`
  std::vector<float> confidences;  // one for each: logit of the chance that it is accepted if those before it are
  const float* logits = nullptr;   // [tokens][vocab_size] that they were drawn from, on the device; until the next step
  int matched = 0;                 // length of the match that they continue; 0: not by lookup
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  // One proposal for each, in their order, valid until the next call. Errors: kDevice.
  [[nodiscard]] virtual Result<std::span<Proposal>> Propose(std::span<const DraftAsk> asks) = 0;
};

// Null for kOff. `loaded` and `chances`, which lookups are as likely as, must outlive it.
[[nodiscard]] std::unique_ptr<Drafter> MakeDrafter(SpeculationMode mode, LoadedModel& loaded,
                                                   const LookupChances& chances);
// The proposal of a lookup for one sequence, in the memory of `proposal`; no tokens where nothing is found.
void ProposeByLookup(const DraftAsk& ask, const LookupChances& chances, Proposal& proposal);

// Classic rejection sampling of one draft: keeps it with chance min(1, target / draft), else draws from what the target
// has in excess. The distribution of the result is the target's. Noise is that of params.seed at params.position.
struct Verdict {
  TokenId id = 0;
  bool accepted = false;
};
[[nodiscard]] Verdict AcceptOrRedraw(std::span<const backend::TokenChance> target,
                                     std::span<const backend::TokenChance> draft, TokenId drafted,
                                     const backend::SampleParams& params);

// Drafts that a round of `fixed_accepted` takes: its floor or ceiling, chosen by (seed, position) so that the mean is
// it.
[[nodiscard]] int FixedAccepted(double fixed_accepted, std::uint64_t seed, Position position);

}  // namespace galley::engine
