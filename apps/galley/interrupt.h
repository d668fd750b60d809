// SPDX-License-Identifier: Apache-2.0
// Ctrl-C (SIGINT) as a flag that generation polls and an event that reading waits for. The first one asks to stop, a
// second one before Reset ends the process at once with code 130. A signal handler can only reach static storage, so
// the counter is the one piece of global state of the program; it is hidden here.
#pragma once

namespace galley::app {

class Interrupt {
 public:
  // Takes over SIGINT until destruction. At most one exists at a time.
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  [[nodiscard]] bool requested() const;
  // Blocks until `descriptor` can be read or has ended. False: there was an interrupt, now or since the last Reset.
  [[nodiscard]] bool WaitReadable(int descriptor) const;
  // Forgets the request: the answer it was about has ended.
  void Reset();
};

}  // namespace galley::app
