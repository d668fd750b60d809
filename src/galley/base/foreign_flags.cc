// SPDX-License-Identifier: Apache-2.0
#include "galley/base/foreign_flags.h"

#include <algorithm>

namespace galley::options {
namespace {

constexpr std::string_view kOneDevice = "Galley runs a model on one device today; leave it out, or give 1";
constexpr std::string_view kMemory = "Galley plans bytes, not shares: see --memory-limit, --blocks and `galley plan`";
constexpr std::string_view kDrafts = "see --speculation and --draft-tokens";
constexpr std::string_view kGraphs = "use --cuda-graphs on or off";
constexpr std::string_view kBlockTokens = "history blocks have 128 tokens; leave it out";
constexpr std::string_view kBlocks = "use --blocks, which counts blocks of 128 tokens";
constexpr std::string_view kWeights = "weights are used as the checkpoint holds them; leave it out";
constexpr std::string_view kNoDownload = "nothing is downloaded; name a directory with --model";
constexpr std::string_view kGrammars = "the grammar engine is Galley's own; leave it out";
constexpr std::string_view kLogs = "see --log-requests, --log-prompts and --log-level";
constexpr std::string_view kNoImages = "this server reads no images; leave it out";
constexpr std::string_view kOrder = "requests go by priority, then as they came; leave it out";
constexpr std::string_view kRoles = "Galley has no separate prefill and decode servers yet";

constexpr ForeignFlag kServe[] = {
    {"tensor-parallel-size", true, kOneDevice, "1"},
    {"tp-size", true, kOneDevice, "1"},
    {"tp", true, kOneDevice, "1"},
    {"data-parallel-size", true, kOneDevice, "1"},
    {"dp-size", true, kOneDevice, "1"},
    {"dp", true, kOneDevice, "1"},
    {"pipeline-parallel-size", true, kOneDevice, "1"},
    {"pp-size", true, kOneDevice, "1"},
    {"pp", true, kOneDevice, "1"},
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
    {"dtype", true, kWeights, "auto"},
    {"quantization", true, kWeights},
    {"q", true, kWeights},
    {"allowed-origins", true, "use --cors-origin, once for each origin"},
    {"allow-credentials", false, "browsers send keys as headers; see --cors-origin"},
    {"chat-template", true, "Galley renders the model's own format; leave it out"},
    {"response-role", true, "answers are the assistant's; leave it out", "assistant"},
    {"enforce-eager", false, "use --cuda-graphs off"},
    {"disable-cuda-graph", false, "use --cuda-graphs off"},
    {"cuda-graph-max-bs", true, kGraphs},
    {"cuda-graph-bs", true, kGraphs},
    {"cuda-graph-sizes", true, kGraphs},
    {"max-seq-len-to-capture", true, kGraphs},
    {"enable-chunked-prefill", false, "", "*"},
    {"no-enable-chunked-prefill", false, "prompts are always cut to what a step has room for; see --step-rows"},
    {"no-enable-prefix-caching", false, "use --no-prefix-caching"},
    {"num-speculative-tokens", true, "use --draft-tokens"},
    {"speculative-num-draft-tokens", true, "use --draft-tokens"},
    {"speculative-num-steps", true, "use --draft-tokens"},
    {"speculative-model", true, kDrafts},
    {"speculative-draft-model-path", true, kDrafts},
    {"guided-decoding-backend", true, kGrammars, "auto"},
    {"grammar-backend", true, kGrammars, "auto"},
    {"structured-outputs-config", true, kGrammars},
    {"block-size", true, kBlockTokens, "128"},
    {"page-size", true, kBlockTokens, "128"},
    {"max-total-tokens", true, kBlocks},
    {"num-gpu-blocks-override", true, kBlocks},
    {"swap-space", true, "nothing is swapped out; leave it out", "0"},
    {"cpu-offload-gb", true, "see --experts disk and --expert-memory", "0"},
    {"load-format", true, "checkpoints are safetensors; leave it out", "auto safetensors"},
    {"download-dir", true, kNoDownload},
    {"revision", true, kNoDownload},
    {"tokenizer", true, "the tokenizer is the model directory's; leave it out"},
    {"tokenizer-path", true, "the tokenizer is the model directory's; leave it out"},
    {"tokenizer-mode", true, "the tokenizer is Galley's own; leave it out", "auto"},
    {"skip-tokenizer-init", false, "texts are always read and written here; leave it out"},
    {"max-logprobs", true, "a request may ask for 20; leave it out", "20"},
    {"attention-backend", true, "see --backend, and --isa for the processor"},
    {"device", true, "use --backend cpu or cuda", "auto"},
    {"schedule-policy", true, kOrder, "fcfs"},
    {"scheduling-policy", true, kOrder, "fcfs priority"},
    {"limit-mm-per-prompt", true, kNoImages},
    {"enable-multimodal", false, kNoImages},
    {"root-path", true, "the proxy takes the prefix off; the API answers under /v1, /beta and /anthropic"},
    {"fastapi-root-path", true, "the proxy takes the prefix off; the API answers under /v1, /beta and /anthropic"},
    {"disable-log-requests", false, "use --no-log-requests"},
    {"no-enable-log-requests", false, "use --no-log-requests"},
    {"enable-log-requests", false, "", "*"},
    {"log-level-http", true, kLogs},
    {"uvicorn-log-level", true, kLogs},
    {"max-log-len", true, kLogs},
    {"disable-log-stats", false, "", "*"},
    {"disable-frontend-multiprocessing", false, "", "*"},
    {"random-seed", true, "requests carry seeds; one without draws its own"},
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
