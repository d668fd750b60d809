// SPDX-License-Identifier: Apache-2.0
#include "galley/sched/cost_curve.h"

#include <algorithm>
#include <bit>

#include "galley/base/check.h"
#include "galley/kv/index.h"

namespace galley::sched {

CostCurve::CostCurve(const Prior& prior) {
  for (int knot = 0; knot < kKnots; ++knot) {
    us_[kv::Idx(knot)] = prior.base_us + prior.row_us * static_cast<double>((std::int64_t{1} << knot) - 1);
  }
}

CostCurve::Place CostCurve::Locate(std::int64_t rows) {
  const int knot = std::min(static_cast<int>(std::bit_width(static_cast<std::uint64_t>(rows))) - 1, kKnots - 2);
  const double low = static_cast<double>(std::int64_t{1} << knot);
  return {.knot = knot, .weight = std::min(1.0, (static_cast<double>(rows) - low) / low)};
}

double CostCurve::Predict(std::int64_t rows) const {
  if (rows <= 0) return 0;
  const Place place = Locate(rows);
  return us_[kv::Idx(place.knot)] * (1 - place.weight) + us_[kv::Idx(place.knot + 1)] * place.weight;
}

std::int64_t CostCurve::RowsWithin(double budget_us, std::int64_t most) const {
  std::int64_t fits = 0, fails = most + 1;
  while (fails - fits > 1) {
    const std::int64_t middle = fits + (fails - fits) / 2;
    (Predict(middle) <= budget_us ? fits : fails) = middle;
  }
  return fits;
}

double CostCurve::Nudge(int knot, double ratio, double weight) {
  if (weight <= 0) return 0;
  // The first observations replace the prior, later ones are averaged over about the last 16.
  seen_[kv::Idx(knot)] = std::min(seen_[kv::Idx(knot)] + weight, 16.0);
  const double change = (ratio - 1) * weight / std::max(seen_[kv::Idx(knot)], 1.0);
  us_[kv::Idx(knot)] *= 1 + change;
  return change;
}

void CostCurve::Observe(std::int64_t rows, double measured_us) {
  CHECK(rows > 0) << rows;
  const double predicted = Predict(rows);
  const double ratio = std::clamp(measured_us / predicted, 0.25, 4.0);
  const Place place = Locate(rows);
  const double change = Nudge(place.knot, ratio, 1 - place.weight) + Nudge(place.knot + 1, ratio, place.weight);
  // Knots without observations of their own follow those that have some: a device twice as slow as the prior at one
  // size is taken to be twice as slow at all of them.
  for (int knot = 0; knot < kKnots; ++knot) {
    if (seen_[kv::Idx(knot)] <= 0) us_[kv::Idx(knot)] *= 1 + change;
  }
  for (int knot = place.knot - 1; knot >= 0; --knot)
    us_[kv::Idx(knot)] = std::min(us_[kv::Idx(knot)], us_[kv::Idx(knot + 1)]);
  for (int knot = 1; knot < kKnots; ++knot) us_[kv::Idx(knot)] = std::max(us_[kv::Idx(knot)], us_[kv::Idx(knot - 1)]);
}

void StepCost::Observe(std::int64_t decode_rows, std::int64_t prefill_work, double measured_us) {
  const double decode = decode_.Predict(decode_rows), prefill = prefill_.Predict(prefill_work);
  if (measured_us <= 0 || decode + prefill <= 0) return;
  // A mixed step says nothing about how its time was shared, so both parts scale alike; pure steps set them apart.
  const double ratio = measured_us / (decode + prefill);
  if (decode_rows > 0) decode_.Observe(decode_rows, decode * ratio);
  if (prefill_work > 0) prefill_.Observe(prefill_work, prefill * ratio);
}

}  // namespace galley::sched
