// SPDX-License-Identifier: Apache-2.0
#include "galley/serve/engine_port.h"

#include <utility>

namespace galley::serve {
namespace {

class RealEngine : public EnginePort {
 public:
  RealEngine(engine::Engine& engine, TokenId eos_id) : engine_(engine), eos_id_(eos_id) {}

  [[nodiscard]] const text::Tokenizer& tokenizer() const override { return engine_.tokenizer(); }
  [[nodiscard]] std::int64_t max_seq_len() const override { return engine_.max_seq_len(); }
  [[nodiscard]] TokenId eos_id() const override { return eos_id_; }
  [[nodiscard]] Result<RequestId> Submit(engine::EngineRequest request, engine::EventSink sink) override {
    return engine_.Submit(std::move(request), std::move(sink));
  }
  void Cancel(RequestId request) override { engine_.Cancel(request); }
  [[nodiscard]] engine::EngineStats stats() const override { return engine_.stats(); }
  [[nodiscard]] ApiResult<std::shared_ptr<const engine::TokenConstraint>> Compile(const ConstraintSpec& spec) override {
    return Refuse(
        {.status = 400,
         .message = spec.param + " cannot be enforced by this server yet, so it is refused rather than ignored",
         .param = spec.param,
         .code = "unsupported"});
  }
  void ClearCache() override { engine_.ClearCache(); }

 private:
  engine::Engine& engine_;
  TokenId eos_id_;
};

}  // namespace

std::unique_ptr<EnginePort> PortOf(engine::Engine& engine, TokenId eos_id) {
  return std::make_unique<RealEngine>(engine, eos_id);
}

}  // namespace galley::serve
