// SPDX-License-Identifier: Apache-2.0
// A model directory in the official layout, opened and checked: config.json, model.safetensors.index.json and the
// shards it names, mapped read-only. Open compares every tensor's name, shape and dtype with the list that the config
// implies. Movable; views stay valid until the checkpoint is destroyed. Reading is safe from any thread.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "galley/base/error.h"
#include "galley/io/weight_file.h"
#include "galley/model/config.h"
#include "galley/tensor/tensor_view.h"

namespace galley::model {

class Checkpoint {
 public:
  // Errors: kNotFound (no such directory or file: says what a model directory contains), kUnsupported (another
  // architecture), kCorrupt (a hostile or damaged file; missing, extra or wrong tensors, all listed in one message),
  // kIo (a file that cannot be read), kResourceExhausted (a file beyond the limits of docs/checkpoint.md).
  // `tensor_file`: holds every tensor in place of the directory's files; empty: none does.
  [[nodiscard]] static Result<Checkpoint> Open(const std::filesystem::path& dir,
                                               const std::filesystem::path& tensor_file = {});

  // Of tensors that are no file's, all of those that the config implies; `memory` holds them.
  [[nodiscard]] static Checkpoint Of(const Config& config, std::span<const std::pair<std::string, TensorView>> tensors,
                                     std::shared_ptr<const void> memory);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  [[nodiscard]] const Config& config() const;
  [[nodiscard]] const std::filesystem::path& dir() const;
  // Its tensor files. Paths are those that were opened.
  [[nodiscard]] std::vector<io::WeightFile> files() const;
  // The tensor of that name; an empty view when there is none, which for names of the implied list cannot happen.
  [[nodiscard]] TensorView Find(std::string_view name) const;

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace galley::model
