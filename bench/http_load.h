// SPDX-License-Identifier: Apache-2.0
// Clients for benchmarks of a server in the same program: a child process, so that the server's processor time and
// memory can be told from the clients'. Made before the program starts threads.
#pragma once

#include <sys/types.h>

#include <string>

namespace galley::bench {

struct LoadPlan {
  int connections = 1;
  std::string request;  // bytes that each connection sends
  // How a connection ends: "" when the server closes it, else when this text has come.
  std::string until;
};

class ClientProcess {
 public:
  // Forks. The child waits for Start, opens all connections, sends, reads all that comes and ends with them.
  explicit ClientProcess(const LoadPlan& plan);
  ~ClientProcess();  // ends it
  ClientProcess(const ClientProcess&) = delete;
  ClientProcess& operator=(const ClientProcess&) = delete;

  void Start(int port);
  // Until the child has ended; false: it failed (a connection was refused or broke off).
  [[nodiscard]] bool Wait();

 private:
  pid_t child_ = -1;
  int start_pipe_ = -1;
};

}  // namespace galley::bench
