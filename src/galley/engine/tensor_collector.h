// SPDX-License-Identifier: Apache-2.0
// Collects observed rows of a forward pass, over as many steps as it takes, and hands them out by position.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "galley/backend/backend.h"
#include "galley/engine/dump.h"
#include "galley/model/dsv4/model.h"

namespace galley::engine {

// "layers.3.h", or the name alone for what belongs to no layer.
[[nodiscard]] std::string TensorName(std::string_view name, int layer);

class TensorCollector final : public model::Observer {
 public:
  // Keeps rows of `positions`, and of every position for tensors named in `complete`.
  TensorCollector(backend::Backend& backend, std::set<Position> positions, std::set<std::string> complete)
      : backend_(backend), positions_(std::move(positions)), complete_(std::move(complete)) {}

  void Observe(const model::Observation& observation, const backend::StepView& rows) override;

  // Rows of `positions` in their order, [positions.size()] x row shape; nothing when the tensor was never observed.
  // Every position must have been kept. kDevice when a copy from the device had failed.
  [[nodiscard]] Result<std::optional<HostTensor>> Take(const std::string& name,
                                                       const std::vector<Position>& positions) const;

 private:
  struct Rows {
    DType dtype = DType::kF32;
    Shape row_shape;
    std::map<Position, std::vector<std::byte>> values;
  };

  backend::Backend& backend_;
  std::set<Position> positions_;
  std::set<std::string> complete_;
  std::map<std::string, Rows> tensors_;
  Status status_;
};

}  // namespace galley::engine
