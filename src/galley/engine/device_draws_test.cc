// SPDX-License-Identifier: Apache-2.0
// A backend that draws tokens itself gives the tokens that the host would draw, and is asked only where nothing else
// needs the logits.
#include <gtest/gtest.h>

#include <atomic>

#include "galley/backend/decorator.h"
#include "galley/engine/engine_for_test.h"

namespace galley::engine {
namespace {

std::atomic<int> draws_of_backend = 0;

// Draws by the host's rule, as Backend::Draw does where the host can read the backend's memory.
class Drawing : public backend::BackendDecorator {
 public:
  using BackendDecorator::BackendDecorator;
  [[nodiscard]] bool draws() const override { return true; }
  [[nodiscard]] Status Draw(const backend::DrawArgs& args) override {
    draws_of_backend += args.count;
    return BackendDecorator::Draw(args);
  }
};

Ids Tokens(bool by_backend, SpeculationMode mode, bool rules) {
  EngineOptions options = Options();
  options.speculation.mode = mode;
  if (by_backend) {
    options.wrap_backend = [](std::unique_ptr<backend::Backend> inner) -> std::unique_ptr<backend::Backend> {
      return std::make_unique<Drawing>(std::move(inner));
    };
  }
  const auto engine = Make(options);
  std::vector<EngineRequest> requests;
  for (std::uint32_t i = 0; i < 3; ++i) requests.push_back(Request(i, 20 + static_cast<int>(i)));
  requests[0].sampling.temperature = 0;
  requests[1].sampling.top_p = 0.9;
  requests[2].n = 2;  // two draws of one row
  if (rules) requests[1].rules.presence_penalty = 0.5;
  const auto results = engine->Generate(requests);
  EXPECT_TRUE(results);
  Ids ids;
  for (const EngineResult& result : *results) {
    const Ids branches = BranchIds(result);
    ids.insert(ids.end(), branches.begin(), branches.end());
  }
  return ids;
}

TEST(DeviceDraws, EqualThoseOfTheHost) {
  for (const SpeculationMode mode : {SpeculationMode::kOff, SpeculationMode::kDspark}) {
    draws_of_backend = 0;
    const Ids expected = Tokens(false, mode, false);
    EXPECT_EQ(draws_of_backend, 0);
    EXPECT_EQ(Tokens(true, mode, false), expected);
    EXPECT_GE(draws_of_backend, 4 * 8) << "four branches of eight tokens";
  }
}

TEST(DeviceDraws, PenaltiesNeedTheLogits) {
  EXPECT_EQ(Tokens(true, SpeculationMode::kOff, true), Tokens(false, SpeculationMode::kOff, true));
}

}  // namespace
}  // namespace galley::engine
