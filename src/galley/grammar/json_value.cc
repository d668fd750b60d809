// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/json_value.h"

#include <fmt/format.h>

#include <charconv>
#include <unordered_set>

namespace galley::grammar {
namespace {

class Reader {
 public:
  Reader(std::string_view text, int nesting_max, std::size_t values_max)
      : text_(text), nesting_max_(nesting_max), values_max_(values_max) {}

  Compiled<JsonValue> Read() {
    JsonValue value;
    SkipBlanks();
    if (!Value(value, 0)) return Refuse(error_);
    SkipBlanks();
    if (at_ != text_.size()) {
      Fail("text after the end of the JSON value");
      return Refuse(error_);
    }
    return value;
  }

 private:
  bool Fail(std::string_view what) {
    if (error_.message.empty()) {
      error_ = {CompileCode::kBadJson, fmt::format("not JSON: {} at byte {}", what, at_), "", "", at_};
    }
    return false;
  }

  void SkipBlanks() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) {
      ++at_;
    }
  }

  [[nodiscard]] char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool Take(char c) {
    if (Peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }

  bool Word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return Fail("unknown literal");
    at_ += word.size();
    return true;
  }

  bool Value(JsonValue& out, int depth) {
    if (++values_ > values_max_) {
      error_ = {CompileCode::kTooComplex,
                fmt::format("more than {} JSON values (json_values_max) at byte {}; make it smaller", values_max_, at_),
                "", "", at_};
      return false;
    }
    if (depth > nesting_max_)
      return Fail(fmt::format("nesting deeper than the limit of {} (nesting_max)", nesting_max_));
    switch (Peek()) {
      case '{':
        return Object(out, depth);
      case '[':
        return Array(out, depth);
      case '"':
        out.type = JsonValue::Type::kString;
        return String(out.text);
      case 't':
        out.type = JsonValue::Type::kBool;
        out.boolean = true;
        return Word("true");
      case 'f':
        out.type = JsonValue::Type::kBool;
        return Word("false");
      case 'n':
        return Word("null");
      default:
        out.type = JsonValue::Type::kNumber;
        return Number(out.text);
    }
  }

  bool Object(JsonValue& out, int depth) {
    out.type = JsonValue::Type::kObject;
    std::unordered_set<std::string> names;
    ++at_;
    SkipBlanks();
    if (Take('}')) return true;
    while (true) {
      std::string name;
      if (Peek() != '"') return Fail("expected a member name");
      if (!String(name)) return false;
      if (!names.insert(name).second) return Fail("repeated member name " + JsonQuote(name));
      SkipBlanks();
      if (!Take(':')) return Fail("expected ':'");
      SkipBlanks();
      out.members.emplace_back(std::move(name), JsonValue{});
      if (!Value(out.members.back().second, depth + 1)) return false;
      SkipBlanks();
      if (Take('}')) return true;
      if (!Take(',')) return Fail("expected ',' or '}'");
      SkipBlanks();
    }
  }

  bool Array(JsonValue& out, int depth) {
    out.type = JsonValue::Type::kArray;
    ++at_;
    SkipBlanks();
    if (Take(']')) return true;
    while (true) {
      out.items.emplace_back();
      if (!Value(out.items.back(), depth + 1)) return false;
      SkipBlanks();
      if (Take(']')) return true;
      if (!Take(',')) return Fail("expected ',' or ']'");
      SkipBlanks();
    }
  }

  bool Digits() {
    const std::size_t start = at_;
    while (Peek() >= '0' && Peek() <= '9') ++at_;
    return at_ > start || Fail("expected a digit");
  }

  bool Number(std::string& out) {
    const std::size_t start = at_;
    if (!Take('-') && (Peek() < '0' || Peek() > '9')) return Fail("expected a value");
    if (!Take('0') && !Digits()) return false;
    if (Take('.') && !Digits()) return false;
    if (Peek() == 'e' || Peek() == 'E') {
      ++at_;
      if (Peek() == '+' || Peek() == '-') ++at_;
      if (!Digits()) return false;
    }
    out = text_.substr(start, at_ - start);
    return true;
  }

  bool Hex4(std::uint32_t& out) {
    out = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = Peek();
      std::uint32_t digit = 0;
      if (c >= '0' && c <= '9') {
        digit = static_cast<std::uint32_t>(c - '0');
      } else if (c >= 'a' && c <= 'f') {
        digit = static_cast<std::uint32_t>(c - 'a' + 10);
      } else if (c >= 'A' && c <= 'F') {
        digit = static_cast<std::uint32_t>(c - 'A' + 10);
      } else {
        return Fail("expected four hex digits");
      }
      out = out * 16 + digit;
      ++at_;
    }
    return true;
  }

  bool Escape(std::string& out) {
    static constexpr std::string_view kFrom = "\"\\/bfnrt";
    static constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
    const char c = Peek();
    ++at_;
    if (c != 'u') {
      const std::size_t index = kFrom.find(c);
      if (index == std::string_view::npos || c == '\0') return Fail("unknown escape");
      out.push_back(kTo[index]);
      return true;
    }
    std::uint32_t unit = 0;
    if (!Hex4(unit)) return false;
    if (unit >= 0xD800 && unit < 0xDC00 && text_.substr(at_, 2) == "\\u") {
      const std::size_t back = at_;
      at_ += 2;
      std::uint32_t low = 0;
      if (!Hex4(low)) return false;
      if (low >= 0xDC00 && low < 0xE000) {
        unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
      } else {
        at_ = back;
      }
    }
    AppendUtf8(unit, out);
    return true;
  }

  bool String(std::string& out) {
    ++at_;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return true;
      }
      if (static_cast<unsigned char>(c) < 0x20) return Fail("control character inside a string");
      if (c == '\\') {
        ++at_;
        if (!Escape(out)) return false;
      } else {
        out.push_back(c);
        ++at_;
      }
    }
    return Fail("string without end");
  }

  std::string_view text_;
  int nesting_max_;
  std::size_t values_max_;
  std::size_t values_ = 0;
  std::size_t at_ = 0;
  CompileError error_;
};

// Length of the UTF-8 sequence at `at`, or 0 when there is none.
std::size_t Utf8Length(std::string_view text, std::size_t at, std::uint32_t& code_point) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) {
    code_point = lead;
    return 1;
  }
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || at + length > text.size()) return 0;
  code_point = lead & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
    code_point = (code_point << 6) | (byte(at + i) & 0x3F);
  }
  static constexpr std::uint32_t kFirst[5] = {0, 0, 0x80, 0x800, 0x10000};
  return code_point >= kFirst[length] && code_point <= 0x10FFFF ? length : 0;
}

void WriteText(const JsonValue& value, std::string& out) {
  switch (value.type) {
    case JsonValue::Type::kNull:
      out += "null";
      return;
    case JsonValue::Type::kBool:
      out += value.boolean ? "true" : "false";
      return;
    case JsonValue::Type::kNumber:
      out += value.text;
      return;
    case JsonValue::Type::kString:
      out += JsonQuote(value.text);
      return;
    case JsonValue::Type::kArray:
      out += '[';
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) out += ',';
        WriteText(value.items[i], out);
      }
      out += ']';
      return;
    case JsonValue::Type::kObject:
      out += '{';
      for (std::size_t i = 0; i < value.members.size(); ++i) {
        if (i > 0) out += ',';
        out += JsonQuote(value.members[i].first);
        out += ':';
        WriteText(value.members[i].second, out);
      }
      out += '}';
      return;
  }
}

}  // namespace

JsonValue::JsonValue() = default;
JsonValue::~JsonValue() = default;
JsonValue::JsonValue(const JsonValue& other) = default;
JsonValue::JsonValue(JsonValue&& other) noexcept = default;
JsonValue& JsonValue::operator=(const JsonValue& other) = default;
JsonValue& JsonValue::operator=(JsonValue&& other) noexcept = default;

const JsonValue* JsonValue::Find(std::string_view name) const {
  for (const auto& [key, value] : members) {
    if (key == name) return &value;
  }
  return nullptr;
}

Compiled<JsonValue> ParseJson(std::string_view text, int nesting_max, std::size_t values_max) {
  return Reader(text, nesting_max, values_max).Read();
}

std::string JsonQuote(std::string_view text) {
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size();) {
    std::uint32_t cp = 0;
    const std::size_t length = Utf8Length(text, i, cp);
    if (length == 0 || (cp >= 0xD800 && cp < 0xE000)) {
      out += "\xEF\xBF\xBD";
      i += length == 0 ? 1 : length;
      continue;
    }
    if (cp == '"' || cp == '\\') {
      out += '\\';
      out += static_cast<char>(cp);
    } else if (cp < 0x20) {
      out += fmt::format("\\u{:04x}", cp);
    } else {
      out += text.substr(i, length);
    }
    i += length;
  }
  return out + '"';
}

std::string JsonText(const JsonValue& value) {
  std::string out;
  WriteText(value, out);
  return out;
}

std::optional<std::int64_t> IntegerOf(const JsonValue* value) {
  if (value == nullptr || !value->is(JsonValue::Type::kNumber)) return std::nullopt;
  std::int64_t out = 0;
  const char* end = value->text.data() + value->text.size();
  const auto [at, error] = std::from_chars(value->text.data(), end, out);
  if (error != std::errc() || at != end) return std::nullopt;
  return out;
}

void AppendUtf8(std::uint32_t code_point, std::string& out) {
  const auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18));
    put(0x80 | ((code_point >> 12) & 0x3F));
    put(0x80 | ((code_point >> 6) & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

bool HoldsLoneSurrogate(std::string_view text) {
  // U+D800 to U+DFFF are ED A0 80 to ED BF BF; behind ED, UTF-8 has 80 to 9F only.
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == '\xED' && static_cast<unsigned char>(text[i + 1]) >= 0xA0) return true;
  }
  return false;
}

std::vector<std::uint32_t> DecodeUtf8(std::string_view text) {
  std::vector<std::uint32_t> out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    std::uint32_t cp = 0;
    const std::size_t length = Utf8Length(text, i, cp);
    out.push_back(length == 0 ? 0xFFFD : cp);
    i += length == 0 ? 1 : length;
  }
  return out;
}

}  // namespace galley::grammar
