// SPDX-License-Identifier: Apache-2.0
#include "interrupt.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>

namespace galley::app {
namespace {

std::atomic<int> interrupts_seen{0};
// An eventfd that turns readable. A blocked read alone would miss a signal that comes just before it blocks, or that
// the kernel hands to another thread.
std::atomic<int> wake_descriptor{-1};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may use it");

extern "C" void CountInterrupt(int /*signal*/) {
  constexpr int kExitCode = 130;  // what a shell reports for a process that SIGINT ended
  if (interrupts_seen.fetch_add(1) > 0) _exit(kExitCode);
  const int saved = errno;
  const std::uint64_t one = 1;
  // The counter is far from full, so this cannot fail in a way that matters.
  [[maybe_unused]] const ssize_t written = write(wake_descriptor, &one, sizeof one);
  errno = saved;
}

}  // namespace

Interrupt::Interrupt() {
  interrupts_seen = 0;
  wake_descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  struct sigaction action = {};
  action.sa_handler = CountInterrupt;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
}

Interrupt::~Interrupt() {
  std::signal(SIGINT, SIG_DFL);
  const int descriptor = wake_descriptor.exchange(-1);
  if (descriptor >= 0) close(descriptor);
}

bool Interrupt::requested() const {
  return interrupts_seen > 0;
}

bool Interrupt::WaitReadable(int descriptor) const {
  std::array<pollfd, 2> waits = {pollfd{descriptor, POLLIN, 0}, pollfd{wake_descriptor, POLLIN, 0}};
  while (poll(waits.data(), waits.size(), -1) < 0 && errno == EINTR) {
  }
  return waits[1].revents == 0;
}

void Interrupt::Reset() {
  std::uint64_t count = 0;
  // In this order an interrupt in between still wakes the next wait.
  [[maybe_unused]] const ssize_t drained = read(wake_descriptor, &count, sizeof count);
  interrupts_seen = 0;
}

}  // namespace galley::app
