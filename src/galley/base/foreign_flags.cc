// SPDX-License-Identifier: Apache-2.0
#include "galley/base/foreign_flags.h"

#include <algorithm>

namespace galley::options {
namespace {

constexpr std::string_view kOneDevice = "Galley runs a model on one device today; leave it out, or give 1";
constexpr std::string_view kMemory = "Galley plans bytes, not shares: see --memory-limit, --blocks and `galley plan`";
constexpr std::string_view kDrafts = "see --speculation and --draft-tokens";
constexpr std::string_view kRoles = "Galley has no separate prefill and decode servers yet";

constexpr ForeignFlag kServe[] = {
    {"tensor-parallel-size", true, kOneDevice, "1"},
    {"tp-size", true, kOneDevice, "1"},
    {"tp", true, kOneDevice, "1"},
    {"data-parallel-size", true, kOneDevice, "1"},
    {"dp-size", true, kOneDevice, "1"},
    {"dp", true, kOneDevice, "1"},
    {"pipeline-parallel-size", true, kOneDevice, "1"},
    {"enable-expert-parallel", false, "Galley runs a model on one device today; leave it out"},
    {"ep-size", true, kOneDevice, "1"},
    {"ep", true, kOneDevice, "1"},
    {"chunked-prefill-size", true, "chunks are cut to what a step has room for; see --step-rows"},
    {"gpu-memory-utilization", true, kMemory},
    {"mem-fraction-static", true, kMemory},
    {"kv-cache-dtype", true, "the model's own record formats are the only ones; leave it out", "auto"},
    {"disable-radix-cache", false, "use --no-prefix-caching"},
    {"speculative-config", true, kDrafts},
    {"speculative-algorithm", true, kDrafts},
    {"tool-call-parser", true, "calls are always parsed in the model's own format; leave it out",
     "auto deepseek_v4 deepseek_v41 deepseekv4 deepseekv41"},
    {"reasoning-parser", true, "reasoning is always parsed in the model's own format; leave it out",
     "auto deepseek_v4 deepseek_v41 deepseek-v4 deepseek-v41"},
    {"enable-auto-tool-choice", false, "", "*"},
    {"enable-metrics", false, "", "*"},
    {"trust-remote-code", false, "", "*"},
    {"sampling-defaults", true, "use --generation-config auto for `model`, none for `openai`"},
    {"seed", true, "requests carry seeds; one without draws its own"},
    {"kv-transfer-config", true, kRoles},
    {"disaggregation-mode", true, kRoles, "null"},
    {"dtype", true, "weights are used as the checkpoint holds them; leave it out", "auto"},
    {"quantization", true, "weights are used as the checkpoint holds them; leave it out"},
    {"allowed-origins", true, "use --cors-origin, once for each origin"},
    {"chat-template", true, "Galley renders the model's own format; leave it out"},
};

}  // namespace

std::span<const ForeignFlag> ForeignFlags(std::string_view command) {
  if (command == "serve") return kServe;
  return {};
}

const ForeignFlag* FindForeign(std::string_view command, std::string_view name) {
  const std::span<const ForeignFlag> flags = ForeignFlags(command);
  const auto found = std::find_if(flags.begin(), flags.end(), [&](const ForeignFlag& f) { return f.name == name; });
  return found == flags.end() ? nullptr : &*found;
}

}  // namespace galley::options
