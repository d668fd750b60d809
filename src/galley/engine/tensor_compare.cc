// SPDX-License-Identifier: Apache-2.0
#include "galley/engine/tensor_compare.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <set>

#include "galley/base/check.h"
#include "galley/tensor/numeric.h"

namespace galley::engine {
namespace {

struct MeasureRow {
  std::string_view suffix;  // of the tensor's name
  Measure measure;
};

// First match wins; what is in no row is a float tensor measured as a whole.
constexpr MeasureRow kMeasures[] = {
    {"greedy.ids", Measure::kGreedy}, {"greedy.second", Measure::kDifferent},
    {"topk", Measure::kSetOverlap},   {"router_idx", Measure::kDifferentSets},
    {"ids", Measure::kDifferent},     {"rows", Measure::kDifferent},  // engram_rows too
    {"groups", Measure::kDifferent},  {"tail_start", Measure::kDifferent},
    {"pos", Measure::kDifferent},     {"token", Measure::kDifferent},
    {"tokens", Measure::kDifferent},  {"types", Measure::kDifferent},
    {"grid", Measure::kDifferent},    {"pre", Measure::kAbsolute},
    {"pre_all", Measure::kAbsolute},  {"router_w", Measure::kAbsolute},
    {"margin", Measure::kAbsolute},   {"index_w", Measure::kAbsolute},
};

using Rows = std::vector<std::vector<double>>;

Rows ToRows(const HostTensor& tensor) {
  const std::vector<double> values = Values(tensor);
  const auto rows = static_cast<std::size_t>(tensor.shape.empty() ? 1 : tensor.shape[0]);
  const std::size_t width = rows == 0 ? 0 : values.size() / rows;
  Rows out(rows);
  for (std::size_t r = 0; r < rows; ++r) {
    out[r].assign(values.begin() + static_cast<std::ptrdiff_t>(r * width),
                  values.begin() + static_cast<std::ptrdiff_t>((r + 1) * width));
  }
  return out;
}

double RelativeL2(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-20);
}

// NaN on one side counts as an infinite difference.
double Absolute(double a, double b) {
  const double difference = std::fabs(a - b);
  return std::isnan(difference) ? INFINITY : difference;
}

double LargestAbsolute(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, Absolute(a[i], b[i]));
  return largest;
}

double DifferentShare(const std::vector<double>& a, const std::vector<double>& b) {
  std::size_t different = 0;
  for (std::size_t i = 0; i < a.size(); ++i) different += a[i] != b[i];
  return a.empty() ? 0 : static_cast<double>(different) / static_cast<double>(a.size());
}

std::set<double> UsedEntries(const std::vector<double>& row) {
  std::set<double> used(row.begin(), row.end());
  used.erase(-1);
  return used;
}

// Mean over the rows that have entries.
double MeanOverlap(const Rows& a, const Rows& b) {
  double sum = 0;
  std::size_t rows = 0;
  for (std::size_t r = 0; r < b.size(); ++r) {
    const std::set<double> ours = UsedEntries(a[r]), golden = UsedEntries(b[r]);
    if (golden.empty()) continue;
    const auto shared = std::count_if(golden.begin(), golden.end(), [&](double entry) { return ours.contains(entry); });
    sum += static_cast<double>(shared) / static_cast<double>(golden.size());
    ++rows;
  }
  return rows == 0 ? 1 : sum / static_cast<double>(rows);
}

double DifferentSets(const Rows& a, const Rows& b) {
  std::size_t different = 0;
  for (std::size_t r = 0; r < b.size(); ++r) different += UsedEntries(a[r]) != UsedEntries(b[r]);
  return b.empty() ? 0 : static_cast<double>(different) / static_cast<double>(b.size());
}

// Largest difference of an expert's weight over rows that chose the same experts, whatever their order.
double RouterWeights(const Rows& a, const Rows& b, const Rows& a_experts, const Rows& b_experts) {
  double largest = 0;
  for (std::size_t r = 0; r < b.size(); ++r) {
    if (UsedEntries(a_experts[r]) != UsedEntries(b_experts[r])) continue;
    for (std::size_t i = 0; i < b[r].size(); ++i) {
      const auto at = std::find(a_experts[r].begin(), a_experts[r].end(), b_experts[r][i]) - a_experts[r].begin();
      largest = std::max(largest, Absolute(a[r][static_cast<std::size_t>(at)], b[r][i]));
    }
  }
  return largest;
}

double GreedyMargin(const std::vector<double>& a, const std::vector<double>& b, const std::vector<double>& margin) {
  for (std::size_t i = 0; i < b.size(); ++i) {
    if (a[i] != b[i]) return i < margin.size() ? margin[i] : INFINITY;
  }
  return 0;
}

// Steps of a continuation that have the same ids before them.
std::size_t CommonSteps(const TensorMap& ours, const TensorMap& golden, const std::string& ids) {
  const auto a = ours.find(ids), b = golden.find(ids);
  if (a == ours.end() || b == golden.end()) return SIZE_MAX;
  const std::vector<double> x = Values(a->second), y = Values(b->second);
  const auto [first, other] = std::mismatch(x.begin(), x.end(), y.begin(), y.end());
  return static_cast<std::size_t>(first - x.begin()) + 1;  // at the first other id the logits still have one past
}

std::string Sibling(const std::string& name, std::string_view suffix) {
  return name.substr(0, name.rfind('.') + 1) + std::string(suffix);
}

double MeasureValue(const std::string& name, Measure measure, const TensorMap& ours, const TensorMap& golden) {
  const HostTensor& a = ours.at(name);
  const HostTensor& b = golden.at(name);
  if (name.ends_with("greedy.second") || name.ends_with("greedy.margin")) {
    std::vector<double> x = Values(a), y = Values(b);
    const std::size_t steps = std::min(CommonSteps(ours, golden, Sibling(name, "ids")), x.size());
    x.resize(steps);
    y.resize(steps);
    return measure == Measure::kDifferent ? DifferentShare(x, y) : LargestAbsolute(x, y);
  }
  switch (measure) {
    case Measure::kRelativeL2:
      return RelativeL2(Values(a), Values(b));
    case Measure::kDifferent:
      return DifferentShare(Values(a), Values(b));
    case Measure::kSetOverlap:
      return MeanOverlap(ToRows(a), ToRows(b));
    case Measure::kDifferentSets:
      return DifferentSets(ToRows(a), ToRows(b));
    case Measure::kGreedy: {
      const auto margin = golden.find(Sibling(name, "margin"));
      return GreedyMargin(Values(a), Values(b),
                          margin == golden.end() ? std::vector<double>() : Values(margin->second));
    }
    case Measure::kAbsolute:
      break;
  }
  const std::string experts = Sibling(name, "router_idx");
  if (name.ends_with("router_w") && ours.contains(experts) && golden.contains(experts)) {
    return RouterWeights(ToRows(a), ToRows(b), ToRows(ours.at(experts)), ToRows(golden.at(experts)));
  }
  return LargestAbsolute(Values(a), Values(b));
}

template <typename T, typename Convert>
std::vector<double> ConvertAll(const HostTensor& tensor, Convert convert) {
  std::vector<double> values(tensor.data.size() / sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, tensor.data.data() + i * sizeof(T), sizeof(T));
    values[i] = static_cast<double>(convert(value));
  }
  return values;
}

}  // namespace

std::string_view MeasureName(Measure measure) {
  constexpr std::array<std::string_view, 6> kNames = {"relative L2",         "largest absolute",
                                                      "share different",     "mean overlap",
                                                      "share of other sets", "margin at first other id"};
  return kNames[static_cast<std::size_t>(measure)];
}

Measure MeasureOf(std::string_view name) {
  for (const MeasureRow& row : kMeasures) {
    if (!name.ends_with(row.suffix)) continue;
    const std::size_t before = name.size() - row.suffix.size();
    if (before == 0 || name[before - 1] == '.' || name[before - 1] == '_') return row.measure;
  }
  return Measure::kRelativeL2;
}

std::vector<double> Values(const HostTensor& tensor) {
  const auto same = [](auto value) { return value; };
  switch (tensor.dtype) {
    case DType::kF32:
      return ConvertAll<float>(tensor, same);
    case DType::kF64:
      return ConvertAll<double>(tensor, same);
    case DType::kI16:
      return ConvertAll<std::int16_t>(tensor, same);
    case DType::kI32:
      return ConvertAll<std::int32_t>(tensor, same);
    case DType::kI64:
      return ConvertAll<std::int64_t>(tensor, same);
    case DType::kI8:
      return ConvertAll<std::int8_t>(tensor, same);
    case DType::kU8:
    case DType::kBool:
      return ConvertAll<std::uint8_t>(tensor, same);
    case DType::kBF16:
      return ConvertAll<BFloat16>(tensor, [](BFloat16 value) { return ToFloat(value); });
    case DType::kF8E4M3:
      return ConvertAll<std::uint8_t>(tensor, DecodeE4M3);
    case DType::kE8M0:
      return ConvertAll<std::uint8_t>(tensor, DecodeE8M0);
    case DType::kF16:
      break;
  }
  return std::vector<double>(static_cast<std::size_t>(tensor.view().elements()), NAN);
}

std::vector<Difference> CompareTensors(const TensorMap& ours, const TensorMap& golden) {
  std::vector<Difference> differences;
  for (const auto& [name, tensor] : golden) {
    Difference row{.name = name, .measure = MeasureOf(name), .value = INFINITY, .note = {}};
    const auto found = ours.find(name);
    if (found == ours.end()) {
      row.note = "not in the dump";
    } else if (found->second.shape != tensor.shape) {
      row.note = fmt::format("shape {} instead of {}", ToString(found->second.shape), ToString(tensor.shape));
    } else {
      row.value = MeasureValue(name, row.measure, ours, golden);
    }
    differences.push_back(std::move(row));
  }
  return differences;
}

std::string DifferenceTable(const std::vector<Difference>& differences) {
  std::size_t width = 6;
  for (const Difference& row : differences) width = std::max(width, row.name.size());
  std::string table = fmt::format("{:<{}}  {:>12}  {}\n", "tensor", width, "worst", "measure");
  for (const Difference& row : differences) {
    table +=
        fmt::format("{:<{}}  {:>12}  {}\n", row.name, width, row.note.empty() ? fmt::format("{:.3g}", row.value) : "-",
                    row.note.empty() ? MeasureName(row.measure) : row.note);
  }
  return table;
}

}  // namespace galley::engine
