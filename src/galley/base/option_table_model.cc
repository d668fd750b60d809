// SPDX-License-Identifier: Apache-2.0
#include "galley/base/option_table_parts.h"

#include <cstdint>

namespace galley::options {
namespace {

constexpr std::int64_t kIntMax = INT64_MAX;

// DeepInfer's switches are 0 and 1.
constexpr ForeignValue kSwitch[] = {{"0", "false"}, {"1", "true"}};
constexpr ForeignValue kAccelerators[] = {
    {"nvidia", "cuda"},
    {"ascend", "",
     "names an accelerator that Galley does not support; supported are nvidia (backend cuda) and, with "
     "GALLEY_BACKEND, the processor (cpu, ref)"},
};
constexpr ForeignValue kTruncationModes[] = {{"compact", "compact"}, {"off", "off"}, {"0", "off"}};

// Model and where it runs.
constexpr Spec kModel[] = {
    {.name = "model",
     .type = Type::kPath,
     .commands = "generate chat tokenize inspect dump grammar-serve plan bench serve calibrate",
     .value_name = "DIR",
     .help = "Model directory in the official checkpoint layout; without it the small model that comes with Galley.",
     .aliases = "model-path",
     .foreign = {"DEEPINFER_HF_MODEL_DIR"}},
    {.name = "weights-digest",
     .type = Type::kString,
     .commands = "generate chat dump bench serve calibrate",
     .value_name = "HEX",
     .help =
         "Read all weights first and stop unless their digest is this one, as `galley inspect --digest` prints it."},
    {.name = "backend",
     .type = Type::kEnum,
     .commands = "generate chat dump plan bench serve calibrate",
     .initial = "auto",
     .help = "What computes: plain reference code, the processor's vector units, or an NVIDIA GPU; auto is "
             "the processor.",
     .choices = "auto ref cpu cuda",
     .foreign = {"DEEPINFER_ACCELERATOR", kAccelerators}},
    {.name = "isa",
     .type = Type::kEnum,
     .commands = "generate chat dump bench serve calibrate",
     .initial = "auto",
     .help = "Instruction set of the cpu backend; auto is the fastest that the processor has, amx excepted, which is "
             "taken by name only. Results differ in their last bits between instruction sets.",
     .choices = "auto generic avx2 avx512 avx512bf16 amx"},
    {.name = "experts",
     .type = Type::kEnum,
     .commands = "generate chat dump plan bench serve calibrate",
     .initial = "device",
     .help = "Where routed experts are kept: with what computes, in main memory (the same for ref and cpu; cuda reads "
             "them over PCIe), or on disk with those most used in memory (--expert-memory).",
     .choices = "device host disk"},
    {.name = "expert-memory",
     .type = Type::kBytes,
     .commands = "generate chat dump plan bench serve calibrate",
     .value_name = "BYTES",
     .initial = "0",
     .help = "With --experts disk: main memory for experts, as 64GiB; 0 takes half of the memory "
             "limit, or what all else leaves of it when that is less."},
    {.name = "expert-cache",
     .type = Type::kBytes,
     .commands = "generate chat dump plan bench serve calibrate",
     .value_name = "BYTES",
     .initial = "0",
     .help = "With --backend cuda and --experts host or disk: GPU memory in which those of the experts stay that are "
             "used most, as 64GiB. 0: on the host none, so that kernels read them there; on disk one layer's experts, "
             "which is the least."},
    {.name = "cuda-graphs",
     .type = Type::kEnum,
     .commands = "generate chat dump plan bench serve calibrate",
     .initial = "on",
     .help =
         "Whether the cuda backend records decode steps and replays them. On pays for few sequences and short steps "
         "(nano alone by a tenth; with 64 at once nothing); off for one sequence whose text repeats itself, since "
         "drafts found by lookup are then verified too (nano twice as fast). Does not change the result.",
     .choices = "on off"},
    {.name = "engram",
     .type = Type::kEnum,
     .commands = "generate chat dump plan bench serve calibrate",
     .initial = "device",
     .help = "Where Engram's tables are kept: with what computes, in main memory (the same for ref and cpu), or on "
             "disk, rows being read when a step's tokens are known.",
     .choices = "device host disk"},
    {.name = "weight-cache",
     .type = Type::kPath,
     .commands = "generate chat dump bench serve calibrate",
     .value_name = "FILE",
     .help = "File with the weights in the order in which they are used, written when it is not there or of another "
             "model; as large as the model. For --experts disk and models whose own files scatter an expert's arrays. "
             "Safe to delete."},
    {.name = "threads",
     .type = Type::kInt,
     .commands = "generate chat dump bench serve calibrate",
     .value_name = "N",
     .initial = "0",
     .help = "Processor threads; 0 takes one for each physical core that the process may use, cut to the whole "
             "processors of its control group's quota (ref: one for each processor).",
     .ints = {0, 1024}},
    {.name = "max-seq-len",
     .type = Type::kInt,
     .commands = "generate chat plan serve",
     .value_name = "N",
     .initial = "0",
     .help = "Longest sequence, prompt and answer, in tokens; 0 takes what the model states.",
     .ints = {0, std::int64_t{1} << 24},
     .aliases = "max-model-len context-length",
     .multiples = true},
    {.name = "prefill-chunk",
     .type = Type::kInt,
     .commands = "generate chat",
     .value_name = "N",
     .initial = "256",
     .help = "Prompt tokens that one step handles. Does not change the result.",
     .ints = {1, 65535}},
    {.name = "decoder-truncation",
     .type = Type::kEnum,
     .commands = "generate chat bench serve",
     .initial = "off",
     .help = "compact: only the last tokens of a prompt run through the decoder layers, which nearly halves the work. "
             "Changes results slightly.",
     .choices = "off compact",
     .foreign = {"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", kTruncationModes}},
    {.name = "decoder-keep",
     .type = Type::kInt,
     .commands = "generate chat bench serve",
     .value_name = "N",
     .initial = "140",
     .help = "Prompt tokens that decoder-truncation keeps.",
     .ints = {1, std::int64_t{1} << 24},
     .foreign = {"DEEPINFER_YOCO_PREFILL_KEEP_TOKENS"}},
    {.name = "batch-invariant",
     .type = Type::kBool,
     .commands = "generate chat dump serve",
     .initial = "true",
     .help = "The result does not depend on what shares a batch.",
     .foreign = {"DEEPINFER_BATCH_INVARIANT", kSwitch},
     .unavailable = "results are always batch-invariant and there is no other mode"},
};

// Speculative decoding.
constexpr Spec kSpeculation[] = {
    {.name = "speculation",
     .type = Type::kEnum,
     .commands = "generate chat serve bench plan",
     .initial = "auto",
     .help =
         "Where drafts come from: the model's draft head (dspark), earlier occurrences of the newest tokens (ngram), "
         "or "
         "with a draft head on ref and cpu both (auto). The output does not depend on them. rejection: the draft head "
         "with classic rejection sampling, which accepts a little more and draws other tokens.",
     .choices = "auto off dspark ngram rejection"},
    {.name = "draft-tokens",
     .type = Type::kInt,
     .commands = "generate chat serve bench plan",
     .value_name = "N",
     .initial = "5",
     .help = "Drafts that a step verifies at most; 0 switches speculation off.",
     .ints = {0, 5},
     .foreign = {"DEEPINFER_USE_NEXTN_DECODE"}},
    {.name = "fixed-acceptance",
     .type = Type::kFloat,
     .commands = "bench",
     .value_name = "N",
     .help =
         "Take this many drafts a round as accepted, on average, whatever the model says: for comparing speeds. The "
         "output is then worth nothing.",
     .floats = {0, 5},
     .scope = Scope::kFlag},
    {.name = "adaptive-verify",
     .type = Type::kBool,
     .commands = "serve bench",
     .initial = "true",
     .help =
         "Verify as many drafts as pay, by their confidences and the measured times of steps, so that sequences of a "
         "step differ in it; false: every draft of every step. The output is the same.",
     .without = "Verify every draft of every step, not as many as pay. The output is the same.",
     .foreign = {"DEEPINFER_ENABLE_MTP_VARLEN", kSwitch}},
};

// Prompt.
constexpr Spec kPrompt[] = {
    {.name = "prompt-file",
     .type = Type::kPath,
     .commands = "generate tokenize grammar calibrate",
     .value_name = "FILE",
     .help = "Read the text from this file instead of from the arguments.",
     .scope = Scope::kFlag},
    {.name = "ids",
     .type = Type::kPath,
     .commands = "generate dump",
     .value_name = "FILE",
     .help = "Read the prompt as token ids: a JSON array of integers; `-` is standard input.",
     .scope = Scope::kFlag},
    {.name = "raw",
     .type = Type::kBool,
     .commands = "generate",
     .help = "Continue the text as it is instead of answering it as a chat message.",
     .scope = Scope::kFlag},
    {.name = "special",
     .type = Type::kBool,
     .commands = "generate tokenize",
     .help = "Take spellings of control tokens in the text as control tokens (generate: with --raw).",
     .scope = Scope::kFlag},
    {.name = "system",
     .type = Type::kString,
     .commands = "generate chat",
     .value_name = "TEXT",
     .help = "System message in front of the conversation."},
    {.name = "thinking",
     .type = Type::kBool,
     .commands = "generate chat",
     .help = "Let the model reason before it answers."},
    {.name = "effort",
     .type = Type::kEnum,
     .commands = "generate chat",
     .initial = "high",
     .help = "How thoroughly to reason when thinking is on.",
     .choices = "low high max"},
};

// Sampling.
constexpr Spec kSampling[] = {
    {.name = "temperature",
     .type = Type::kFloat,
     .commands = "generate chat bench calibrate",
     .value_name = "X",
     .initial = "1.0",
     .help = "Divides the logits before the draw; 0 takes the most likely token.",
     .floats = {0, 2}},
    {.name = "top-p",
     .type = Type::kFloat,
     .commands = "generate chat",
     .value_name = "P",
     .initial = "1.0",
     .help = "Draw from the most likely tokens that together have this probability.",
     .floats = {0, 1, true}},
    {.name = "top-k",
     .type = Type::kInt,
     .commands = "generate chat",
     .value_name = "N",
     .initial = "0",
     .help = "Draw from this many most likely tokens; 0 is off.",
     .ints = {0, 1'000'000}},
    {.name = "min-p",
     .type = Type::kFloat,
     .commands = "generate chat",
     .value_name = "P",
     .initial = "0",
     .help = "Drop tokens less likely than this share of the most likely one.",
     .floats = {0, 1}},
    {.name = "seed",
     .type = Type::kInt,
     .commands = "generate chat sim bench calibrate",
     .value_name = "N",
     .help = "The same seed draws the same tokens (sim, bench: repeats the run); without one each run draws its own.",
     .ints = {0, kIntMax}},
    {.name = "max-tokens",
     .type = Type::kInt,
     .commands = "generate chat plan calibrate",
     .value_name = "N",
     .initial = "512",
     .help =
         "Most tokens to generate for one answer; plan: tokens, prompt and answer, that each sequence has room for, "
         "full length where this is not given.",
     .ints = {1, std::int64_t{1} << 24},
     .aliases = "max-new-tokens"},
    {.name = "stop",
     .type = Type::kList,
     .commands = "generate chat",
     .value_name = "TEXT",
     .help = "End the answer before this text."},
};

// What comes out.
constexpr Spec kOutput[] = {
    {.name = "logprobs",
     .type = Type::kInt,
     .commands = "generate",
     .value_name = "N",
     .help = "Report log-probabilities: of each token and of N alternatives. Needs --json.",
     .ints = {0, 20},
     .scope = Scope::kFlag},
    {.name = "json",
     .type = Type::kBool,
     .commands = "generate tokenize inspect sim grammar plan bench calibrate",
     .help = "Print one JSON object instead of text.",
     .scope = Scope::kFlag},
    {.name = "digest",
     .type = Type::kBool,
     .commands = "inspect",
     .help = "Read all weights and print their digest, for --weights-digest.",
     .scope = Scope::kFlag},
    {.name = "show-timings",
     .type = Type::kBool,
     .commands = "generate chat",
     .help = "Print tokens per second on standard error."},
};

// Comparison with other implementations.
constexpr Spec kDump[] = {
    {.name = "out",
     .type = Type::kPath,
     .commands = "dump calibrate",
     .value_name = "FILE",
     .help = "Write to this file: dump the tensors (.safetensors), calibrate what it fitted."},
    {.name = "compare",
     .type = Type::kPath,
     .value_name = "GOLDEN",
     .help = "Compare with the tensors of this .safetensors file. Its prompt is used unless --ids is given."},
    {.name = "chunk",
     .type = Type::kInt,
     .value_name = "N",
     .initial = "0",
     .help = "Prompt tokens that one step handles; 0 takes the whole prompt in one step.",
     .ints = {0, std::int64_t{1} << 24}},
    {.name = "truncate-decoder",
     .type = Type::kInt,
     .value_name = "KEEP",
     .initial = "0",
     .help =
         "Add a second run in which only the last KEEP prompt tokens go through the decoder layers (tensors replay.*).",
     .ints = {0, std::int64_t{1} << 24}},
    {.name = "greedy",
     .type = Type::kInt,
     .value_name = "N",
     .initial = "32",
     .help = "Length of the greedy continuation; with --compare, that of the golden file.",
     .ints = {0, 65536}},
    {.name = "drafts",
     .type = Type::kInt,
     .value_name = "N",
     .initial = "-1",
     .help =
         "Positions of the continuation at which the draft head runs too (tensors dspark.*), where the model has one; "
         "with --compare, as many as in the golden file.",
     .ints = {-1, 65536}},
    {.name = "full-layer",
     .type = Type::kList,
     .value_name = "LAYER",
     .help =
         "Store the whole stream after this layer (tensors h_all, pre_all); with --compare, those of the golden file."},
    {.name = "engine-window",
     .type = Type::kBool,
     .help =
         "Attention lists as generation has them, which for prompts shorter than the window differ from the official "
         "prefill in the order of sums."},
};

// Tokenizer.
constexpr Spec kTokenizer[] = {
    {.name = "tokenizer",
     .type = Type::kPath,
     .commands = "tokenize codec-serve grammar-serve",
     .value_name = "FILE",
     .help = "tokenizer.json to use, or a directory that holds one; goes before --model."},
    {.name = "decode",
     .type = Type::kBool,
     .help = "Turn token ids into text: the input is a JSON array or ids separated by spaces."},
    {.name = "count", .type = Type::kBool, .help = "Print only the number of tokens."},
    {.name = "tokens", .type = Type::kBool, .help = "Print one line a token: position, id, spelling."},
};

// Simulator.
constexpr Spec kSimulator[] = {
    {.name = "steps",
     .type = Type::kInt,
     .value_name = "N",
     .initial = "100000",
     .help = "Steps to simulate of each seed; what runs then still ends.",
     .ints = {1, 1'000'000'000}},
    {.name = "ranks",
     .type = Type::kInt,
     .value_name = "N",
     .initial = "1",
     .help = "Ranks that step together and vote.",
     .ints = {1, 64}},
    {.name = "steps-per-world",
     .type = Type::kInt,
     .value_name = "N",
     .initial = "2000",
     .help = "Steps after which everything drains and another random configuration begins.",
     .ints = {1, 1'000'000'000}},
    {.name = "seeds",
     .type = Type::kInt,
     .value_name = "N",
     .initial = "1",
     .help = "Run so many seeds, counting up from --seed, and stop at the first that fails.",
     .ints = {1, 1'000'000'000}},
};

// Constrained output.
constexpr Spec kGrammar[] = {
    {.name = "json-schema",
     .type = Type::kPath,
     .commands = "generate",
     .value_name = "FILE",
     .help = "The answer is JSON that this schema allows.",
     .scope = Scope::kFlag},
    {.name = "regex",
     .type = Type::kString,
     .commands = "generate",
     .value_name = "PATTERN",
     .help = "The answer as a whole matches this pattern.",
     .scope = Scope::kFlag},
    {.name = "grammar",
     .type = Type::kPath,
     .commands = "generate",
     .value_name = "FILE",
     .help = "The answer follows this EBNF grammar.",
     .scope = Scope::kFlag},
    {.name = "kind",
     .type = Type::kEnum,
     .commands = "grammar",
     .initial = "json_schema",
     .help = "What the file of `galley grammar check` holds.",
     .choices = "json_schema regex ebnf choice structural_tag dsml",
     .scope = Scope::kFlag},
    {.name = "whitespace",
     .type = Type::kEnum,
     .commands = "generate grammar",
     .initial = "default",
     .help = "Blanks between the tokens of JSON: none, one space behind commas and colons, or whatever JSON allows up "
             "to 128 in a row.",
     .choices = "compact default flexible"},
    {.name = "any-order",
     .type = Type::kBool,
     .commands = "generate grammar",
     .help = "Members of an object in any order instead of the schema's."},
    {.name = "lenient",
     .type = Type::kBool,
     .commands = "generate grammar",
     .help = "Ignore keywords and formats of a JSON Schema that Galley does not know, with a warning, instead of "
             "refusing them."},
    {.name = "grammar-limits",
     .type = Type::kList,
     .commands = "serve generate grammar",
     .value_name = "NAME=N,…",
     .help =
         "What one grammar may cost, as steps_max=120000000 or compile_bytes_max=1GiB; errors name the limit that was "
         "reached, and docs/grammar.md lists all."},
    {.name = "vocab",
     .type = Type::kPath,
     .commands = "grammar-serve",
     .value_name = "FILE",
     .help = "Vocabulary file of the line protocol; goes before --tokenizer and --model.",
     .scope = Scope::kFlag},
};

constexpr Section kSections[] = {
    {.name = "model", .rows = kModel},
    {.name = "speculation", .rows = kSpeculation},
    {.name = "prompt", .rows = kPrompt},
    {.name = "sampling", .rows = kSampling},
    {.name = "output", .rows = kOutput},
    {.name = "dump", .commands = "dump", .scope = Scope::kFlag, .rows = kDump},
    {.name = "tokenizer", .commands = "tokenize", .scope = Scope::kFlag, .rows = kTokenizer},
    {.name = "simulator", .commands = "sim", .scope = Scope::kFlag, .rows = kSimulator},
    {.name = "grammar", .rows = kGrammar},
};

}  // namespace

std::span<const Section> ModelOptions() {
  return kSections;
}

}  // namespace galley::options
