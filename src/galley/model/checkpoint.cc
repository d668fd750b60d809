// SPDX-License-Identifier: Apache-2.0
#include "galley/model/checkpoint.h"

#include <utility>
#include <vector>

#include "galley/io/text.h"
#include "galley/model/config_file.h"
#include "galley/model/model_dir.h"

namespace galley::model {

struct Checkpoint::Impl {
  std::filesystem::path dir;
  Config config;
  io::ShardSet shards;
  TensorMap tensors;
  std::shared_ptr<const void> memory = {};  // where the tensors lie if not in shards
};

Result<Checkpoint> Checkpoint::Open(const std::filesystem::path& dir, const std::filesystem::path& tensor_file) {
  RETURN_IF_ERROR(CheckModelDir(dir));
  ASSIGN_OR_RETURN(LoadedConfig loaded, LoadConfig(dir));
  auto impl = std::make_unique<Impl>();
  impl->dir = dir;
  impl->config = std::move(loaded.config);
  impl->shards = tensor_file.empty() ? io::OpenShards(dir) : io::OpenTensorFile(tensor_file);
  std::vector<Error> problems = impl->shards.problems;
  // Without any tensor file the list of missing tensors would only repeat that.
  if (!impl->shards.files.empty()) {
    TensorCheck check = CheckTensors(ImpliedTensors(impl->config), impl->shards, dir);
    impl->tensors = std::move(check.tensors);
    problems.insert(problems.end(), check.problems.begin(), check.problems.end());
  }
  if (problems.size() == 1) return Err(std::move(problems.front()));
  if (!problems.empty()) {
    std::vector<std::string> texts;
    for (const Error& problem : problems) texts.push_back(problem.ToString());
    return Err(problems.front().code, JoinProblems(texts), io::Printable(dir.native(), 1000));
  }
  return Checkpoint(std::move(impl));
}

Checkpoint Checkpoint::Of(const Config& config, std::span<const std::pair<std::string, TensorView>> tensors,
                          std::shared_ptr<const void> memory) {
  auto impl = std::make_unique<Impl>();
  impl->config = config;
  impl->tensors.insert(tensors.begin(), tensors.end());
  impl->memory = std::move(memory);
  return Checkpoint(std::move(impl));
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

const Config& Checkpoint::config() const {
  return impl_->config;
}

const std::filesystem::path& Checkpoint::dir() const {
  return impl_->dir;
}

std::vector<io::WeightFile> Checkpoint::files() const {
  std::vector<io::WeightFile> files;
  for (const io::ShardFile& shard : impl_->shards.files)
    files.push_back({shard.file.bytes(), impl_->dir / shard.name, shard.file.id()});  // a whole path stands for itself
  return files;
}

TensorView Checkpoint::Find(std::string_view name) const {
  const auto found = impl_->tensors.find(name);
  return found == impl_->tensors.end() ? TensorView{} : found->second;
}

}  // namespace galley::model
