// SPDX-License-Identifier: Apache-2.0
#include "interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

#include "galley/base/error.h"

namespace galley::app {
namespace {

std::atomic<int> interrupts_seen{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may use it");

extern "C" void CountInterrupt(int /*signal*/) {
  constexpr int kExitCode = 130;  // what a shell reports for a process that SIGINT ended
  if (interrupts_seen.fetch_add(1) > 0) _exit(kExitCode);
}

}  // namespace

Interrupt::Interrupt() {
  interrupts_seen = 0;
  struct sigaction action = {};
  action.sa_handler = CountInterrupt;  // without SA_RESTART: a blocked read returns, so that a prompt can react
  sigaction(SIGINT, &action, nullptr);
}

Interrupt::~Interrupt() {
  std::signal(SIGINT, SIG_DFL);
}

bool Interrupt::requested() const {
  return interrupts_seen > 0;
}

void Interrupt::Reset() {
  interrupts_seen = 0;
}

}  // namespace galley::app
