// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/tensor_collector.h"

#include <fmt/core.h>

#include "galley/base/check.h"

namespace galley::engine {

std::string TensorName(std::string_view name, int layer) {
  return layer < 0 ? std::string(name) : fmt::format("layers.{}.{}", layer, name);
}

void TensorCollector::Observe(const model::Observation& observation, const backend::StepView& rows) {
  const std::string name = TensorName(observation.name, observation.layer);
  const std::size_t row_bytes =
      static_cast<std::size_t>(ElementCount(observation.row_shape)) * Info(observation.dtype).bytes;
  std::vector<std::int32_t> positions(static_cast<std::size_t>(rows.rows));
  std::vector<std::byte> data(positions.size() * row_bytes);
  const auto copy = [this](void* to, const void* from, std::size_t bytes) {
    if (status_) status_ = backend_.CopyToHost(to, from, bytes);
  };
  copy(positions.data(), rows.positions, positions.size() * sizeof(positions[0]));
  copy(data.data(), observation.data, data.size());
  if (!status_) return;

  Rows& kept = tensors_[name];
  kept.dtype = observation.dtype;
  kept.row_shape = observation.row_shape;
  const bool complete = complete_.contains(name);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (!complete && !positions_.contains(positions[i])) continue;
    const auto begin = data.begin() + static_cast<std::ptrdiff_t>(i * row_bytes);
    kept.values[positions[i]].assign(begin, begin + static_cast<std::ptrdiff_t>(row_bytes));
  }
}

Result<std::optional<HostTensor>> TensorCollector::Take(const std::string& name,
                                                        const std::vector<Position>& positions) const {
  RETURN_IF_ERROR(status_);
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return std::optional<HostTensor>();
  HostTensor tensor{found->second.dtype, {static_cast<std::int64_t>(positions.size())}, {}};
  tensor.shape.insert(tensor.shape.end(), found->second.row_shape.begin(), found->second.row_shape.end());
  for (const Position p : positions) {
    const auto row = found->second.values.find(p);
    CHECK(row != found->second.values.end()) << name << " has no row for position " << p;
    tensor.data.insert(tensor.data.end(), row->second.begin(), row->second.end());
  }
  return std::optional(std::move(tensor));
}

}  // namespace galley::engine
