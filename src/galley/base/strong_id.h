// SPDX-License-Identifier: Apache-2.0
// Integer identifiers that do not convert into each other: using BlockId = StrongId<struct BlockIdTag>.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace galley {

template <typename Tag, typename Rep = std::int32_t>
struct StrongId {
  Rep value = -1;  // -1: refers to nothing

  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  [[nodiscard]] constexpr bool valid() const { return value >= 0; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
};

using TokenId = std::int32_t;   // an index into the vocabulary; arrays of them are plain data shared with devices
using Position = std::int64_t;  // 0-based index of a token in its sequence

using BlockId = StrongId<struct BlockIdTag>;
using SlotId = StrongId<struct SlotIdTag>;
using RequestId = StrongId<struct RequestIdTag, std::int64_t>;
using LayerIndex = StrongId<struct LayerIndexTag>;

}  // namespace galley

template <typename Tag, typename Rep>
struct std::hash<galley::StrongId<Tag, Rep>> {
  std::size_t operator()(galley::StrongId<Tag, Rep> id) const noexcept { return std::hash<Rep>{}(id.value); }
};
