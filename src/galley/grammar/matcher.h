// SPDX-License-Identifier: Apache-2.0
// Constrained decoding of one sequence: which tokens may come next, and what changes when one does. A token is allowed
// iff prefix + token can still be completed; end tokens iff the prefix is complete; control tokens only where the
// grammar names them. All matchers of one grammar belong to one thread at a time, because they share its lexemes;
// those of different grammars do not care for each other.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "galley/grammar/parse_states.h"
#include "galley/grammar/program.h"
#include "galley/grammar/vocabulary.h"

namespace galley::grammar {

// A program together with the vocabulary whose masks it caches.
struct Grammar {
  std::shared_ptr<Program> program;
  std::shared_ptr<const Vocabulary> vocabulary;
};

class Matcher {
 public:
  explicit Matcher(Grammar grammar);

  // Advances by one token. False, and no change, when the token is refused or the text has ended.
  bool Accept(std::uint32_t token);
  // Accepts a prefix of `tokens`; its length is returned.
  std::size_t Accept(std::span<const std::uint32_t> tokens);
  // Takes back the last `count` tokens, in O(count). More than were accepted takes back all.
  void Rollback(std::size_t count);
  void Reset();

  // Writes the mask of the next token. `out` has mask_words() words; all zero once the text has ended.
  void FillMask(std::span<MaskWord> out);
  // Masks behind every node of a draft tree: parents[i] < i or -1 for the current position. Rows of refused nodes are
  // empty. Does not change the matcher. `out` has tokens.size() rows. Returns which nodes are accepted.
  std::vector<bool> FillTreeMasks(std::span<const std::int32_t> parents, std::span<const std::uint32_t> tokens,
                                  std::span<MaskWord> out);

  // Which limit made it fail, for errors.
  [[nodiscard]] const std::string& FailureText() const { return failure_; }
  // No text satisfies the grammar, so no mask ever allows a token: a pattern such as a$b is legal and like that.
  [[nodiscard]] bool MatchesNothing() const;
  [[nodiscard]] bool can_stop();
  // Free text is under way, so nearly every token may come: whoever draws can do without the mask unless Accept refuses
  // what was drawn.
  [[nodiscard]] bool in_free_text() const;
  // The text is complete and nothing may follow but an end token, or has ended.
  [[nodiscard]] bool must_stop();
  [[nodiscard]] bool terminated() const { return terminated_; }
  [[nodiscard]] std::size_t tokens() const { return tokens_.size(); }
  // Text that every completion goes on with; empty where there is a choice, or where the text may end.
  [[nodiscard]] std::string ForcedText(std::size_t bytes_max = 4096);
  // A second matcher in the same state. Shares what was computed so far.
  [[nodiscard]] std::unique_ptr<Matcher> Fork() const;

  struct Judgement {
    bool prefix = false;    // some completion exists
    bool complete = false;  // the text is a sentence
    std::size_t bytes_ok = 0;
  };
  // Judges a whole text from the start, byte by byte, apart from the accepted tokens. Where `marker` is not empty, its
  // occurrences stand for the control token `marker_token`.
  [[nodiscard]] Judgement Check(std::string_view text, std::string_view marker = {}, std::uint32_t marker_token = 0);
  struct Outlook {
    std::bitset<256> bytes;              // that may come next
    std::vector<std::uint32_t> control;  // control tokens that may come next
    bool end = false;                    // the text may end here
    std::string forced;                  // text that every completion goes on with
  };
  // What may follow the first Judgement::bytes_ok bytes of a text.
  [[nodiscard]] Outlook LookAhead(std::string_view text, std::string_view marker = {}, std::uint32_t marker_token = 0);

  // A limit was reached while running; masks are empty from then on. Other matchers of the grammar go on.
  [[nodiscard]] bool failed() const { return !failure_.empty(); }
  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] const Grammar& grammar() const { return grammar_; }

 private:
  // What forks share.
  struct Session {
    explicit Session(Program& program) : states(program) {}
    ParseStates states;
    // Masks of the states asked for last, oldest first in a ring.
    struct Kept {
      ParseStates::Id id = ParseStates::kDead;
      std::vector<MaskWord> mask;
    };
    std::vector<Kept> kept;
    std::unordered_map<ParseStates::Id, std::size_t> kept_at;
    std::size_t oldest = 0;
    std::size_t bytes_after_compact = 0;
    // Scratch of walks over the trie.
    std::vector<ParseStates::Id> path;
    std::vector<char> guessed;
    std::vector<ParseStates::Id> row;
  };

  using Id = ParseStates::Id;
  Matcher() = default;
  // Runs `op` on lexemes that know this matcher's states. Where it makes them reach a limit, all that was built for
  // whoever used the grammar is dropped and `op` runs once more; if it cannot do alone, the matcher has failed.
  template <typename Op>
  auto Guarded(const Op& op);
  // Finds the states of the accepted tokens again, after the lexemes were renewed.
  void Rebuild();
  void NoteOverflow();
  std::vector<bool> FillTreeMasksOnce(std::span<const std::int32_t> parents, std::span<const std::uint32_t> tokens,
                                      std::span<MaskWord> out);
  struct Reading {
    Id id = ParseStates::kDead;     // state behind the whole text
    Id alive = ParseStates::kDead;  // the last one on the way that can be completed
    std::size_t bytes_ok = 0;
  };
  [[nodiscard]] Reading Read(std::string_view text, std::string_view marker, std::uint32_t marker_token);
  [[nodiscard]] Outlook OutlookOf(Id id);
  [[nodiscard]] std::string ForcedFrom(Id id, std::size_t bytes_max);
  [[nodiscard]] Id After(Id from, std::uint32_t token);
  // The same, but an end token stays where it is when the text is complete.
  [[nodiscard]] Id AfterOrEnd(Id from, std::uint32_t token);
  const std::vector<MaskWord>& MaskOf(Id id);
  void Compute(Id id, std::vector<MaskWord>& mask);
  void AddItem(const Item& item, std::vector<MaskWord>& mask, std::vector<std::uint32_t>& doubtful);
  void AddPlainString(const Item& item, Machine::PlainBody body, std::vector<MaskWord>& mask,
                      std::vector<std::uint32_t>& doubtful);
  void AddTokens(const Item& item, std::vector<MaskWord>& mask) const;
  // Moves the tokens of `own`, a mask of `item`, that lead to where its object may have used up all names, to
  // `doubtful`.
  void HoldBackUsedNames(const Item& item, std::vector<MaskWord>& own, std::vector<std::uint32_t>& doubtful);
  void Walk(const TokenTrie& trie, std::uint32_t top, Id from, std::vector<MaskWord>& mask,
            std::vector<std::uint32_t>& doubtful);
  // `read`: a state to keep besides those of the accepted tokens, renamed.
  void CompactIfLarge(Id* read = nullptr);

  Grammar grammar_;
  std::shared_ptr<Session> session_;
  std::vector<Id> history_;  // state behind each token, from the start state; kDead where it was dropped
  std::vector<std::uint32_t> tokens_;
  std::uint64_t generation_ = 0;  // of the program, that the states belong to
  std::string failure_;
  bool terminated_ = false;
};

// Allowed tokens of a mask.
[[nodiscard]] std::size_t CountTokens(std::span<const MaskWord> mask);

}  // namespace galley::grammar
