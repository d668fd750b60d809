// SPDX-License-Identifier: Apache-2.0
// Host names as an automaton: ASCII labels, and international ones in their ASCII form. Whether such a label is valid
// depends on all of its text, so states inside one are texts. Up to near its longest a letter more can be inserted into
// any of them; where none can, a text lives only if it is valid as it stands, which leaves out some labels of more than
// 50 characters. One per grammar, used by its thread.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "galley/grammar/char_dfa.h"

namespace galley::grammar {

class HostNames final : public CharDfa {
 public:
  explicit HostNames(const Limits& limits);

  [[nodiscard]] State Step(State state, std::uint32_t char_class) override;
  [[nodiscard]] bool exact() const override { return true; }
  [[nodiscard]] std::uint32_t letters_ahead(State state) const override;
  void Reset() override;

 private:
  // Characters so far of the label under way, as far as "--" behind two of them matters.
  enum class Head : std::uint8_t { kStart, kX, kXn, kXnHyphen, kOther, kHyphenThird, kInternational };
  struct Place {
    Head head = Head::kStart;
    std::uint8_t length = 0;     // of the label
    std::uint8_t total = 0;      // of the name
    bool hyphen = false;         // it ends with one
    bool digit_first = false;    // some label has no letter of a left-to-right script in front
    bool right_to_left = false;  // some label is written so
    std::string text;            // behind "xn--"
    bool operator==(const Place&) const = default;
  };
  struct PlaceHash {
    std::size_t operator()(const Place& place) const;
  };

  State Intern(const Place& place);
  [[nodiscard]] bool Move(Place& place, char c) const;
  [[nodiscard]] bool Extend(Place& place, char c) const;
  [[nodiscard]] static bool EndLabel(Place& place);
  // Whether the name may end here.
  [[nodiscard]] static bool Complete(Place place);
  // Whether some end of the label exists that fits into `room` more characters.
  [[nodiscard]] static bool Lives(const Place& place);

  std::vector<char> char_of_;  // by class; 0 for characters that no name holds
  std::vector<Place> places_;
  std::unordered_map<Place, State, PlaceHash> ids_;
};

}  // namespace galley::grammar
