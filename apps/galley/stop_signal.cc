// SPDX-License-Identifier: Apache-2.0
#include "stop_signal.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>

namespace galley::app {
namespace {

std::atomic<int> first_signal{0};
std::atomic<int> stop_descriptor{-1};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may use it");

extern "C" void NoteStop(int signal) {
  int none = 0;
  if (!first_signal.compare_exchange_strong(none, signal)) _exit(128 + signal);
  const int saved = errno;
  const std::uint64_t one = 1;
  // The counter is far from full, so this cannot fail in a way that matters.
  [[maybe_unused]] const ssize_t written = write(stop_descriptor, &one, sizeof one);
  errno = saved;
}

}  // namespace

StopSignal::StopSignal() {
  first_signal = 0;
  stop_descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  struct sigaction action = {};
  action.sa_handler = NoteStop;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

StopSignal::~StopSignal() {
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
  const int descriptor = stop_descriptor.exchange(-1);
  if (descriptor >= 0) close(descriptor);
}

bool StopSignal::requested() const {
  return first_signal != 0;
}

int StopSignal::Wait() const {
  pollfd wait{stop_descriptor, POLLIN, 0};
  while (first_signal == 0) (void)poll(&wait, 1, -1);
  return first_signal;
}

}  // namespace galley::app
