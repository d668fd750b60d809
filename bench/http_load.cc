// SPDX-License-Identifier: Apache-2.0
#include "http_load.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace galley::bench {
namespace {

struct Connection {
  int descriptor = -1;
  std::string tail;  // the last bytes, in which `until` is looked for
  bool ended = false;
};

bool Open(Connection* connection, int port, const std::string& request) {
  connection->descriptor = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (connect(connection->descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return false;
  for (std::string_view rest = request; !rest.empty();) {
    const ssize_t sent = send(connection->descriptor, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    rest.remove_prefix(static_cast<std::size_t>(sent));
  }
  return fcntl(connection->descriptor, F_SETFL, O_NONBLOCK) == 0;
}

// Reads what there is. False: the connection broke off too early.
bool Drain(Connection* connection, const std::string& until) {
  std::array<char, 64 << 10> piece;
  for (;;) {
    const ssize_t count = recv(connection->descriptor, piece.data(), piece.size(), 0);
    if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (count == 0) {
      connection->ended = true;
      return until.empty();
    }
    connection->tail.append(piece.data(), static_cast<std::size_t>(count));
    if (!until.empty() && connection->tail.find(until) != std::string::npos) {
      connection->ended = true;
      return true;
    }
    if (connection->tail.size() > until.size()) connection->tail.erase(0, connection->tail.size() - until.size());
  }
}

int RunClients(const LoadPlan& plan, int port) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  std::vector<Connection> connections(static_cast<std::size_t>(plan.connections));
  const int poll = epoll_create1(0);
  for (Connection& connection : connections) {
    if (!Open(&connection, port, plan.request)) return 1;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = &connection;
    epoll_ctl(poll, EPOLL_CTL_ADD, connection.descriptor, &event);
  }
  int open = plan.connections;
  while (open > 0) {
    std::array<epoll_event, 64> events;
    const int count = epoll_wait(poll, events.data(), static_cast<int>(events.size()), 60'000);
    if (count <= 0) return 1;
    for (int i = 0; i < count; ++i) {
      auto* connection = static_cast<Connection*>(events[static_cast<std::size_t>(i)].data.ptr);
      if (!Drain(connection, plan.until)) return 1;
      if (!connection->ended) continue;
      close(connection->descriptor);
      --open;
    }
  }
  return 0;
}

}  // namespace

ClientProcess::ClientProcess(const LoadPlan& plan) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) std::abort();
  child_ = fork();
  if (child_ == 0) {
    close(ends[1]);
    int port = 0;
    if (read(ends[0], &port, sizeof port) != sizeof port) _exit(2);
    _exit(RunClients(plan, port));
  }
  close(ends[0]);
  start_pipe_ = ends[1];
}

ClientProcess::~ClientProcess() {
  close(start_pipe_);
  if (child_ <= 0) return;
  kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
}

void ClientProcess::Start(int port) {
  if (write(start_pipe_, &port, sizeof port) != sizeof port) std::abort();
}

bool ClientProcess::Wait() {
  int status = -1;
  waitpid(child_, &status, 0);
  child_ = -1;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace galley::bench
