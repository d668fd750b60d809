// SPDX-License-Identifier: Apache-2.0
// Result and error vocabulary. Anything that can fail because of input, a file, a device or a peer returns Result<T>;
// broken invariants of our own use CHECK (check.h). Values are plain data and may cross threads.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace galley {

// One code maps to one HTTP status, one process exit code and one metric label: see ErrorCodeInfo.
enum class ErrorCode {
  kInvalidArgument,    // a request, option or file content that can never be right as given
  kNotFound,           // a named file, model or object does not exist
  kUnsupported,        // understood, but not something this build or model can do
  kCorrupt,            // a file that contradicts itself or its checksum
  kResourceExhausted,  // does not fit: memory, blocks, queue
  kIo,                 // the operating system failed a read, write or map
  kCancelled,          // the caller asked to stop
  kDeadline,           // a wait reached its deadline
  kUnavailable,        // shutting down or a peer is gone
  kDevice,             // an accelerator reported a fault
  kInternal,           // a bug on our side, reported instead of crashing
};

struct ErrorCodeInfo {
  std::string_view label;  // metric label and `code` in machine-readable output
  int http_status;
  int exit_code;  // of the command line program
};
[[nodiscard]] const ErrorCodeInfo& Info(ErrorCode code);

// `message` says what was wrong with the value, the limit and what to do. `where` names the file, tensor, option or
// JSON pointer that it is about, and may be empty.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  std::string where;

  // "where: message", or the message alone.
  [[nodiscard]] std::string ToString() const;
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

// Return values for a failing function: `return Err(ErrorCode::kNotFound, "…", path);`
[[nodiscard]] inline tl::unexpected<Error> Err(ErrorCode code, std::string message, std::string where = {}) {
  return tl::unexpected<Error>(Error{code, std::move(message), std::move(where)});
}
[[nodiscard]] inline tl::unexpected<Error> Err(Error error) {
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace galley

#define GALLEY_CONCAT_INNER(a, b) a##b
#define GALLEY_CONCAT(a, b) GALLEY_CONCAT_INNER(a, b)

// Returns the error of `expr` (a Status or Result) from the calling function.
#define RETURN_IF_ERROR(expr)                                 \
  do {                                                        \
    if (auto galley_status = (expr); !galley_status) {        \
      return ::galley::Err(std::move(galley_status).error()); \
    }                                                         \
  } while (false)

// ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(dir));
#define ASSIGN_OR_RETURN(lhs, expr) GALLEY_ASSIGN_OR_RETURN(GALLEY_CONCAT(galley_result_, __LINE__), lhs, expr)
#define GALLEY_ASSIGN_OR_RETURN(tmp, lhs, expr)           \
  auto tmp = (expr);                                      \
  if (!tmp) return ::galley::Err(std::move(tmp).error()); \
  lhs = std::move(*tmp)
