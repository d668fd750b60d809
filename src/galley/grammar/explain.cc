// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "galley/grammar/model_vocabulary.h"
#include "galley/grammar/schema_document.h"

namespace galley::grammar {
namespace {

using Type = JsonValue::Type;

constexpr std::size_t kSchemaTextMax = 300;
constexpr std::size_t kLineShownMax = 60;
constexpr int kReferencesMax = 32;

bool Continues(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

std::string Quoted(unsigned byte) {
  if (byte < 0x80) return JsonQuote(std::string(1, static_cast<char>(byte)));
  return fmt::format("byte 0x{:02X}", byte);
}

// Ranges of the bytes that may come next. What begins or goes on with a character beyond ASCII is not told apart.
std::vector<std::string> AllowedBytes(const std::bitset<256>& bytes) {
  std::vector<std::string> out;
  for (unsigned first = 0; first < 0x80; ++first) {
    if (!bytes[first]) continue;
    unsigned last = first;
    // A range never crosses from letters or digits to something else, so that it can be read.
    const auto kind = [](unsigned c) {
      return c >= '0' && c <= '9' ? 1 : c >= 'a' && c <= 'z' ? 2 : c >= 'A' && c <= 'Z' ? 3 : c > ' ' ? 4 : 5;
    };
    while (last + 1 < 0x80 && bytes[last + 1] && kind(last + 1) == kind(first)) ++last;
    out.push_back(last > first + 1 ? Quoted(first) + " to " + Quoted(last) : Quoted(first));
    if (last == first + 1) out.push_back(Quoted(last));
    first = last;
  }
  bool beyond = false;
  for (unsigned byte = 0x80; byte < 256; ++byte) beyond = beyond || bytes[byte];
  if (beyond) out.emplace_back("characters beyond ASCII");
  return out;
}

struct Frame {
  bool object;
  bool in_key;  // the member's name is not complete
  std::string key;
  std::size_t index;
};

// The values that enclose the end of `prefix`, which begins a JSON text.
std::vector<Frame> Enclosing(std::string_view prefix) {
  std::vector<Frame> frames;
  for (std::size_t at = 0; at < prefix.size(); ++at) {
    const char c = prefix[at];
    if (c == '{') frames.push_back({true, true, "", 0});
    if (c == '[') frames.push_back({false, false, "", 0});
    if ((c == '}' || c == ']') && !frames.empty()) frames.pop_back();
    if (c == ',' && !frames.empty()) {
      ++frames.back().index;
      frames.back().in_key = frames.back().object;
    }
    if (c == ':' && !frames.empty()) frames.back().in_key = false;
    if (c != '"') continue;
    std::size_t end = at + 1;
    while (end < prefix.size() && prefix[end] != '"') end += prefix[end] == '\\' ? 2 : 1;
    if (end >= prefix.size()) break;
    if (!frames.empty() && frames.back().in_key) {
      const auto key = ParseJson(prefix.substr(at, end + 1 - at));
      frames.back().key = key ? key->text : "";
    }
    at = end;
  }
  return frames;
}

std::vector<std::string> PathOf(const std::vector<Frame>& frames) {
  std::vector<std::string> out;
  for (const Frame& frame : frames) {
    if (frame.object && frame.in_key) break;
    out.push_back(frame.object ? frame.key : std::to_string(frame.index));
  }
  return out;
}

std::string UnescapePointer(std::string_view token) {
  std::string out;
  for (std::size_t i = 0; i < token.size(); ++i) {
    const bool escape = token[i] == '~' && i + 1 < token.size();
    out.push_back(escape ? (token[i + 1] == '1' ? '/' : '~') : token[i]);
    if (escape) ++i;
  }
  return out;
}

struct Place {
  const JsonValue* schema = nullptr;
  std::string pointer;
};

const JsonValue* ItemAt(const JsonValue& list, const std::string& index) {
  std::size_t i = 0;
  const auto [end, error] = std::from_chars(index.data(), index.data() + index.size(), i);
  const bool good = error == std::errc() && end == index.data() + index.size() && i < list.items.size();
  return good ? &list.items[i] : nullptr;
}

// Follows references inside the document. What it does not understand it leaves alone: this is only a help to readers.
Place Resolved(Place place, const JsonValue& root) {
  for (int i = 0; i < kReferencesMax && place.schema != nullptr && place.schema->is(Type::kObject); ++i) {
    const JsonValue* reference = place.schema->Find("$ref");
    if (reference == nullptr || reference->text.empty() || reference->text[0] != '#') break;
    Place next{&root, ""};
    std::string_view rest = std::string_view(reference->text).substr(1);
    while (!rest.empty() && rest[0] == '/' && next.schema != nullptr) {
      const std::size_t end = std::min(rest.find('/', 1), rest.size());
      const std::string token = UnescapePointer(rest.substr(1, end - 1));
      next.schema = next.schema->is(Type::kArray) ? ItemAt(*next.schema, token) : next.schema->Find(token);
      next.pointer += "/" + PointerToken(token);
      rest.remove_prefix(end);
    }
    if (!rest.empty()) break;
    place = next;
  }
  return place;
}

Place Child(const Place& place, const std::string& token) {
  if (place.schema == nullptr || !place.schema->is(Type::kObject)) return {};
  const JsonValue& schema = *place.schema;
  if (const JsonValue* names = schema.Find("properties")) {
    if (const JsonValue* found = names->Find(token)) return {found, place.pointer + Path("properties", token)};
  }
  for (const std::string_view keyword : {"prefixItems", "items"}) {
    const JsonValue* list = schema.Find(keyword);
    if (list == nullptr || !list->is(Type::kArray)) continue;
    if (const JsonValue* found = ItemAt(*list, token)) return {found, place.pointer + Path(keyword, std::stoul(token))};
  }
  for (const std::string_view keyword : {"items", "additionalProperties"}) {
    const JsonValue* rest = schema.Find(keyword);
    if (rest != nullptr && rest->is(Type::kObject)) return {rest, place.pointer + Path(keyword)};
  }
  return {};
}

// The schema for the value at `path`, if plain keywords lead there.
Place SchemaAt(const JsonValue& root, const std::vector<std::string>& path) {
  Place place = Resolved({&root, ""}, root);
  for (const std::string& token : path) place = Resolved(Child(place, token), root);
  return place;
}

void FillPosition(std::string_view text, Explanation& out) {
  const std::string_view before = text.substr(0, out.judgement.bytes_ok);
  out.line = 1 + static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
  const std::size_t newline = before.rfind('\n');
  const std::string_view row = before.substr(newline == std::string_view::npos ? 0 : newline + 1);
  out.column = 1 + row.size() - static_cast<std::size_t>(std::count_if(row.begin(), row.end(), Continues));
  if (before.size() == text.size()) {
    out.found = "the end of the text";
    return;
  }
  // The whole character that the refused byte belongs to.
  std::size_t begin = before.size(), end = begin + 1;
  while (begin > 0 && Continues(text[begin]) && before.size() - begin < 3) --begin;
  while (end < text.size() && Continues(text[end]) && end - begin < 4) ++end;
  out.found = JsonQuote(text.substr(begin, end - begin));
}

}  // namespace

Explanation Explain(Matcher& matcher, std::string_view text, const JsonValue* schema,
                    const std::vector<Marker>& markers) {
  Marker marker;
  for (const Marker& known : markers) {
    if (known.text == kDsmlMarker) marker = known;
  }
  Explanation out;
  out.judgement = matcher.Check(text, marker.text, marker.token);
  Matcher::Outlook outlook;
  if (!out.judgement.complete) outlook = matcher.LookAhead(text, marker.text, marker.token);
  out.failure = matcher.FailureText();
  if (out.judgement.complete || !out.failure.empty()) return out;
  FillPosition(text, out);
  out.allowed = AllowedBytes(outlook.bytes);
  for (const Marker& known : markers) {
    const bool may = std::find(outlook.control.begin(), outlook.control.end(), known.token) != outlook.control.end();
    if (may) out.allowed.push_back("control token " + JsonQuote(known.text));
  }
  if (outlook.end) out.allowed.emplace_back("the end of the text");
  out.forced = outlook.forced;
  if (schema == nullptr) return out;
  const std::vector<std::string> path = PathOf(Enclosing(text.substr(0, out.judgement.bytes_ok)));
  for (const std::string& token : path) out.place += "/" + PointerToken(token);
  if (const Place place = SchemaAt(*schema, path); place.schema != nullptr) {
    out.schema_pointer = place.pointer;
    out.schema = JsonText(*place.schema);
    if (out.schema.size() > kSchemaTextMax) {
      std::size_t end = kSchemaTextMax;
      while (end > 0 && Continues(out.schema[end])) --end;
      out.schema = out.schema.substr(0, end) + " …";
    }
  }
  return out;
}

std::string ToText(const Explanation& explanation, std::string_view text) {
  const Explanation& e = explanation;
  if (e.judgement.complete) return "accepted\n";
  if (!e.failure.empty()) return "not decided: " + e.failure + "\n";
  std::string out = fmt::format("{} at byte {} (line {}, column {}){}: {} cannot stand here\n",
                                e.judgement.prefix ? "incomplete" : "refused", e.judgement.bytes_ok, e.line, e.column,
                                e.place.empty() ? "" : ", in the value at " + e.place, e.found);
  // The line up to the place, and a caret under it.
  std::string_view row = text.substr(0, e.judgement.bytes_ok);
  row = row.substr(row.rfind('\n') + 1);
  std::size_t from = row.size() > kLineShownMax ? row.size() - kLineShownMax : 0;
  while (from < row.size() && Continues(row[from])) ++from;
  row.remove_prefix(from);
  std::string_view after = text.substr(e.judgement.bytes_ok);
  after = after.substr(0, std::min(after.find('\n'), kLineShownMax / 3));
  while (!after.empty() && (after.size() == kLineShownMax / 3) && Continues(after.back())) after.remove_suffix(1);
  const std::size_t indent = row.size() - static_cast<std::size_t>(std::count_if(row.begin(), row.end(), Continues));
  out += fmt::format("  {}{}\n  {}^\n", row, after, std::string(indent, ' '));
  out += "allowed here: ";
  for (std::size_t i = 0; i < e.allowed.size(); ++i) out += (i == 0 ? "" : ", ") + e.allowed[i];
  out += e.allowed.empty() ? "nothing\n" : "\n";
  if (!e.forced.empty()) out += fmt::format("nothing else than: {}\n", JsonQuote(e.forced));
  if (!e.schema.empty()) out += fmt::format("schema there, at #{}: {}\n", e.schema_pointer, e.schema);
  return out;
}

std::string ToJson(const Explanation& explanation) {
  const Explanation& e = explanation;
  std::string allowed;
  for (const std::string& item : e.allowed) allowed += (allowed.empty() ? "" : ",") + JsonQuote(item);
  std::string out = fmt::format("{{\"complete\":{},\"prefix\":{},\"bytes_ok\":{}", e.judgement.complete,
                                e.judgement.prefix, e.judgement.bytes_ok);
  if (!e.failure.empty()) out += ",\"failure\":" + JsonQuote(e.failure);
  if (e.judgement.complete || !e.failure.empty()) return out + "}";
  out += fmt::format(",\"line\":{},\"column\":{},\"found\":{},\"allowed\":[{}],\"forced\":{},\"place\":{}", e.line,
                     e.column, JsonQuote(e.found), allowed, JsonQuote(e.forced), JsonQuote(e.place));
  if (!e.schema.empty()) {
    out += fmt::format(",\"schema_pointer\":{},\"schema\":{}", JsonQuote(e.schema_pointer), JsonQuote(e.schema));
  }
  return out + "}";
}

}  // namespace galley::grammar
