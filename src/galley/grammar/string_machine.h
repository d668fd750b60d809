// SPDX-License-Identifier: Apache-2.0
// Lexeme whose decoded text a TextAutomaton judges: raw UTF-8, or a JSON string with its quotes and every spelling of
// its characters (two-letter escapes, \uXXXX, surrogate pairs; lone surrogates never). Used by the grammar's thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "galley/grammar/begun_text.h"
#include "galley/grammar/machine.h"
#include "galley/grammar/text_automaton.h"

namespace galley::grammar {

class StringMachine final : public Machine {
 public:
  // kQuoted: raw UTF-8 between quotes, without escapes, controls or quotes inside (attributes of tool markup).
  enum class Form { kRaw, kJson, kQuoted };

  StringMachine(TextSpec spec, Form form, const Limits& limits);

  [[nodiscard]] State Start(std::uint32_t context) override;
  [[nodiscard]] std::optional<PlainBody> plain_body(State state) const override;
  [[nodiscard]] bool has_plain_body() const override { return form_ == Form::kJson; }
  [[nodiscard]] std::optional<Alphabet> stays(State state,
                                              const std::array<std::uint32_t, kAlphabets>& lengths) override;
  void Reset() override;
  [[nodiscard]] std::size_t bytes() const override { return bytes_ + text_.bytes(); }
  [[nodiscard]] TextAutomaton& text() { return text_; }
  // State of the text where what was read ends with a whole character, or with part of one that all lead there.
  [[nodiscard]] std::optional<TextAutomaton::State> text_state(State state) const;
  // What the beginning of a string, its opening quote included, says of the text.
  [[nodiscard]] BegunText Decode(std::string_view raw) const {
    return ReadBegunText(raw.substr(raw.empty() || form_ == Form::kRaw ? 0 : 1), form_ == Form::kJson);
  }

 private:
  enum class Mode : std::uint8_t {
    kOpen,      // before the opening quote
    kBody,      // between characters
    kUtf,       // inside a UTF-8 sequence; `value` = first code point of those still possible, `left` bytes to come
    kUtfSame,   // the same, where all of them lead to state `text`
    kEscape,    // after a backslash
    kHex,       // inside \uXXXX; `value` = digits so far, `left` digits to come
    kHexSame,   // the same, where all code points lead to state `text`
    kLowSlash,  // after a high surrogate: wants a backslash
    kLowU,      // wants u
    kLowHex,    // inside the low surrogate; `value` = high << 16 | digits so far
    kClosed,    // after the closing quote; `text` = label
  };
  struct Place {
    Mode mode;
    std::uint8_t left;
    std::uint32_t text;
    std::uint32_t value;
  };

  State ComputeStep(State state, std::uint8_t byte) override;
  State Intern(Mode mode, std::uint32_t text, std::uint8_t left = 0, std::uint32_t value = 0);
  State Body(std::uint32_t text_state);
  State AfterChar(std::uint32_t text_state, std::uint32_t code_point);
  State Lead(std::uint32_t text_state, std::uint8_t byte);
  State Utf(std::uint32_t text_state, std::uint32_t first, std::uint8_t left);
  State Hex(std::uint32_t text_state, std::uint32_t value, std::uint8_t left);
  State LowHex(std::uint32_t text_state, std::uint32_t value, std::uint8_t left);
  State HexStep(const Place& place, std::uint8_t byte);
  State EscapeStep(const Place& place, std::uint8_t byte);

  // How many characters of an alphabet may follow text state `text`, whichever they are; at most `enough`.
  std::uint32_t Chain(TextAutomaton::State text, Alphabet alphabet, std::uint32_t enough);

  TextAutomaton text_;
  Form form_;
  std::array<std::vector<std::uint32_t>, kAlphabets> chains_;  // by text state; 0 where not known
  std::uint32_t states_max_;
  std::vector<Place> places_;
  std::unordered_map<std::uint64_t, std::vector<State>> ids_;
};

}  // namespace galley::grammar
