// SPDX-License-Identifier: Apache-2.0
// Declared shapes of request bodies: a table says which members an object has and of what type, and CheckShape finds
// the first place where a body differs. After that a converter reads the body without handling type errors. Unknown
// members are ignored, as every API of this kind promises to its clients. Pure; tables are constants.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "galley/base/error.h"
#include "galley/protocol/json.h"

namespace galley::protocol {

struct Shape;

enum class Presence {
  kRequired,  // must be there; null only where the shape allows it
  kOptional,  // may be missing or null
  kDefault,   // may be missing, but not null
};

struct Field {
  std::string_view name;
  Presence presence;
  const Shape* shape;
};

struct Variant {
  std::string_view tag;
  const Shape* shape;  // of the whole object
};

enum class ShapeKind {
  kAny,
  kBool,
  kString,
  kUnsigned,  // an integer within [0, max]; 5.0 counts as 5 unless the field has 64 bits
  kNumber,
  kObject,  // fields
  kMap,     // any object
  kList,    // of element
  kEnum,    // a string among names
  kTagged,  // object whose member `tag` is one of the variants; with open_tags others are taken as they are
  kEither,  // first alternative whose JSON type fits
};

struct Shape {
  ShapeKind kind = ShapeKind::kAny;
  std::span<const Field> fields{};
  const Shape* element = nullptr;
  std::span<const std::string_view> names{};
  std::string_view tag{};
  std::span<const Variant> variants{};
  bool open_tags = false;
  const Shape* untagged = nullptr;  // of objects without the tag; null: the tag is required
  std::uint64_t max = 0;
  std::span<const Shape* const> alternatives{};
};

inline constexpr Shape kAnyShape{};
inline constexpr Shape kBoolShape{.kind = ShapeKind::kBool};
inline constexpr Shape kStringShape{.kind = ShapeKind::kString};
inline constexpr Shape kNumberShape{.kind = ShapeKind::kNumber};
inline constexpr Shape kMapShape{.kind = ShapeKind::kMap};
inline constexpr Shape kU8Shape{.kind = ShapeKind::kUnsigned, .max = 0xFF};
inline constexpr Shape kU32Shape{.kind = ShapeKind::kUnsigned, .max = 0xFFFFFFFF};
inline constexpr Shape kU64Shape{.kind = ShapeKind::kUnsigned, .max = 0xFFFFFFFFFFFFFFFF};
inline constexpr Shape kStringListShape{.kind = ShapeKind::kList, .element = &kStringShape};

// kInvalidArgument; `where` is the place ("messages[2].content"), empty for the whole body.
[[nodiscard]] Status CheckShape(const Json& value, const Shape& shape);

// Reading a checked body. A missing member reads as null.
[[nodiscard]] const Json& Get(const Json& object, std::string_view key);
[[nodiscard]] std::string_view Text(const Json& value);  // empty unless a string
[[nodiscard]] std::string_view Text(const Json& object, std::string_view key);
[[nodiscard]] bool IsTrue(const Json& value);
[[nodiscard]] std::span<const Json> Elements(const Json& value);  // empty unless an array
// For a value that passed kUnsigned.
[[nodiscard]] std::uint64_t Unsigned(const Json& value);

}  // namespace galley::protocol
