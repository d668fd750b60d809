// SPDX-License-Identifier: Apache-2.0
// Any text as a config: refused with a message, or accepted with values that everything computed from a config can use.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "galley/base/check.h"
#include "galley/model/config.h"
#include "galley/model/inspect.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace galley;
  const Result<model::Config> config = model::ParseConfig({reinterpret_cast<const char*>(data), size}, "input");
  if (!config) {
    CHECK(!config.error().message.empty());
    return 0;
  }
  for (int layer = 0; layer < config->n_layers; ++layer) {
    if (config->compress_ratios.at(static_cast<std::size_t>(layer)) == 0) continue;
    CHECK(config->is_kv_source(config->kv_source(layer)));
    CHECK(config->index_source(layer) >= config->kv_source(layer));
  }
  const model::KvCost kv = model::ComputeKvCost(*config);
  CHECK(kv.block_bytes > 0 && kv.slot_bytes() > 0);
  // The list of a large model takes longer than its bytes are worth here.
  if (config->n_layers * config->n_routed_experts <= 512) {
    const model::ModelSize size_of_model = model::ComputeModelSize(*config);
    CHECK(size_of_model.total.bytes > 0 && size_of_model.total.active > 0);
  }
  return 0;
}
