// SPDX-License-Identifier: Apache-2.0
// After warm-up the step path of a running engine allocates nothing. The hook counts operator new on every thread but
// the test's own: the engine's, the executor's and those of the backend; what a sink does is the caller's and is left
// out. Counting begins and ends inside sinks, between steps that neither admit nor end a request.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "galley/backend/cpu/cpu_backend.h"
#include "galley/backend/decorator.h"
#include "galley/backend/memory_formats.h"
#include "galley/engine/engine_for_test.h"

namespace {

std::atomic<std::int64_t> allocations{0};
thread_local bool left_out = false;  // the thread's allocations do not count for now

class LeaveOut {
 public:
  LeaveOut() : before_(left_out) { left_out = true; }
  ~LeaveOut() { left_out = before_; }
  LeaveOut(const LeaveOut&) = delete;
  LeaveOut& operator=(const LeaveOut&) = delete;

 private:
  bool before_;
};

void Count() {
  if (!left_out) allocations.fetch_add(1, std::memory_order_relaxed);
}

void* Take(std::size_t size) {
  Count();
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) std::abort();
  return memory;
}

void* TakeAligned(std::size_t size, std::align_val_t alignment) {
  Count();
  const auto unit = static_cast<std::size_t>(alignment);
  void* const memory = std::aligned_alloc(unit, (size + unit - 1) / unit * unit);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(std::size_t size) {
  return Take(size);
}
void* operator new[](std::size_t size) {
  return Take(size);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return TakeAligned(size, alignment);
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return TakeAligned(size, alignment);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace galley::engine {
namespace {

// Allocations between two ticks, which are counted from 1.
struct Meter {
  int first = 0, last = 0;
  const backend::Backend* backend = nullptr;
  int ticks = 0;
  std::int64_t host = 0, device = 0;

  void Tick() {
    ++ticks;
    if (ticks == first) {
      host = -allocations.load();
      device = -backend->allocations();
    } else if (ticks == last) {
      host += allocations.load();
      device += backend->allocations();
    }
  }
};

// Remembers where the engine's backend is.
EngineOptions Watched(EngineOptions options, const backend::Backend*& backend) {
  options.wrap_backend = [&backend](std::unique_ptr<backend::Backend> inner) {
    backend = inner.get();
    return inner;
  };
  return options;
}

struct Case {
  const char* name;
  const char* backend;
  SpeculationMode mode;
};

EngineOptions StepOptions(const Case& on) {
  EngineOptions options = Options();
  options.device.backend = on.backend;
  options.step_rows_max = 24;
  options.itl_target_s = 10;  // chunks as long as the step holds
  options.speculation.mode = on.mode;
  return options;
}

// A request whose output goes on for long, in tokens of which each is short text: the text of a token is a value of its
// event's, and allocates only when it is longer than a string holds in place. Logprobs are such values too, and so are
// not asked for.
EngineRequest Long(const Engine& engine, std::uint32_t id, int prompt, int max_tokens) {
  EngineRequest request = Request(id, prompt, 0, max_tokens);
  request.use_cache = false;
  const std::vector<TokenId> printable = PrintableIds(engine.tokenizer());
  for (TokenId token = 0; token < engine.config().vocab_size; ++token) {
    const bool shows = std::binary_search(printable.begin(), printable.end(), token);
    if (!shows || engine.tokenizer().TokenBytes(token)->size() > 15) request.rules.banned_ids.push_back(token);
  }
  if (id == 1) {
    request.sampling.top_p = 0.9;
    request.rules.bias = {{5, -1.0f}};
    request.rules.repetition_penalty = 1.1;
    request.banned_words = {"that is long enough to need memory", "zq"};
    request.stop_strings = {"\n\n\nnever"};
  }
  if (id == 2) {
    request.sampling.top_k = 40;
    request.sampling.min_p = 0.01;
    request.rules.presence_penalty = 0.2;
    request.rules.frequency_penalty = 0.1;
    request.stop_ids = {engine.config().eos_token_id};
    request.min_tokens = 100;
  }
  return request;
}

class StepPath : public ::testing::TestWithParam<Case> {
 protected:
  // The reference backend's kernels are written to be read, with vectors of their own; its device memory counts.
  static bool CountsHost() { return std::string_view(GetParam().backend) != "ref"; }
};

TEST_P(StepPath, DecodingAllocatesNothingAfterWarmUp) {
  const LeaveOut own;
  // Between them every sequence crosses a block border, at its token 105 or so.
  Meter meter{.first = 30, .last = 140};
  const auto engine = Make(Watched(StepOptions(GetParam()), meter.backend));
  const std::int64_t at_start = allocations.load();
  for (std::uint32_t id = 0; id < 3; ++id) {
    const auto sink = [&meter, id, &engine](const EngineEvent& event) {
      const LeaveOut sinks;
      if (id != 0 || !std::holds_alternative<TokenEvent>(event)) return;
      meter.Tick();
      for (int other = 0; meter.ticks == meter.last && other < 3; ++other) engine->Cancel(RequestId(other));
    };
    ASSERT_TRUE(engine->Submit(Long(*engine, id, 24, 900), sink));
  }
  engine->Drain();
  ASSERT_GT(allocations.load(), at_start) << "the hook counts nothing";
  ASSERT_GE(meter.ticks, meter.last);
  EXPECT_EQ(CountsHost() ? meter.host : 0, 0);
  EXPECT_EQ(meter.device, 0);
}

TEST_P(StepPath, PromptChunksAllocateNothingAfterWarmUp) {
  const LeaveOut own;
  // By the first tick the other two have been admitted and decode.
  Meter meter{.first = 12, .last = 28};
  const auto engine = Make(Watched(StepOptions(GetParam()), meter.backend));
  // 700 rows in steps of 24 in which two sequences decode: at least 29 chunks.
  for (std::uint32_t id = 0; id < 3; ++id) {
    EngineRequest request = id > 0 ? Long(*engine, id, 24, 900) : Long(*engine, id, 700, 4);
    request.report_prefill = id == 0;
    const auto sink = [&meter, &engine](const EngineEvent& event) {
      const LeaveOut sinks;
      if (!std::holds_alternative<PrefillEvent>(event)) return;
      meter.Tick();
      for (int other = 0; meter.ticks == meter.last && other < 3; ++other) engine->Cancel(RequestId(other));
    };
    ASSERT_TRUE(engine->Submit(std::move(request), sink));
  }
  engine->Drain();
  ASSERT_GE(meter.ticks, meter.last);
  EXPECT_EQ(CountsHost() ? meter.host : 0, 0);
  EXPECT_EQ(meter.device, 0);
}

// Of an op of the cpu backend whose angles are kept from step to step: no step is larger than the first, and each has
// other positions.
TEST(CpuOps, StepsNoLargerThanTheFirstAllocateNothing) {
  constexpr int kRows = 24, kDim = 64, kRope = 32;
  backend::cpu::CpuBackend cpu({.threads = 1, .processors = {}}, *backend::cpu::FindIsa("generic").value());
  std::vector<BFloat16> matrix(kDim * kDim), x(kRows * kDim), qr(kRows * kDim), q(kRows * kDim);
  std::vector<float> frequencies(kRope / 2, 0.5f);
  std::vector<std::uint8_t> window(kRows * backend::WindowRecordBytes(kDim));
  std::vector<std::int32_t> positions(kRows);
  const backend::Weight weight{
      .format = backend::WeightFormat::kBF16, .rows = kDim, .cols = kDim, .data = matrix.data()};
  const auto run = [&](int rows, int start) {
    for (int i = 0; i < rows; ++i) positions[static_cast<std::size_t>(i)] = start + i;
    cpu.AttnIn({.step = {.rows = rows, .positions = positions.data()},
                .x = x.data(),
                .wq_a = weight,
                .wq_b = weight,
                .wkv = weight,
                .q_norm = matrix.data(),
                .kv_norm = matrix.data(),
                .heads = 1,
                .head_dim = kDim,
                .eps = 1e-6f,
                .rope = {.frequencies = frequencies.data(), .dims = kRope},
                .qr = qr.data(),
                .q = q.data(),
                .window = window.data()});
  };
  run(kRows, 0);
  const std::int64_t before = allocations.load();
  for (int step = 1; step <= 12; ++step) run(step % 2 == 0 ? kRows : step, 100 * step);
  EXPECT_EQ(allocations.load() - before, 0);
}

INSTANTIATE_TEST_SUITE_P(Modes, StepPath,
                         ::testing::Values(Case{"CpuPlain", "cpu", SpeculationMode::kOff},
                                           Case{"CpuAuto", "cpu", SpeculationMode::kAuto},
                                           Case{"CpuDspark", "cpu", SpeculationMode::kDspark},
                                           Case{"CpuNgram", "cpu", SpeculationMode::kNgram},
                                           Case{"CpuRejection", "cpu", SpeculationMode::kRejection},
                                           Case{"RefDspark", "ref", SpeculationMode::kDspark}),
                         [](const auto& on) { return std::string(on.param.name); });

}  // namespace
}  // namespace galley::engine
