// SPDX-License-Identifier: Apache-2.0
#include "galley/model/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace galley::model {
namespace {

const std::filesystem::path kSource = GALLEY_SOURCE_DIR;

TEST(Checkpoint, OpensNano) {
  const Result<Checkpoint> nano = Checkpoint::Open(kSource / "models/nano");
  ASSERT_TRUE(nano) << nano.error().ToString();
  EXPECT_EQ(nano->config().dim, 256);
  EXPECT_EQ(nano->config().max_seq_len, 8192);  // stated by the nested file only
  EXPECT_EQ(nano->config().vision.n_layers, 0);
  const TensorView head = nano->Find("head.weight");
  EXPECT_EQ(head.dtype, DType::kBF16);
  EXPECT_EQ(head.shape, (Shape{2560, 256}));
  EXPECT_TRUE(nano->Find("layers.8.attn_norm.weight").empty());  // layers are 0 to 7
}

TEST(Checkpoint, OpensProbeWithVision) {
  const Result<Checkpoint> probe = Checkpoint::Open(kSource / "tests/golden/v41_probe");
  ASSERT_TRUE(probe) << probe.error().ToString();
  EXPECT_EQ(probe->config().vision.n_layers, 2);
  EXPECT_EQ(probe->config().dspark.n_stages, 3);
  EXPECT_EQ(probe->Find("aligner.w1.weight").shape, (Shape{64, 288}));  // 3 x 3 cells of 32 to 64
}

}  // namespace
}  // namespace galley::model
