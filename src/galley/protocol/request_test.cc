// SPDX-License-Identifier: Apache-2.0
#include "galley/protocol/request.h"

#include <gtest/gtest.h>

#include <set>

#include "galley/protocol/codec_serve.h"
#include "galley/protocol/vectors_for_test.h"

namespace galley::protocol {
namespace {

// Compared with the wording of neither side: only the kind of a body error is fixed.
Json WithoutWording(Json expect) {
  if (const Json* error = expect.Find("error"); error != nullptr && *error != Json("conversion"))
    expect.Set("message", Json());
  if (Json* error = expect.Find("render_error")) *error = Json(true);
  return expect;
}

// Cases that Galley answers better, see docs/codec.md.
bool DiffersOnPurpose(const std::string& weak) {
  static const std::set<std::string> kBetter = {"W15", "W16", "W18", "W19", "W21", "W22", "W24"};
  return kBetter.contains(weak);
}

TEST(Request, MatchesEveryRenderVector) {
  int matched = 0, on_purpose = 0;
  for (Json row : ReadVectors("render")) {
    row.Set("file", "render.jsonl.xz");
    Json expect = At(row, {"expect"});
    expect.Set("ids", Json());  // compared in codec_serve_test.cc, where a tokenizer may be at hand
    if (expect.Find("render_error") != nullptr) expect.Set("render_error", Json());
    Json got = At(RunCodecCase(row, {}), {"expect"});
    got.Set("ids", Json());
    if (expect.Find("render_error") != nullptr) got.Set("render_error", Json());
    if (SameJson(WithoutWording(got), WithoutWording(expect))) {
      ++matched;
    } else if (DiffersOnPurpose(TextAt(row, {"weak"}))) {
      ++on_purpose;
    } else {
      ADD_FAILURE() << TextAt(row, {"id"}) << " " << TextAt(row, {"name"}) << "\n"
                    << DumpJson(At(row, {"request"})) << "\n got " << DumpJson(got) << "\nwant " << DumpJson(expect);
    }
  }
  std::cout << "render: " << matched << " matched, " << on_purpose << " differ on purpose\n";
}

}  // namespace
}  // namespace galley::protocol
