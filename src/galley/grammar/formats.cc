// SPDX-License-Identifier: Apache-2.0
#include "galley/grammar/formats.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>

namespace galley::grammar {
namespace {

using Text = std::string;

Text Date() {
  return "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
         "02-(?:0[1-9]|1[0-9]|2[0-8]))|"
         "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";
}

// Seconds may be 60 here; LeapSeconds() says when.
Text Time() {
  return "(?:[01][0-9]|2[0-3]):[0-5][0-9]:(?:[0-5][0-9]|60)(?:\\.[0-9]+)?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
}

// A leap second is one at 23:59:60 in UTC. Local minute m and hour h are offset by +hh:mm or -hh:mm, so with +: mm is
// m + 1 (and hh is h + 1 where that carries), with -: mm is 59 - m and hh is 23 - h. Minutes and hours are two
// patterns, which keeps each small. `before` is what stands before the time; its form is checked elsewhere.
std::vector<Text> LeapSeconds(const Text& before) {
  const Text zone = "(?:[Zz]|[+-][0-9]{2}:[0-9]{2})";
  const Text fraction = "(?:\\.[0-9]+)?";
  Text minutes = "^" + before + "[0-9]{2}:(?:[0-9]{2}:[0-5][0-9]" + fraction + zone + "|59:60" + fraction + "[Zz]";
  for (int m = 0; m < 60; ++m) {
    minutes += fmt::format("|{:02}:60{}(?:\\+[0-9]{{2}}:{:02}|-[0-9]{{2}}:{:02})", m, fraction, (m + 1) % 60, 59 - m);
  }
  Text hours =
      "^" + before + "(?:[0-9]{2}:[0-9]{2}:[0-5][0-9]" + fraction + zone + "|23:[0-9]{2}:60" + fraction + "[Zz]";
  for (int h = 0; h < 24; ++h) {
    hours += fmt::format("|{0:02}:(?:[0-4][0-9]|5[0-8]):60{1}\\+{0:02}:[0-9]{{2}}", h, fraction);
    hours += fmt::format("|{:02}:59:60{}\\+{:02}:[0-9]{{2}}", h, fraction, (h + 1) % 24);
    hours += fmt::format("|{:02}:[0-9]{{2}}:60{}-{:02}:[0-9]{{2}}", h, fraction, 23 - h);
  }
  return {minutes + ")$", hours + ")$"};
}

Text Duration() {
  const Text time = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)";
  const Text date = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)";
  return "P(?:[0-9]+W|" + date + "(?:" + time + ")?|" + time + ")";
}

Text Ipv4() {
  const Text octet = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  return octet + "(?:\\." + octet + "){3}";
}

Text Ipv6() {
  const Text h = "[0-9A-Fa-f]{1,4}";
  const Text tail = "(?:" + h + ":" + h + "|" + Ipv4() + ")";
  Text out = "(?:(?:" + h + ":){6}" + tail;
  for (int after = 5; after >= 0; --after) {  // groups between "::" and the last 32 bits
    const int before = 4 - after + 1;
    const Text lead = before == 0 ? "" : fmt::format("(?:(?:{}:){{0,{}}}{})?", h, before - 1, h);
    out += fmt::format("|{}::(?:{}:){{{}}}{}", lead, h, after, tail);
  }
  out += fmt::format("|(?:(?:{0}:){{0,5}}{0})?::{0}|(?:(?:{0}:){{0,6}}{0})?::", h);
  return out + ")";
}

Text Hostname() {
  const Text label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  return label + "(?:\\." + label + ")*";
}

Text Email() {
  const Text atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  const Text quoted = "\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\"";
  return "(?:" + atom + "(?:\\." + atom + ")*|" + quoted + ")@(?:" + Hostname() + "|\\[" + Ipv4() +
         "\\]|\\[IPv6:" + Ipv6() + "\\])";
}

struct UriParts {
  Text unreserved;  // class content
  Text query;       // class content that only queries may hold besides
};

Text Uri(const UriParts& parts, bool reference) {
  const Text pct = "%[0-9A-Fa-f]{2}";
  const Text sub = "!$&'()*+,;=";
  const Text pchar = "(?:[" + parts.unreserved + sub + ":@]|" + pct + ")";
  const Text segment_no_colon = "(?:[" + parts.unreserved + sub + "@]|" + pct + ")+";
  const Text user = "(?:(?:[" + parts.unreserved + sub + ":]|" + pct + ")*@)?";
  const Text future = "[vV][0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+";
  const Text host = "(?:\\[(?:" + Ipv6() + "|" + future + ")\\]|(?:[" + parts.unreserved + sub + "]|" + pct + ")*)";
  const Text authority = user + host + "(?::[0-9]*)?";
  const Text abempty = "(?:/" + pchar + "*)*";
  const Text absolute = "/(?:" + pchar + "+" + abempty + ")?";
  const Text rootless = pchar + "+" + abempty;
  const Text rest = "(?:\\?(?:[/?" + parts.query + "]|" + pchar + ")*)?(?:#(?:[/?]|" + pchar + ")*)?";
  const Text full = "[A-Za-z][A-Za-z0-9+.-]*:(?://" + authority + abempty + "|" + absolute + "|" + rootless + "|)";
  if (!reference) return full + rest;
  const Text relative = "(?://" + authority + abempty + "|" + absolute + "|" + segment_no_colon + abempty + "|)";
  return "(?:" + full + "|" + relative + ")" + rest;
}

UriParts Ascii() {
  return {"A-Za-z0-9._~\\-", ""};
}

UriParts International() {
  Text ucs = "\\u{A0}-\\u{D7FF}\\u{F900}-\\u{FDCF}\\u{FDF0}-\\u{FFEF}";
  for (int plane = 1; plane <= 13; ++plane) ucs += fmt::format("\\u{{{:X}0000}}-\\u{{{:X}FFFD}}", plane, plane);
  ucs += "\\u{E1000}-\\u{EFFFD}";
  return {ucs + "A-Za-z0-9._~\\-", "\\u{E000}-\\u{F8FF}\\u{F0000}-\\u{FFFFD}\\u{100000}-\\u{10FFFD}"};
}

Text UriTemplate() {
  const Text literal =
      "[!#$&-;=?@A-Z\\[\\]_a-z~\\u{A0}-\\u{D7FF}\\u{E000}-\\u{F8FF}\\u{F900}-\\u{FDCF}\\u{FDF0}-\\u{FFEF}\\u{10000}-"
      "\\u{10FFFD}]|%[0-9A-Fa-f]{2}";
  const Text name = "(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})(?:\\.?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*";
  const Text variable = name + "(?::[1-9][0-9]{0,3}|\\*)?";
  return "(?:" + literal + "|\\{[+#./;?&=,!@|]?" + variable + "(?:," + variable + ")*\\})*";
}

Text Pointer() {
  return "(?:/(?:[^~/]|~[01])*)*";
}

// Patterns of the common core of ECMA-262, with groups nested up to `depth`: what the regular language can hold.
Text RegexSyntax(int depth) {
  const Text escape =
      "\\\\(?:[dDsSwWfnrtv^$\\\\.*+?()\\[\\]{}|/]|c[A-Za-z]|x[0-9A-Fa-f]{2}|u(?:[0-9A-CE-Fa-ce-f][0-9A-Fa-f]{3}|"
      "[Dd][0-7][0-9A-Fa-f]{2}))";
  const Text member = "(?:[^\\]\\[\\\\\\-]|" + escape + ")";
  const Text ranges = "(?:a-z|A-Z|0-9|a-f|A-F)";
  const Text set = "\\[\\^?(?:" + ranges + "|" + member + ")*-?\\]";
  Text atom = "(?:[^\\\\^$.*+?()\\[\\]{}|\\n\\r\\u2028\\u2029]|\\.|\\\\k<[A-Za-z]>|" + escape + "|" + set + ")";
  const Text name = "[A-Za-z_$][A-Za-z0-9_$]*";
  const Text quantifier =
      "(?:[*+?]\\?"
      "?|\\{(?:[0-9]|[1-9][0-9]{0,3})(?:,|)\\}\\?"
      "?)?";
  // Behind a look-around no quantifier may stand.
  const auto alternatives = [&](const Text& one, const Text& look_around) {
    const Text term = "(?:" + one + quantifier + "|[\\^$]|\\\\[bB]" + look_around + ")";
    return term + "*(?:\\|" + term + "*)*";
  };
  Text body = alternatives(atom, "");
  for (int i = 0; i < depth; ++i) {
    body =
        alternatives("(?:" + atom + "|\\((?:\\?:|\\?<" + name + ">)?" + body + "\\))", "|\\(\\?<?[=!]" + body + "\\)");
  }
  return body;
}

// A name is given to one group only, and a reference to a name needs its group. Remembering names is not regular, so
// there is one named group at most, and references stand behind the beginning of one with a name of one letter.
FormatPatterns RegexFormat() {
  const Text other = "(?:[^\\\\]|\\\\[^k])*";
  Text groups;
  for (const char base : {'A', 'a'}) {
    for (char letter = base; letter < base + 26; ++letter) {
      groups += fmt::format("{0}{1}>(?:[^\\\\]|\\\\[^k]|\\\\k<{1}>)*", groups.empty() ? "" : "|", letter);
    }
  }
  FormatPatterns out;
  out.must = {"^(?:" + RegexSyntax(3) + ")$", "^" + other + "(?:\\(\\?<(?:" + groups + "))?$"};
  out.must_not = {"\\(\\?<[A-Za-z_$][\\s\\S]*\\(\\?<[A-Za-z_$]"};
  return out;
}

Text Whole(const Text& body) {
  return "^(?:" + body + ")$";
}

struct Row {
  std::string_view name;
  FormatPatterns (*build)();
};

FormatPatterns Simple(const Text& body) {
  return {{Whole(body)}, {}, 0};
}

constexpr std::array kRows = {
    Row{"date",
        [] {
          return FormatPatterns{{Whole(Date())}, {"^0000"}, 0};
        }},
    Row{"time",
        [] {
          FormatPatterns out = Simple(Time());
          for (Text& text : LeapSeconds("")) out.must.push_back(std::move(text));
          return out;
        }},
    Row{"date-time",
        [] {
          FormatPatterns out{{Whole(Date() + "[Tt]" + Time())}, {"^0000"}, 0};
          for (Text& text : LeapSeconds("[0-9-]{10}[Tt]")) out.must.push_back(std::move(text));
          return out;
        }},
    Row{"duration", [] { return Simple(Duration()); }},
    Row{"email", [] { return Simple(Email()); }},
    Row{"hostname",
        [] {
          return FormatPatterns{{Whole(Hostname())}, {"(?:^|\\.)[A-Za-z0-9-]{2}--"}, 253};
        }},
    Row{"ipv4", [] { return Simple(Ipv4()); }},
    Row{"ipv6", [] { return Simple(Ipv6()); }},
    Row{"uuid", [] { return Simple("[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"); }},
    Row{"uri", [] { return Simple(Uri(Ascii(), false)); }},
    Row{"uri-reference", [] { return Simple(Uri(Ascii(), true)); }},
    Row{"iri", [] { return Simple(Uri(International(), false)); }},
    Row{"iri-reference", [] { return Simple(Uri(International(), true)); }},
    Row{"uri-template", [] { return Simple(UriTemplate()); }},
    Row{"json-pointer", [] { return Simple(Pointer()); }},
    Row{"relative-json-pointer", [] { return Simple("(?:0|[1-9][0-9]*)(?:#|" + Pointer() + ")"); }},
    Row{"regex", [] { return RegexFormat(); }},
};

}  // namespace

FormatPatterns FindFormat(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.build();
  }
  return {};
}

std::string KnownFormats() {
  std::string out;
  for (const Row& row : kRows) {
    if (!out.empty()) out += ", ";
    out += row.name;
  }
  return out;
}

}  // namespace galley::grammar
