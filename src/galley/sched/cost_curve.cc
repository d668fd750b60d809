// SPDX-License-Identifier: Apache-2.0
#include "galley/sched/cost_curve.h"

#include <algorithm>
#include <bit>

#include "galley/base/check.h"
#include "galley/kv/index.h"

namespace galley::sched {

CostCurve::CostCurve(const Prior& prior) {
  for (int knot = 0; knot < kKnots; ++knot) {
    prior_us_[kv::Idx(knot)] = prior.base_us + prior.row_us * static_cast<double>(KnotRows(knot) - 1);
  }
  us_ = prior_us_;
}

CostCurve::Place CostCurve::Locate(std::int64_t rows) {
  if (rows < 4) return {.knot = static_cast<int>(rows) - 1, .weight = 0};
  const int octave = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(rows))) - 1;
  const auto quarter = static_cast<int>(rows >> (octave - 2) & 3);
  const int knot = std::min(3 + (octave - 2) * 4 + quarter, kKnots - 2);
  const auto low = static_cast<double>(KnotRows(knot)), high = static_cast<double>(KnotRows(knot + 1));
  return {.knot = knot, .weight = std::min(1.0, (static_cast<double>(rows) - low) / (high - low))};
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

void CostCurve::Nudge(int knot, double ratio, double weight) {
  if (weight <= 0) return;
  // The first observations replace the prior, later ones are averaged over about the last 16.
  seen_[kv::Idx(knot)] = std::min(seen_[kv::Idx(knot)] + weight, 16.0);
  us_[kv::Idx(knot)] *= 1 + (ratio - 1) * weight / std::max(seen_[kv::Idx(knot)], 1.0);
}

// Of the two knots around an observation the nearer one at least counts as seen.
bool CostCurve::Seen(int knot) const {
  return seen_[kv::Idx(knot)] >= 0.5;
}

// A device twice as slow as the prior at the largest size seen is taken to be twice as slow at all larger ones.
void CostCurve::PlaceUnseen() {
  int below = -1;
  for (int knot = 0; knot < kKnots; ++knot) {
    if (Seen(knot)) {
      below = knot;
      continue;
    }
    int above = knot + 1;
    while (above < kKnots && !Seen(above)) ++above;
    const auto scaled = [&](int from) {
      return us_[kv::Idx(from)] * prior_us_[kv::Idx(knot)] / prior_us_[kv::Idx(from)];
    };
    if (below >= 0 && above < kKnots) {
      for (; knot < above; ++knot) {
        const double part = static_cast<double>(KnotRows(knot) - KnotRows(below)) /
                            static_cast<double>(KnotRows(above) - KnotRows(below));
        us_[kv::Idx(knot)] = us_[kv::Idx(below)] * (1 - part) + us_[kv::Idx(above)] * part;
      }
      --knot;
    } else if (below >= 0 || above < kKnots) {
      us_[kv::Idx(knot)] = scaled(below >= 0 ? below : above);
    }
  }
}

void CostCurve::Observe(std::int64_t rows, double measured_us) {
  CHECK(rows > 0) << rows;
  const Place place = Locate(rows);
  const int nearer = place.knot + (place.weight > 0.5 ? 1 : 0);
  // A size that was measured too long is not chosen again and would keep its price; one that was measured too short is
  // chosen, and so put right. So once anything is known at all a measurement can raise little at once.
  ++observations_;
  const double highest = observations_ > 8 ? 1.5 : 4.0;
  const double lowest = seen_[kv::Idx(nearer)] < 4 ? 0.25 : 1 / 1.5;
  const double ratio = std::clamp(measured_us / Predict(rows), lowest, highest);
  Nudge(place.knot, ratio, 1 - place.weight);
  Nudge(place.knot + 1, ratio, place.weight);
  PlaceUnseen();
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
