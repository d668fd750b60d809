// SPDX-License-Identifier: Apache-2.0
// Every backend of this build against `ref`, case by case. `ref` itself runs too: a case that it cannot repeat bit for
// bit shows nothing.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "galley/backend/cpu/cpu_backend.h"
#include "galley/backend/cpu/tile_model.h"
#ifdef GALLEY_CUDA
#include "galley/backend/cuda/cuda_backend.h"
#endif
#include "galley/backend/ref/ref_backend.h"
#include "galley/base/thread_pool.h"
#include "op_cases.h"

namespace galley::conformance {
namespace {

Result<std::unique_ptr<backend::Backend>> MakeBackend(const std::string& name) {
#ifdef GALLEY_CUDA
  using backend::ProductForm;
  if (name == "cuda") return backend::MakeCudaBackend({});
  if (name == "cuda_stream")
    return backend::MakeCudaBackend({.linears = ProductForm::kStream, .experts = ProductForm::kStream});
  // Experts elsewhere than on the device; of those on disk a few fit into main memory.
  using backend::WeightPlace;
  if (name == "cuda_host") return backend::MakeCudaBackend({.experts_at = WeightPlace::kHost});
  if (name == "cuda_cache") return backend::MakeCudaBackend({.experts_at = WeightPlace::kHost, .expert_cache = 1});
  if (name == "cuda_disk")
    return backend::MakeCudaBackend({.experts_at = WeightPlace::kDisk, .expert_memory = std::size_t{96} << 20});
  if (name == "cuda_split")
    return backend::MakeCudaBackend({.linears = ProductForm::kSplit, .experts = ProductForm::kSplit});
#endif
  if (name.starts_with("cpu_")) {
    ASSIGN_OR_RETURN(const backend::cpu::IsaEntry* isa, backend::cpu::FindIsaOrModel(name.substr(4)));
    return std::unique_ptr<backend::Backend>(std::make_unique<backend::cpu::CpuBackend>(
        backend::cpu::CpuOptions{.threads = UsableProcessors(), .processors = {}}, *isa));
  }
  if (name == "ref")
    return std::unique_ptr<backend::Backend>(std::make_unique<backend::RefBackend>(UsableProcessors()));
  return Err(ErrorCode::kUnsupported, name + " is not in this build");
}

std::vector<std::string> BackendNames() {
#if defined(GALLEY_CUDA)
  return {"cuda", "cuda_stream", "cuda_split"};
#elif defined(GALLEY_EVERY_ISA)
  return {"cpu"};
#else
  return {"ref", "cpu"};
#endif
}

// What is held against one run of `ref`.
std::vector<std::string> FormsOf(const std::string& name) {
  if (name != "cpu") return {name};
#ifdef GALLEY_EVERY_ISA
  std::vector<std::string> forms;
  for (const backend::cpu::IsaEntry& isa : backend::cpu::IsaTable()) {
    if (isa.supported()) forms.push_back(fmt::format("cpu_{}", isa.name));
  }
#else
  std::vector<std::string> forms = {"cpu_auto"};
#ifndef GALLEY_TRUE_SHAPES
  forms.emplace_back("cpu_tile_model");
#endif
  if (backend::cpu::FindIsa("amx")) forms.emplace_back("cpu_amx");
#endif
  return forms;
}

Result<std::vector<Output>> RunOn(backend::Backend& backend, const OpCase& op_case, std::uint64_t seed) {
  OpRig rig(backend, seed);
  op_case.run(rig);
  return rig.Finish();
}

class Conformance : public testing::TestWithParam<std::tuple<std::string, std::size_t>> {};

TEST_P(Conformance, EqualsRef) {
  const auto& [name, index] = GetParam();
  const OpCase& op_case = OpCases()[index];
  backend::RefBackend reference(UsableProcessors());
  constexpr std::uint64_t kSeed = 20261129;
  const auto expected = RunOn(reference, op_case, kSeed);
  ASSERT_TRUE(expected) << expected.error().ToString();
  const std::vector<Output>& theirs = *expected;
  for (const std::string& form : FormsOf(name)) {
    auto tested = MakeBackend(form);
    ASSERT_TRUE(tested) << tested.error().ToString();
    const auto ran = RunOn(**tested, op_case, kSeed);
    ASSERT_TRUE(ran) << ran.error().ToString();
    const std::vector<Output>& ours = *ran;
    EXPECT_EQ(Complaint(ours, theirs), "") << form << ", seed " << kSeed;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      if (ours[i].check != Check::kBFloat16 && ours[i].check != Check::kFloat) continue;
      std::printf("  %s %s %s: relative L2 %.3g, limit %.3g\n", form.c_str(), op_case.name.c_str(),
                  ours[i].name.c_str(), Distance(ours[i], theirs[i]), ours[i].limit);
    }
  }
}

#ifdef GALLEY_EVERY_ISA
// Skipped where a set was, to say which.
TEST(ConformanceOfIsas, AllOfThemRan) {
  std::string missing;
  for (const backend::cpu::IsaEntry& isa : backend::cpu::IsaTable()) {
    if (!isa.supported()) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", isa.name);
  }
  if (!missing.empty()) GTEST_SKIP() << "this processor cannot run " << missing;
}
#endif

#ifdef GALLEY_CUDA
// All these backends give the same bits in the cases whose names begin so.
void ExpectEqualBits(std::initializer_list<const char*> forms, std::string_view prefix) {
  for (const OpCase& op_case : OpCases()) {
    if (!op_case.name.starts_with(prefix)) continue;
    std::vector<Output> first;
    for (const char* form : forms) {
      auto tested = MakeBackend(form);
      ASSERT_TRUE(tested) << tested.error().ToString();
      const auto ran = RunOn(**tested, op_case, 7);
      ASSERT_TRUE(ran) << op_case.name << ": " << ran.error().ToString();
      const std::vector<Output>& outputs = *ran;
      if (first.empty()) first = outputs;
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        EXPECT_TRUE(outputs[i].bytes == first[i].bytes) << op_case.name << " " << outputs[i].name << " " << form;
      }
    }
  }
}

// Which form of a product runs is a matter of speed alone.
TEST(ConformanceOfForms, EqualBits) {
  ExpectEqualBits({"cuda_stream", "cuda_split", "cuda"}, "");
}

// And so is where experts lie.
TEST(ConformanceOfPlacement, EqualBits) {
  ExpectEqualBits({"cuda", "cuda_host", "cuda_cache", "cuda_disk"}, "Moe");
}
#endif

// Cases of true shapes take seconds each on a processor: they have a program of their own there, among the slow ones.
std::vector<std::size_t> Indices() {
  std::vector<std::size_t> some;
  for (std::size_t i = 0; i < OpCases().size(); ++i) {
    [[maybe_unused]] const bool true_shape = OpCases()[i].name.ends_with("_true");
#if defined(GALLEY_TRUE_SHAPES)
    if (!true_shape) continue;
#elif !defined(GALLEY_CUDA)
    if (true_shape) continue;
#endif
    some.push_back(i);
  }
  return some;
}

INSTANTIATE_TEST_SUITE_P(Ops, Conformance,
                         testing::Combine(testing::ValuesIn(BackendNames()), testing::ValuesIn(Indices())),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + OpCases()[std::get<1>(test.param)].name;
                         });

}  // namespace
}  // namespace galley::conformance
