// SPDX-License-Identifier: Apache-2.0
#include "galley/model/checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>

#include "galley/io/test_files.h"
#include "galley/model/model_dir.h"
#include "galley/model/tensor_list.h"

namespace galley::model {
namespace {

using io::Replace;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::filesystem::path kSource = GALLEY_SOURCE_DIR;
const std::filesystem::path kNano = kSource / "models/nano";
const std::filesystem::path kProbe = kSource / "tests/golden/v41_probe";
constexpr std::string_view kShard3 = "model-00003-of-00004.safetensors";

// Links to every file of nano, to be replaced one by one.
class NanoLinks : public io::TempDir {
 public:
  NanoLinks() {
    std::filesystem::create_directory(*this / "inference");
    for (const auto& entry : std::filesystem::recursive_directory_iterator(kNano)) {
      if (entry.is_regular_file()) {
        std::filesystem::create_symlink(entry.path(), path() / std::filesystem::relative(entry.path(), kNano));
      }
    }
  }
  void Remove(std::string_view name) const { std::filesystem::remove(*this / name); }
  void Write(std::string_view name, std::string_view bytes) const {
    Remove(name);
    io::WriteBytes(*this / name, bytes);
  }
};

std::string OpenError(const std::filesystem::path& dir, ErrorCode code) {
  const Result<Checkpoint> opened = Checkpoint::Open(dir);
  if (opened) {
    ADD_FAILURE() << dir << " was opened";
    return "";
  }
  EXPECT_EQ(opened.error().code, code) << opened.error().ToString();
  return opened.error().ToString();
}

TEST(Checkpoint, OpensNano) {
  const Result<Checkpoint> nano = Checkpoint::Open(kNano);
  ASSERT_TRUE(nano) << nano.error().ToString();
  EXPECT_EQ(nano->dir(), kNano);
  EXPECT_EQ(nano->config().dim, 256);
  EXPECT_EQ(nano->config().max_seq_len, 8192);  // stated by the nested file only
  EXPECT_EQ(nano->config().vision.n_layers, 0);
  const TensorView head = nano->Find("head.weight");
  EXPECT_EQ(head.dtype, DType::kBF16);
  EXPECT_EQ(head.shape, (Shape{2560, 256}));
  EXPECT_TRUE(nano->Find("layers.8.attn_norm.weight").empty());  // layers are 0 to 7
}

TEST(Checkpoint, OpensProbeWithVision) {
  const Result<Checkpoint> probe = Checkpoint::Open(kProbe);
  ASSERT_TRUE(probe) << probe.error().ToString();
  EXPECT_EQ(probe->config().vision.n_layers, 2);
  EXPECT_EQ(probe->config().dspark.n_stages, 3);
  EXPECT_EQ(probe->Find("aligner.w1.weight").shape, (Shape{64, 288}));  // 3 x 3 cells of 32 to 64
}

// The bytes found under a name are those that the shard's own header points at.
TEST(Checkpoint, ViewsShowTheShardsBytes) {
  const Result<Checkpoint> probe = Checkpoint::Open(kProbe);
  ASSERT_TRUE(probe);
  const std::string shard = io::ReadBytes(kProbe / "model-00001-of-00002.safetensors");
  const auto header = io::ParseSafetensors(std::as_bytes(std::span(shard)), "shard");
  ASSERT_TRUE(header);
  for (const io::SafetensorsEntry& entry : header->tensors) {
    const TensorView view = probe->Find(entry.name);
    ASSERT_EQ(view.bytes(), entry.bytes) << entry.name;
    EXPECT_EQ(std::memcmp(view.data, shard.data() + entry.offset, view.bytes()), 0) << entry.name;
  }
}

TEST(Checkpoint, MovesKeepViews) {
  Result<Checkpoint> first = Checkpoint::Open(kNano);
  ASSERT_TRUE(first);
  const TensorView before = first->Find("norm.weight");
  const Checkpoint second = std::move(*first);
  EXPECT_EQ(second.Find("norm.weight").data, before.data);
}

TEST(Checkpoint, OneConfigOfEitherSpellingSuffices) {
  const NanoLinks nested, flat, flat_at_root;
  nested.Remove("inference/config.json");
  flat.Remove("config.json");
  std::filesystem::rename(flat_at_root / "inference/config.json", flat_at_root / "config.json");
  EXPECT_EQ(Checkpoint::Open(nested.path())->config().max_seq_len, 8192);
  EXPECT_EQ(Checkpoint::Open(flat.path())->config().max_seq_len, 0);
  EXPECT_EQ(Checkpoint::Open(flat_at_root.path())->config().index_topk, 64);
}

// What a person meets first.

TEST(CheckpointErrors, WrongDirectory) {
  const std::string absent = OpenError("/nonexistent/model", ErrorCode::kNotFound);
  EXPECT_THAT(absent, StartsWith("/nonexistent/model: no such directory. A model directory holds config.json"));
  EXPECT_THAT(OpenError(kNano / "config.json", ErrorCode::kNotFound), HasSubstr("config.json: is not a directory. A"));
  EXPECT_THAT(OpenError("", ErrorCode::kNotFound), HasSubstr("no such directory"));
  const io::TempDir dir;
  std::filesystem::create_symlink("loop_b", dir / "loop_a");
  std::filesystem::create_symlink("loop_a", dir / "loop_b");
  EXPECT_THAT(OpenError(dir / "loop_a", ErrorCode::kIo), HasSubstr("Too many levels of symbolic links"));
}

TEST(CheckpointErrors, EmptyDirectory) {
  const io::TempDir dir;
  EXPECT_EQ(OpenError(dir.path(), ErrorCode::kNotFound),
            dir.path().string() +
                ": holds no config.json. A model directory holds config.json (or inference/config.json), "
                "model.safetensors.index.json with the shards it names (or one model.safetensors), and tokenizer.json");
}

TEST(CheckpointErrors, NoWeights) {
  const io::TempDir dir;
  std::filesystem::create_symlink(kNano / "config.json", dir / "config.json");
  EXPECT_EQ(
      OpenError(dir.path(), ErrorCode::kNotFound),
      dir.path().string() + ": holds neither model.safetensors.index.json with its shards nor one model.safetensors");
}

TEST(CheckpointErrors, AnotherArchitecture) {
  const NanoLinks dir;
  dir.Write("config.json",
            R"({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168})");
  EXPECT_THAT(OpenError(dir.path(), ErrorCode::kUnsupported),
              AllOf(StartsWith((dir / "config.json").string()), HasSubstr("deepseek_v3"), HasSubstr("DeepSeek-V4.1")));
}

TEST(CheckpointErrors, ConfigsThatDisagree) {
  const NanoLinks dir;
  const std::string changed = Replace(io::ReadBytes(kNano / "config.json"), "\"index_topk\": 64", "\"index_topk\": 60");
  dir.Write("config.json", changed);
  EXPECT_EQ(OpenError(dir.path(), ErrorCode::kCorrupt),
            fmt::format("{}: text_config.index_topk is 60, but index_topk in {} is 64", (dir / "config.json").string(),
                        (dir / "inference/config.json").string()));
}

TEST(CheckpointErrors, MissingShard) {
  const NanoLinks dir;
  dir.Remove(kShard3);
  EXPECT_THAT(OpenError(dir.path(), ErrorCode::kNotFound),
              AllOf(StartsWith((dir / kShard3).string() + ": cannot open: No such file or directory; the index says"),
                    HasSubstr(" of 815 tensors"), Not(HasSubstr("\n"))));
}

TEST(CheckpointErrors, SeveralProblemsComeInOneMessage) {
  const NanoLinks dir;
  dir.Remove(kShard3);
  dir.Write("model-00004-of-00004.safetensors", "");
  EXPECT_THAT(OpenError(dir.path(), ErrorCode::kNotFound),
              AllOf(StartsWith(dir.path().string() + ": 2 problems\n  - "), HasSubstr("No such file"),
                    HasSubstr("00004.safetensors: 0 bytes long, too short")));
}

TEST(CheckpointErrors, UnreadableShard) {
  const NanoLinks dir;
  dir.Remove(kShard3);
  std::filesystem::copy_file(kNano / kShard3, dir / kShard3);
  std::filesystem::permissions(dir / kShard3, std::filesystem::perms::none);
  std::filesystem::permissions(dir.path(), std::filesystem::perms::all);
  const io::WithoutRights user;
  if (!std::ifstream(kNano / "config.json").good()) GTEST_SKIP() << "the checkout itself is private";
  EXPECT_THAT(OpenError(dir.path(), ErrorCode::kIo), HasSubstr("cannot open: Permission denied"));
}

TEST(CheckpointErrors, SpecialFilesInPlaceOfFiles) {
  for (const std::string_view name :
       {"config.json", "inference/config.json", "model.safetensors.index.json", "model-00001-of-00004.safetensors"}) {
    const NanoLinks dir;
    const std::filesystem::path file = dir / name;
    const auto expect = [&](std::string_view message, ErrorCode code = ErrorCode::kIo) {
      EXPECT_THAT(OpenError(dir.path(), code), HasSubstr(std::string(message))) << name;
      dir.Remove(name);
    };
    dir.Remove(name);
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
    expect("is a pipe, not a regular file");
    std::filesystem::create_directory(file);
    expect("is a directory, not a regular file");
    std::filesystem::create_symlink(file.filename(), file);
    expect("Too many levels of symbolic links");
    std::filesystem::create_symlink("/dev/zero", file);
    expect("is a device, not a regular file");
    std::filesystem::create_symlink("nowhere", file);
    expect("No such file or directory", ErrorCode::kNotFound);
  }
}

// A model of one file that holds only the given tensor.
std::string OpenWithOnly(std::string_view entry, std::size_t data_bytes, std::size_t padding = 0) {
  const io::TempDir dir;
  std::filesystem::create_symlink(kNano / "config.json", dir / "config.json");
  io::WriteBytes(dir / "model.safetensors",
                 io::SafetensorsBytes(fmt::format("{{{}}}{}", entry, std::string(padding, ' ')), data_bytes));
  return OpenError(dir.path(), ErrorCode::kCorrupt);
}

TEST(CheckpointErrors, MissingTensorsAreCollapsedToPatterns) {
  const std::string error = OpenWithOnly(R"("norm.weight":{"dtype":"BF16","shape":[256],"data_offsets":[0,512]})", 512);
  EXPECT_THAT(error,
              HasSubstr("814 tensors that the config implies missing: embed.weight, layers.*.attn.wq_a.weight (8)"));
  EXPECT_THAT(error, HasSubstr(" more"));
  EXPECT_LT(error.size(), 2000u);
}

TEST(CheckpointErrors, WrongTensors) {
  struct Case {
    std::string_view entry;
    std::size_t bytes;
    std::string_view message;
  };
  const Case cases[] = {
      {R"("norm.weight":{"dtype":"BF16","shape":[0],"data_offsets":[0,0]})", 0,
       "1 tensor of another type or shape than the config implies: norm.weight is BF16 [0], not BF16 [256]"},
      {R"("norm.weight":{"dtype":"F16","shape":[256],"data_offsets":[0,512]})", 512,
       "norm.weight is F16 [256], not BF16 [256]"},
      {R"("norm.weight":{"dtype":"F4","shape":[256],"data_offsets":[0,128]})", 128,
       "norm.weight is F4 [256], not BF16 [256]"},
      {R"("norm.weight":{"dtype":"BF16","shape":[1,256],"data_offsets":[0,512]})", 512,
       "norm.weight is BF16 [1, 256], not BF16 [256]"},
      {R"("norm.weight2":{"dtype":"BF16","shape":[256],"data_offsets":[0,512]})", 512,
       "1 tensor not part of a model of this config: norm.weight2"},
      {R"("a\n\u0000b":{"dtype":"BF16","shape":[],"data_offsets":[0,2]})", 2, "this config: a\\x0a\\x00b"},
  };
  for (const Case& c : cases) EXPECT_THAT(OpenWithOnly(c.entry, c.bytes), HasSubstr(std::string(c.message)));
}

TEST(CheckpointErrors, MisalignedTensorsAreRefused) {
  constexpr std::string_view kEntry = R"("norm.weight":{"dtype":"BF16","shape":[256],"data_offsets":[0,512]})";
  // The data follows eight bytes, two braces, the entry and the padding.
  const std::size_t to_even = kEntry.size() % 2;
  EXPECT_THAT(OpenWithOnly(kEntry, 512, to_even), Not(HasSubstr("aligned")));
  EXPECT_THAT(
      OpenWithOnly(kEntry, 512, to_even + 1),
      HasSubstr("1 tensor not aligned to the element size; write the file again with aligned data: norm.weight"));
}

TEST(SummariseNames, ListsUpToTwentyThenPatterns) {
  std::vector<std::string> names;
  for (int i = 0; i < 20; ++i) names.push_back(fmt::format("layers.{}.x", i));
  EXPECT_THAT(SummariseNames(names), AllOf(StartsWith("layers.0.x, layers.1.x"), HasSubstr("layers.19.x")));
  names.push_back("mtp.0.experts.17.w1");
  names.push_back("v2.weight");  // a digit inside a word is part of it
  EXPECT_EQ(SummariseNames(names), "layers.*.x (20), mtp.*.experts.*.w1, v2.weight");
}

}  // namespace
}  // namespace galley::model
