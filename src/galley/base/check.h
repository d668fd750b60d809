// SPDX-License-Identifier: Apache-2.0
// CHECK(cond) << "values": always on, for invariants of our own code only; input from outside must never reach one.
// DCHECK is the same in debug builds and unevaluated otherwise. Both print the expression, the values and the place
// to stderr and abort.
#pragma once

#include <sstream>

namespace galley::internal {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* expression);
  [[noreturn]] ~CheckFailure();
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;

  std::ostream& stream() { return message_; }

 private:
  std::ostringstream message_;
};

// Turns the stream expression into void so that it fits the conditional operator.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace galley::internal

#define CHECK(cond) \
  (cond) ? (void)0  \
         : ::galley::internal::Voidify() & ::galley::internal::CheckFailure(__FILE__, __LINE__, #cond).stream()

#ifdef NDEBUG
#define DCHECK(cond) CHECK(true || (cond))
#else
#define DCHECK(cond) CHECK(cond)
#endif
