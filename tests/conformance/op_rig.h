// SPDX-License-Identifier: Apache-2.0
// One run of an op on one backend: seeded inputs placed in its memory, outputs poisoned before and read back after. The
// same case run on two backends draws the same inputs, so their outputs can be compared.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "galley/backend/backend.h"
#include "galley/base/check.h"

namespace galley::conformance {

enum class Check {
  kExact,     // every byte
  kBFloat16,  // relative L2 over bf16 values
  kFloat,     // relative L2 over fp32 values
  kList,      // rows of i32, a share of which may differ where scores are nearly equal
};

struct Output {
  std::string name;
  Check check = Check::kExact;
  double limit = 0;           // L2, or the share of differing entries
  std::size_t row_bytes = 0;  // for naming the place of a difference
  std::vector<std::byte> bytes;
};

class OpRig {
 public:
  OpRig(backend::Backend& backend, std::uint64_t seed) : backend_(backend), random_(seed) {}

  [[nodiscard]] backend::Backend& backend() { return backend_; }

  [[nodiscard]] float Uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(random_() >> 40) * 0x1p-24f;
  }
  [[nodiscard]] int Integer(int low, int high) {  // both included
    return low + static_cast<int>(random_() % static_cast<std::uint64_t>(high - low + 1));
  }
  // Bell-shaped, standard deviation 1.
  [[nodiscard]] float Normal() {
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += Uniform(-1, 1);
    return sum * 0.866f;
  }

  template <typename T>
  [[nodiscard]] T* Place(const std::vector<T>& values) {
    T* device = Reserve<T>(values.size());
    CHECK(backend_.CopyToDevice(device, values.data(), values.size() * sizeof(T))) << "copy to the device";
    return device;
  }
  template <typename T>
  [[nodiscard]] T* Reserve(std::size_t count) {
    auto buffer = backend_.Allocate(count * sizeof(T) + 64, "a conformance case");
    CHECK(buffer) << buffer.error().ToString();
    buffers_.push_back(std::move(*buffer));
    return buffers_.back().as<T>();
  }
  // An output of `rows` rows of `columns` values; bytes 0xA5 until the op writes them.
  template <typename T>
  [[nodiscard]] T* Out(const std::string& name, std::size_t rows, std::size_t columns, Check check, double limit = 0) {
    return Watch(Place(std::vector<T>(rows * columns, Poison<T>())), name, rows, columns, check, limit);
  }
  // Memory that an op updates, with what it holds before.
  template <typename T>
  [[nodiscard]] T* InOut(const std::string& name, const std::vector<T>& values, std::size_t columns, Check check,
                         double limit = 0) {
    return Watch(Place(values), name, values.size() / columns, columns, check, limit);
  }

  [[nodiscard]] BFloat16* Normals(std::size_t count, float scale = 1) {
    std::vector<BFloat16> values(count);
    for (BFloat16& v : values) v = ToBFloat16(Normal() * scale);
    return Place(values);
  }
  [[nodiscard]] float* Floats(std::size_t count, float scale = 1) {
    std::vector<float> values(count);
    for (float& v : values) v = Normal() * scale;
    return Place(values);
  }
  // Weights whose products with values of size 1 are of size 1.
  [[nodiscard]] backend::Weight Matrix(backend::WeightFormat format, std::int64_t rows, std::int64_t cols,
                                       backend::MatrixUse use = backend::MatrixUse::kEveryStep);

  // Reads the outputs back. Errors of the device are reported here.
  [[nodiscard]] Result<std::vector<Output>> Finish();

 private:
  struct Watched {
    Output output;
    const void* device;
  };
  template <typename T>
  static T Poison() {
    std::array<std::byte, sizeof(T)> bytes;
    bytes.fill(std::byte{0xA5});
    return std::bit_cast<T>(bytes);
  }
  template <typename T>
  T* Watch(T* device, const std::string& name, std::size_t rows, std::size_t columns, Check check, double limit) {
    watched_.push_back({{.name = name,
                         .check = check,
                         .limit = limit,
                         .row_bytes = columns * sizeof(T),
                         .bytes = std::vector<std::byte>(rows * columns * sizeof(T))},
                        device});
    return device;
  }

  backend::Backend& backend_;
  std::mt19937_64 random_;
  std::vector<backend::Buffer> buffers_;
  std::vector<std::vector<std::uint8_t>> host_weights_;  // a backend may read them in place
  std::vector<Watched> watched_;
};

// Where and how two runs of a case differ beyond the limit; empty when they do not.
[[nodiscard]] std::string Complaint(const std::vector<Output>& ours, const std::vector<Output>& reference);
// The worst relative L2 of the outputs, for reports.
[[nodiscard]] double Distance(const Output& ours, const Output& reference);

}  // namespace galley::conformance
