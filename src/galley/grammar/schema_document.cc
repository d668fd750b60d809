// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/schema_document.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "galley/base/percent.h"

namespace galley::grammar {
namespace {

// Keywords whose value is one schema, a list of them, or an object of them. Others are not searched for identifiers.
constexpr std::array<std::string_view, 15> kOne = {"additionalItems",
                                                   "additionalProperties",
                                                   "contains",
                                                   "contentSchema",
                                                   "else",
                                                   "if",
                                                   "items",
                                                   "not",
                                                   "propertyNames",
                                                   "then",
                                                   "unevaluatedItems",
                                                   "unevaluatedProperties",
                                                   "allOf",
                                                   "anyOf",
                                                   "oneOf"};
constexpr std::array<std::string_view, 7> kMany = {
    "$defs", "definitions", "dependencies", "dependentSchemas", "properties", "patternProperties", "prefixItems"};

template <std::size_t N>
bool Contains(const std::array<std::string_view, N>& names, std::string_view name) {
  for (const std::string_view n : names) {
    if (n == name) return true;
  }
  return false;
}

struct Uri {
  std::string scheme, authority, path, query;
  bool has_authority = false, has_query = false;
};

Uri Split(std::string_view text) {
  Uri out;
  const std::size_t colon = text.find(':');
  if (colon != std::string_view::npos && text.substr(0, colon).find_first_of("/?#") == std::string_view::npos) {
    out.scheme = text.substr(0, colon);
    text.remove_prefix(colon + 1);
  }
  if (text.substr(0, 2) == "//") {
    const std::size_t end = std::min(text.find_first_of("/?", 2), text.size());
    out.authority = text.substr(2, end - 2);
    out.has_authority = true;
    text.remove_prefix(end);
  }
  const std::size_t mark = text.find('?');
  if (mark != std::string_view::npos) {
    out.query = text.substr(mark + 1);
    out.has_query = true;
    text = text.substr(0, mark);
  }
  out.path = text;
  return out;
}

std::string RemoveDots(std::string_view path) {
  std::vector<std::string_view> out;
  bool slash_end = false;
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    slash_end = part == "." || part == "..";
    if (part == "..") {
      if (out.size() > 1) out.pop_back();
    } else if (part != ".") {
      out.push_back(part);
    }
    at = end + 1;
  }
  std::string text;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (i > 0) text += '/';
    text += out[i];
  }
  if (slash_end) text += '/';
  return text;
}

// RFC 3986, section 5.2, without fragments.
std::string ResolveUri(std::string_view base_text, std::string_view reference_text) {
  if (reference_text.empty()) return std::string(base_text);
  const Uri base = Split(base_text);
  Uri r = Split(reference_text);
  if (r.scheme.empty()) {
    r.scheme = base.scheme;
    if (!r.has_authority) {
      r.authority = base.authority;
      r.has_authority = base.has_authority;
      if (r.path.empty()) {
        r.path = base.path;
        if (!r.has_query) {
          r.query = base.query;
          r.has_query = base.has_query;
        }
      } else if (r.path[0] != '/') {
        const std::size_t slash = base.path.rfind('/');
        const std::string parent =
            slash == std::string::npos ? (base.has_authority ? "/" : "") : base.path.substr(0, slash + 1);
        r.path = parent + r.path;
      }
    }
  }
  std::string out = r.scheme.empty() ? "" : r.scheme + ":";
  if (r.has_authority) out += "//" + r.authority;
  out += RemoveDots(r.path);
  if (r.has_query) out += "?" + r.query;
  return out;
}

std::string PointerUnescape(std::string_view token) {
  std::string out;
  for (std::size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '~' && i + 1 < token.size() && (token[i + 1] == '0' || token[i + 1] == '1')) {
      out.push_back(token[++i] == '0' ? '~' : '/');
    } else {
      out.push_back(token[i]);
    }
  }
  return out;
}

std::string_view IdOf(const JsonValue& value) {
  for (const std::string_view name : {"$id", "id"}) {
    const JsonValue* id = value.Find(name);
    if (id != nullptr && id->is(JsonValue::Type::kString)) return id->text;
  }
  return {};
}

}  // namespace

std::string PointerToken(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += c;
    }
  }
  return out;
}

std::string Path(std::string_view keyword) {
  return "/" + std::string(keyword);
}

std::string Path(std::string_view keyword, std::size_t index) {
  return fmt::format("/{}/{}", keyword, index);
}

std::string Path(std::string_view keyword, std::string_view name) {
  return fmt::format("/{}/{}", keyword, PointerToken(name));
}

SchemaDocument::SchemaDocument(const JsonValue& root, std::shared_ptr<Meter> meter) : meter_(std::move(meter)) {
  struct Row {
    std::string_view mark;
    Draft draft;
  };
  static constexpr std::array kDrafts = {Row{"draft-04", Draft::k4}, Row{"draft-03", Draft::k4},
                                         Row{"draft-06", Draft::k6}, Row{"draft-07", Draft::k7},
                                         Row{"2019-09", Draft::k2019}};
  if (const JsonValue* uri = root.Find("$schema")) {
    for (const Row& row : kDrafts) {
      if (uri->text.find(row.mark) != std::string::npos) draft_ = row.draft;
    }
  }
  resources_[""] = {&root, ""};
  std::vector<std::string_view> path;
  Scan(root, path, "");
  std::string base;
  const std::string_view id = IdOf(root);
  if (!id.empty()) base = ResolveUri("", id.substr(0, id.find('#')));
  Intern(root, "", base);
}

SchemaId SchemaDocument::Intern(const JsonValue& value, std::string pointer, std::string base) {
  const auto [it, fresh] = ids_.try_emplace(&value, static_cast<SchemaId>(schemas_.size()));
  if (fresh) {
    meter_->Hold(sizeof(SubSchema) + pointer.size() + base.size() + 64);
    meter_->Step((pointer.size() + base.size()) / 8);
    if (meter_->tripped()) {  // nobody reads them any more
      pointer = std::string();
      base = std::string();
    }
    schemas_.push_back({&value, std::move(pointer), std::move(base), {}});
  }
  return it->second;
}

void SchemaDocument::Scan(const JsonValue& value, std::vector<std::string_view>& path, const std::string& outer) {
  if (meter_->tripped()) return;
  meter_->Step(1 + value.members.size());
  const auto below = [&](const JsonValue& child, std::initializer_list<std::string_view> tokens,
                         const std::string& base) {
    path.insert(path.end(), tokens);
    Scan(child, path, base);
    path.resize(path.size() - tokens.size());
  };
  if (value.is(JsonValue::Type::kArray)) {
    for (std::size_t i = 0; i < value.items.size(); ++i) below(value.items[i], {std::to_string(i)}, outer);
    return;
  }
  if (!value.is(JsonValue::Type::kObject)) return;
  // The base is copied only where it changes.
  std::string changed;
  const std::string* base_now = &outer;
  const auto resource = [&]() -> Resource {
    std::string pointer;
    for (const std::string_view token : path) pointer += "/" + PointerToken(token);
    meter_->Hold(2 * (pointer.size() + base_now->size()) + 128);
    meter_->Step((pointer.size() + base_now->size()) / 8);
    return {&value, std::move(pointer)};
  };
  const bool ref_alone = draft_ <= Draft::k7 && value.Find("$ref") != nullptr;
  const std::string_view id = IdOf(value);
  if (!id.empty() && !ref_alone) {
    const std::size_t hash = id.find('#');
    if (hash != 0) {
      changed = ResolveUri(outer, id.substr(0, hash));
      base_now = &changed;
      resources_.try_emplace(changed, resource());
    }
    if (hash != std::string_view::npos && hash + 1 < id.size()) {
      anchors_.try_emplace(*base_now + std::string(id.substr(hash)), resource());
    }
  }
  for (const std::string_view keyword : {"$anchor", "$dynamicAnchor"}) {
    const JsonValue* anchor = value.Find(keyword);
    if (anchor == nullptr || !anchor->is(JsonValue::Type::kString)) continue;
    anchors_.try_emplace(*base_now + "#" + anchor->text, resource());
    if (keyword == "$dynamicAnchor") ++dynamic_anchors_[anchor->text];
  }
  for (const auto& [name, child] : value.members) {
    if (Contains(kOne, name)) {
      below(child, {name}, *base_now);
    } else if (Contains(kMany, name)) {
      if (child.is(JsonValue::Type::kArray)) below(child, {name}, *base_now);
      for (const auto& [key, schema] : child.members) below(schema, {name, key}, *base_now);
    }
  }
}

SchemaId SchemaDocument::Child(SchemaId parent, const JsonValue& value, std::string_view path) {
  const SubSchema& from = schemas_[parent];
  std::string base = from.base;
  const std::string_view id = IdOf(value);
  const bool ref_alone = draft_ <= Draft::k7 && value.Find("$ref") != nullptr;
  if (!id.empty() && id[0] != '#' && !ref_alone) base = ResolveUri(base, id.substr(0, id.find('#')));
  return Intern(value, from.pointer + std::string(path), std::move(base));
}

std::optional<SchemaId> SchemaDocument::Follow(const JsonValue& from, std::string pointer, std::string base,
                                               std::string_view path) {
  const JsonValue* at = &from;
  while (!path.empty()) {
    if (path[0] != '/') return std::nullopt;
    path.remove_prefix(1);
    const std::size_t end = std::min(path.find('/'), path.size());
    const std::string token = PointerUnescape(path.substr(0, end));
    path.remove_prefix(end);
    if (at->is(JsonValue::Type::kArray)) {
      std::size_t index = 0;
      const char* last = token.data() + token.size();
      const auto [stop, error] = std::from_chars(token.data(), last, index);
      if (error != std::errc() || stop != last || index >= at->items.size()) return std::nullopt;
      at = &at->items[index];
    } else {
      at = at->Find(token);
      if (at == nullptr) return std::nullopt;
    }
    pointer += "/" + PointerToken(token);
    const std::string_view id = IdOf(*at);
    if (at->is(JsonValue::Type::kObject) && !id.empty() && id[0] != '#') {
      base = ResolveUri(base, id.substr(0, id.find('#')));
    }
  }
  if (!at->is(JsonValue::Type::kObject) && !at->is(JsonValue::Type::kBool)) return std::nullopt;
  return Intern(*at, std::move(pointer), std::move(base));
}

std::optional<SchemaId> SchemaDocument::Resolve(SchemaId from, std::string_view reference) {
  const std::size_t hash = std::min(reference.find('#'), reference.size());
  const std::string uri = ResolveUri(schemas_[from].base, reference.substr(0, hash));
  const std::string fragment = hash < reference.size() ? DecodePercent(reference.substr(hash + 1)) : "";
  if (fragment.empty() || fragment[0] == '/') {
    const auto resource = resources_.find(uri);
    if (resource == resources_.end()) return std::nullopt;
    return Follow(*resource->second.value, resource->second.pointer, uri, fragment);
  }
  const auto anchor = anchors_.find(uri + "#" + fragment);
  if (anchor == anchors_.end()) return std::nullopt;
  return Intern(*anchor->second.value, anchor->second.pointer, uri);
}

std::optional<SchemaId> SchemaDocument::ResolveDynamic(SchemaId from, std::string_view reference) {
  const auto target = Resolve(from, reference);
  const std::size_t hash = reference.find('#');
  if (!target || hash == std::string_view::npos) return std::nullopt;
  const auto uses = dynamic_anchors_.find(std::string(reference.substr(hash + 1)));
  if (uses != dynamic_anchors_.end() && uses->second > 1) return std::nullopt;
  return target;
}

SchemaId SchemaDocument::Synthetic(JsonValue value, std::string pointer) {
  made_up_.push_back(std::move(value));
  return Intern(made_up_.back(), std::move(pointer), "");
}

SchemaId SchemaDocument::AnyOf(std::vector<Literal> literals, std::string pointer) {
  made_up_.emplace_back();
  const SchemaId id = Intern(made_up_.back(), std::move(pointer), "");
  schemas_[id].any_of = std::move(literals);
  return id;
}

}  // namespace galley::grammar
