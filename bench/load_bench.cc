// SPDX-License-Identifier: Apache-2.0
// How fast weights are loaded, beside what the disk gives to one reader in order and to several, in turn in one run.
// All go past the page cache. The reader also finds its tensors and brings them to where they belong: in main memory,
// or with --to device on a GPU, laid out as its products read them.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "galley/base/aligned_bytes.h"
#ifdef GALLEY_CUDA
#include "galley/backend/cuda/cuda_backend.h"
#endif
#include "galley/io/mapped_file.h"
#include "galley/io/weight_loader.h"
#include "galley/tensor/tensor_view.h"

namespace galley {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Settings {
  std::filesystem::path dir = std::filesystem::temp_directory_path();
  std::size_t shards = 4, shard_mib = 768;
  int repeats = 3;
  io::LoadShape shape;
  std::size_t piece_mib = 16;
  std::string to = "memory";
};

// Bytes that no disk can leave out.
bool WriteShard(const std::filesystem::path& path, std::size_t bytes, std::uint64_t seed) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return false;
  std::vector<std::uint64_t> block((std::size_t{1} << 20) / 8);
  bool good = true;
  for (std::size_t done = 0; done < bytes && good; done += block.size() * 8) {
    for (std::uint64_t& word : block) word = seed = seed * 6364136223846793005U + 1442695040888963407U;
    good = std::fwrite(block.data(), 8, block.size(), file) == block.size();
  }
  good = std::fflush(file) == 0 && fsync(fileno(file)) == 0 && good;
  return std::fclose(file) == 0 && good;
}

// As dd with iflag=direct and bs of `piece`: `readers` at a time, each piece by whoever is free.
double ReadPlainly(const std::vector<io::WeightFile>& files, std::size_t piece, int readers) {
  std::vector<int> descriptors;
  std::vector<std::pair<std::size_t, off_t>> pieces;
  for (std::size_t i = 0; i < files.size(); ++i) {
    descriptors.push_back(open(files[i].path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    for (std::size_t at = 0; at < files[i].mapped.size(); at += piece) pieces.emplace_back(i, static_cast<off_t>(at));
  }
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  const auto begin = Clock::now();
  std::vector<std::thread> threads;
  for (int t = 0; t < readers; ++t) {
    threads.emplace_back([&] {
      const AlignedBytes buffer(piece);
      for (std::size_t i = next++; i < pieces.size(); i = next++)
        if (pread(descriptors[pieces[i].first], buffer.data(), piece, pieces[i].second) <= 0) failed = true;
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = Seconds(begin);
  for (const int descriptor : descriptors) close(descriptor);
  return failed ? 0 : seconds;
}

// Tensors of an expert's shapes at odd offsets, in an order that is not the file's.
std::vector<TensorView> ExpertTensors(const std::vector<io::WeightFile>& files) {
  const Shape shapes[] = {{2304, 2560}, {2304, 160}, {2304, 2560}, {2304, 160}, {5120, 1152}, {5120, 72}, {10'240}};
  constexpr DType kTypes[] = {DType::kI8, DType::kE8M0, DType::kI8, DType::kE8M0, DType::kI8, DType::kE8M0, DType::kI8};
  std::vector<TensorView> tensors;
  for (const io::WeightFile& file : files) {
    std::size_t at = 1'237;
    for (std::size_t i = 0;; ++i) {
      const std::size_t kind = i % std::size(shapes);
      const TensorView tensor{kTypes[kind], shapes[kind], file.mapped.data() + at};
      if (at + tensor.bytes() > file.mapped.size()) break;
      tensors.push_back(tensor);
      at += tensor.bytes();
    }
  }
  std::ranges::stable_sort(tensors, {}, [](const TensorView& t) { return t.bytes(); });
  return tensors;
}

// Seconds that filling the places takes; 0 after an error.
double LoadToMemory(const std::vector<io::WeightFile>& files, const io::LoadShape& shape,
                    std::vector<std::byte>& memory) {
  std::vector<std::byte*> places;
  std::byte* to = memory.data();
  io::WantedWeights wanted;
  wanted.UseFiles(files, {});
  for (const TensorView& tensor : ExpertTensors(files)) {
    places.push_back(to);
    to += tensor.bytes();
    if (!wanted.Add(tensor.data, tensor.bytes(), 1)) return 0;
  }
  const auto begin = Clock::now();
  const Status loaded = wanted.Load(shape, [&](std::size_t buffers, std::size_t bytes) {
    return Result<std::unique_ptr<io::WeightSink>>(std::make_unique<io::MemorySink>(places, buffers, bytes));
  });
  const double seconds = Seconds(begin);
  if (!loaded) fmt::print(stderr, "{}\n", loaded.error().ToString());
  return loaded ? seconds : 0;
}

#ifdef GALLEY_CUDA
// The same into the memory of a device, by its backend.
double LoadToDevice(const std::vector<io::WeightFile>& files) {
  const auto seconds = [&]() -> Result<double> {
    ASSIGN_OR_RETURN(const std::unique_ptr<backend::Backend> device, backend::MakeCudaBackend({}));
    device->UseFiles(files, {});
    constexpr auto use = backend::MatrixUse::kEveryStep;
    for (const TensorView& tensor : ExpertTensors(files)) {
      const bool matrix = tensor.shape.size() == 2;
      // Every matrix of experts has 32 values, 16 bytes, to a scale.
      const auto placed = !matrix ? device->Upload(tensor)
                          : tensor.dtype == DType::kI8
                              ? device->UploadMatrix(tensor, use)
                              : device->UploadScales(tensor, {DType::kI8, {tensor.dim(0), tensor.dim(1) * 16}}, use);
      if (!placed) return Err(placed.error());
    }
    RETURN_IF_ERROR(device->Synchronize());
    const auto begin = Clock::now();
    RETURN_IF_ERROR(device->FinishUploads());
    RETURN_IF_ERROR(device->Synchronize());
    return Seconds(begin);
  }();
  if (!seconds) fmt::print(stderr, "{}\n", seconds.error().ToString());
  return seconds ? *seconds : 0;
}
#endif

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

int Run(const Settings& settings) {
  const std::size_t bytes = settings.shard_mib << 20;
  std::vector<io::MappedFile> mapped;
  std::vector<io::WeightFile> files;
  const std::filesystem::path dir = settings.dir / fmt::format("galley-load-bench-{}", getpid());
  std::filesystem::create_directory(dir);
  for (std::size_t i = 0; i < settings.shards; ++i) {
    const std::filesystem::path path = dir / fmt::format("{}", i);
    if (!WriteShard(path, bytes, i + 1)) return fmt::print(stderr, "cannot write {}\n", path.string()), 1;
    auto file = io::MappedFile::Open(path);
    if (!file) return 1;
    files.push_back({file->bytes(), path});
    mapped.push_back(std::move(*file));
  }
  const bool to_memory = settings.to == "memory";
  // Every page is there before it is timed.
  std::vector<std::byte> memory(to_memory ? bytes * settings.shards : 0, std::byte{1});
  const auto load_once = [&] {
#ifdef GALLEY_CUDA
    if (!to_memory) return LoadToDevice(files);
#endif
    return LoadToMemory(files, settings.shape, memory);
  };
  std::vector<double> one, many, load, to_one, to_many;
  const std::size_t piece = settings.piece_mib << 20;
  for (int r = 0; r < settings.repeats; ++r) {
    for (int k = 0; k < 3; ++k) {  // each comes first, second and last in turn
      if ((r + k) % 3 == 0) one.push_back(ReadPlainly(files, piece, 1));
      if ((r + k) % 3 == 1) load.push_back(load_once());
      if ((r + k) % 3 == 2) many.push_back(ReadPlainly(files, piece, settings.shape.readers));
    }
    to_one.push_back(one.back() / load.back());
    to_many.push_back(many.back() / load.back());
  }
  const double gb = static_cast<double>(bytes * settings.shards) / 1e9;
  fmt::print("{:.2f} GB in {} files, {} runs in turn, medians\n", gb, settings.shards, settings.repeats);
  fmt::print("one plain reader      {:.2f} GB/s\n{} plain readers       {:.2f} GB/s\n", gb / Median(one),
             settings.shape.readers, gb / Median(many));
  fmt::print("loading to {:<10}  {:.2f} GB/s: {:.0f} % of one, {:.0f} % of {}\n", settings.to, gb / Median(load),
             100 * Median(to_one), 100 * Median(to_many), settings.shape.readers);
  std::filesystem::remove_all(dir);
  return 0;
}

}  // namespace
}  // namespace galley

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): the program ends with it
  CLI::App app("Rate of loading weights beside the rate of the disk");
  galley::Settings settings;
  std::size_t buffer_mib = settings.shape.buffer_bytes >> 20;
  app.add_option("--dir", settings.dir, "Folder on the disk to measure")->capture_default_str();
  app.add_option("--shards", settings.shards, "Files to write")->capture_default_str();
  app.add_option("--shard-mib", settings.shard_mib, "MiB of each")->capture_default_str();
  app.add_option("--repeats", settings.repeats, "Runs of each kind, in turn")->capture_default_str();
  app.add_option("--readers", settings.shape.readers, "Reads at a time")->capture_default_str();
  app.add_option("--buffers", settings.shape.buffers, "Buffers of loading")->capture_default_str();
  app.add_option("--buffer-mib", buffer_mib, "MiB of each")->capture_default_str();
#ifdef GALLEY_CUDA
  app.add_option("--to", settings.to, "Where weights go; a device has readers and buffers of its own number")
      ->check(CLI::IsMember({"memory", "device"}))
      ->capture_default_str();
#endif
  CLI11_PARSE(app, argc, argv);
  settings.shape.buffer_bytes = settings.piece_mib = buffer_mib;
  settings.shape.buffer_bytes <<= 20;
  return galley::Run(settings);
}
