// SPDX-License-Identifier: Apache-2.0
#include "galley/base/error.h"

#include <array>

#include "galley/base/check.h"

namespace galley {
namespace {

struct Row {
  ErrorCode code;
  ErrorCodeInfo info;
};

// Exit codes: 1 is left to internal errors, 2 to wrong use, and the others tell a script what to do next.
constexpr std::array kRows = {
    Row{ErrorCode::kInvalidArgument, {"invalid_argument", 400, 2}},
    Row{ErrorCode::kNotFound, {"not_found", 404, 3}},
    Row{ErrorCode::kUnsupported, {"unsupported", 400, 4}},
    Row{ErrorCode::kCorrupt, {"corrupt", 500, 5}},
    Row{ErrorCode::kResourceExhausted, {"resource_exhausted", 429, 6}},
    Row{ErrorCode::kIo, {"io", 500, 7}},
    Row{ErrorCode::kCancelled, {"cancelled", 499, 130}},
    Row{ErrorCode::kDeadline, {"deadline", 504, 8}},
    Row{ErrorCode::kUnavailable, {"unavailable", 503, 9}},
    Row{ErrorCode::kDevice, {"device", 500, 10}},
    Row{ErrorCode::kInternal, {"internal", 500, 1}},
};

}  // namespace

const ErrorCodeInfo& Info(ErrorCode code) {
  const auto index = static_cast<std::size_t>(code);
  CHECK(index < kRows.size() && kRows[index].code == code) << "error code " << index << " has no table row";
  return kRows[index].info;
}

std::string Error::ToString() const {
  return where.empty() ? message : where + ": " + message;
}

}  // namespace galley
