// SPDX-License-Identifier: Apache-2.0
// Memory, matrix products and what several ops share.
#include "galley/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>

#include "galley/backend/cpu/self_test.h"
#include "galley/base/math.h"

namespace galley::backend::cpu {
namespace {

constexpr std::int64_t kRowStep = 32;  // weight rows of a task: a multiple of this
constexpr std::int64_t kTasksPerThread = 6;
// Weights of a task at most: the last task of a loop is waited for, and a whole expert's matrix takes long.
constexpr std::int64_t kTaskBytes = std::int64_t{512} << 10;
// Multiplications of a task, at least: neighbouring tasks go to different threads, and each reads its weights from
// where nobody read ahead for it.
constexpr double kTaskCost = 400'000;

}  // namespace

Result<std::unique_ptr<Backend>> CpuBackend::Create(const CpuOptions& options) {
  ASSIGN_OR_RETURN(const IsaEntry* isa, UsableIsa(options.isa));
  return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(options, *isa));
}

CpuBackend::CpuBackend(const CpuOptions& options, const IsaEntry& isa)
    : plain_(1),
      isa_(isa),
      kernels_(isa.kernels()),
      team_(options.threads, options.processors),
      worker_memory_(team_.threads()),
      engram_on_disk_(options.engram_on_disk),
      sample_scratch_(static_cast<std::size_t>(team_.threads())) {
  constexpr int kReadsAtOnce = 8;  // 4 MiB in flight
  if (options.expert_memory > 0) {
    store_ = std::make_unique<ExpertStore>(
        ExpertStore::Options{.budget = options.expert_memory, .depth = kReadsAtOnce, .reading = Reading::kRing});
  }
}

Result<Buffer> CpuBackend::Allocate(std::size_t bytes, std::string_view purpose) {
  return plain_.Allocate(bytes, purpose);
}
Result<const void*> CpuBackend::Upload(const TensorView& weight) {
  return plain_.Upload(weight);
}
Status CpuBackend::CopyToDevice(void* device, const void* host, std::size_t bytes) {
  return plain_.CopyToDevice(device, host, bytes);
}
Status CpuBackend::CopyToHost(void* host, const void* device, std::size_t bytes) {
  return plain_.CopyToHost(host, device, bytes);
}
void CpuBackend::UseFiles(std::span<const io::WeightFile> files, const io::Progress&) {
  if (store_ != nullptr) store_->ReadFrom(std::make_unique<io::WeightReader>(files));
}
Status CpuBackend::Synchronize() {
  return store_ == nullptr ? Status() : store_->TakeError();
}
void CpuBackend::CopyOnDevice(void* to, const void* from, std::size_t bytes) {
  plain_.CopyOnDevice(to, from, bytes);
}
void CpuBackend::Embed(const EmbedArgs& args) {
  plain_.Embed(args);
}
void CpuBackend::EngramRows(const EngramRowsArgs& args) {
  plain_.EngramRows(args);
}
void CpuBackend::WindowWrite(const WindowWriteArgs& args) {
  plain_.WindowWrite(args);
}
void CpuBackend::GatherRows(const GatherRowsArgs& args) {
  plain_.GatherRows(args);
}

CpuBackend::PackedRows CpuBackend::PackFor(WeightFormat format, bool quantise, const BFloat16* x, std::int64_t x_stride,
                                           int rows, std::int64_t cols) {
  const Packing packing = PackingOf(format);
  const std::size_t stride = PackedStride(cols);
  auto* data = memory_.Take<std::byte>(stride * static_cast<std::size_t>(rows));
  team_.Run(rows, static_cast<double>(rows) * static_cast<double>(cols), [&](std::int64_t t, int) {
    kernels_.pack({.x = x + t * x_stride,
                   .cols = cols,
                   .quantise = quantise,
                   .packing = packing,
                   .out = data + static_cast<std::size_t>(t) * stride});
  });
  return {data, stride};
}

CpuBackend::PackedRows CpuBackend::PackForLayer(const Weight& weight, const BFloat16* x, int rows) {
  return PackFor(weight.format, IsQuantised(weight.format), x, weight.cols, rows, weight.cols);
}

ProductArgs CpuBackend::ProductOf(const Weight& weight, const PackedRows& x, int rows) const {
  ProductArgs product;
  product.weight = weight;
  product.row_end = weight.rows;
  product.x = x.data;
  product.x_stride = x.stride;
  product.rows = rows;
  product.out_stride = weight.rows;
  return product;
}

std::span<const ProductArgs> CpuBackend::Gathered(std::span<const ProductArgs> products) {
  const std::span own(memory_.Take<ProductArgs>(products.size()), products.size());
  std::copy(products.begin(), products.end(), own.begin());
  const auto takes_part = [](const ProductArgs& p) { return p.weight.format != WeightFormat::kF32; };
  std::int64_t most = 0;
  for (const ProductArgs& p : products) most += CeilDiv(p.rows, kGathered);
  const std::span tasks(memory_.Take<GatherArgs>(static_cast<std::size_t>(most)), static_cast<std::size_t>(most));
  std::size_t used = 0;
  double cost = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    ProductArgs& p = own[i];
    if (!takes_part(p)) continue;
    if (p.rows == 1) {  // a group as it is
      if (p.x_rows != nullptr) p.x += static_cast<std::size_t>(*p.x_rows) * p.x_stride;
      p.x_rows = nullptr;
      continue;
    }
    const ProductArgs* before = i == 0 ? nullptr : &products[i - 1];
    if (before != nullptr && takes_part(*before) && before->x == p.x && before->x_rows == p.x_rows &&
        before->rows == p.rows && before->weight.cols == p.weight.cols) {  // gate and up of an expert
      p.x = own[i - 1].x;
    } else {
      const int columns = std::min(p.rows, kGathered);
      const std::size_t group = PaddedColumns(p.weight.cols) * 2 * static_cast<std::size_t>(columns);
      const auto groups = static_cast<std::size_t>(CeilDiv(p.rows, kGathered));
      auto* out = memory_.Take<std::byte>(group * groups);
      for (std::size_t g = 0; g < groups; ++g) {
        const int first = static_cast<int>(g) * kGathered;
        const bool listed = p.x_rows != nullptr;
        tasks[used++] = {.x = listed ? p.x : p.x + static_cast<std::size_t>(first) * p.x_stride,
                         .x_stride = p.x_stride,
                         .x_rows = listed ? p.x_rows + first : nullptr,
                         .rows = std::min(p.rows - first, kGathered),
                         .columns = columns,
                         .cols = p.weight.cols,
                         .out = out + g * group};
      }
      cost += static_cast<double>(group * groups) / 8;
      p.x = out;
    }
    p.x_rows = nullptr;
    p.x_stride = PaddedColumns(p.weight.cols) * 2 * static_cast<std::size_t>(std::min(p.rows, kGathered));
  }
  team_.Run(static_cast<std::int64_t>(used), cost,
            [&](std::int64_t i, int) { kernels_.gather(tasks[static_cast<std::size_t>(i)]); });
  return own;
}

void CpuBackend::RunProducts(std::span<const ProductArgs> products) {
  if (kernels_.gather != nullptr) products = Gathered(products);
  struct Part {
    const ProductArgs* product;
    std::int64_t first_task;
    std::int64_t step;  // weight rows of a task
  };
  double cost = 0;
  std::int64_t weight_rows = 0, widest = 0;
  for (const ProductArgs& p : products) {
    weight_rows += p.row_end - p.row_begin;
    widest = std::max(widest, p.weight.cols);
    cost += static_cast<double>(p.row_end - p.row_begin) * static_cast<double>(p.weight.cols) * p.rows;
  }
  worker_memory_.Reserve(ProductScratchBytes(widest));
  const std::int64_t threads = team_.threads();
  const std::int64_t most =
      threads * std::clamp<std::int64_t>(static_cast<std::int64_t>(cost / kTaskCost) / threads, 1, kTasksPerThread);
  const std::int64_t even = std::max<std::int64_t>(1, CeilDiv(CeilDiv(weight_rows, most), kRowStep));
  const auto step_of = [even](const Weight& weight) {
    const std::int64_t row_bytes = std::max<std::int64_t>(1, static_cast<std::int64_t>(BytesOf(weight)) / weight.rows);
    return std::clamp<std::int64_t>(kTaskBytes / row_bytes / kRowStep, 1, even) * kRowStep;
  };
  auto* parts = memory_.Take<Part>(products.size());
  std::int64_t tasks = 0;
  for (std::size_t i = 0; i < products.size(); ++i) {
    parts[i] = {&products[i], tasks, step_of(products[i].weight)};
    tasks += CeilDiv(products[i].row_end - products[i].row_begin, parts[i].step);
  }
  team_.Run(tasks, cost, [&](std::int64_t task, int worker) {
    const Part* part = std::upper_bound(parts, parts + products.size(), task,
                                        [](std::int64_t t, const Part& p) { return t < p.first_task; }) -
                       1;
    ProductArgs piece = *part->product;
    piece.row_begin += (task - part->first_task) * part->step;
    piece.row_end = std::min(piece.row_end, piece.row_begin + part->step);
    piece.scratch = worker_memory_.of(worker);
    kernels_.product(piece);
  });
}

const float* CpuBackend::RopeValues(const Rope& rope, const StepView& step) {
  const std::span<const std::int32_t> positions(step.positions, static_cast<std::size_t>(step.rows));
  const std::span<const float> frequencies(rope.frequencies, static_cast<std::size_t>(rope.dims / 2));
  for (const RopeTable& table : ropes_) {
    if (std::equal(frequencies.begin(), frequencies.end(), table.frequencies.begin(), table.frequencies.end()) &&
        std::equal(positions.begin(), positions.end(), table.positions.begin(), table.positions.end()))
      return table.values.data();
  }
  const auto dims = static_cast<std::size_t>(rope.dims);
  // Which table a step takes depends on those before, so the largest step makes room in all of them.
  for (RopeTable& each : ropes_) {
    each.frequencies.reserve(frequencies.size());
    each.positions.reserve(positions.size());
    each.values.reserve(positions.size() * dims);
  }
  RopeTable& table = ropes_[next_rope_++ % ropes_.size()];
  table.frequencies.assign(frequencies.begin(), frequencies.end());
  table.positions.assign(positions.begin(), positions.end());
  table.values.resize(positions.size() * dims);
  team_.Run(step.rows, 100.0 * step.rows * rope.dims, [&](std::int64_t t, int) {
    float* values = table.values.data() + static_cast<std::size_t>(t) * dims;
    for (std::size_t i = 0; i < dims / 2; ++i) {
      // The angle is the fp32 product; its sine and cosine are accurate for every position.
      const double angle = static_cast<double>(static_cast<float>(step.positions[t]) * rope.frequencies[i]);
      values[i] = static_cast<float>(std::cos(angle));
      values[dims / 2 + i] = static_cast<float>(std::sin(angle));
    }
  });
  return table.values.data();
}

void CpuBackend::NormRow(BFloat16* x, const BFloat16* weight, float eps, std::size_t n) const {
  const float mean = kernels_.sum_squares(x, n) / static_cast<float>(n);
  kernels_.norm(x, weight, 1.0f / std::sqrt(mean + eps), x, n);
}

void CpuBackend::Linear(const LinearArgs& args) {
  memory_.Reset();
  ProductArgs product = ProductOf(args.weight, PackForLayer(args.weight, args.x, args.rows), args.rows);
  product.out_bf16 = args.out;
  RunProducts({&product, 1});
}

void CpuBackend::Head(const HeadArgs& args) {
  memory_.Reset();
  const auto dim = static_cast<std::size_t>(args.dim);
  auto* x = memory_.Take<BFloat16>(static_cast<std::size_t>(args.count) * dim);
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.count); ++i) {
    const std::size_t row = args.row_list == nullptr ? i : static_cast<std::size_t>(args.row_list[i]);
    std::copy_n(args.x + row * dim, dim, x + i * dim);
    NormRow(x + i * dim, args.norm, args.eps, dim);
  }
  const PackedRows packed = PackFor(args.head.format, false, x, args.dim, args.count, args.dim);
  ProductArgs product = ProductOf(args.head, packed, args.count);
  product.out = args.logits;
  RunProducts({&product, 1});
}

}  // namespace galley::backend::cpu
