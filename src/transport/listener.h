// listener.h - the sockets that peers connect to.
//
//   localhost            IPv4 loopback and, where there is one, IPv6 loopback
//   an address, a name, an interface, * for all      TCP
//   ipc:///run/larder.sock, ipc://@name               a local socket; @: an abstract one
//
// A local socket's path is taken over only when nobody listens on it (a server before us died), and
// removed at the end only if it is still ours. Opened by one thread, then used by the wire thread.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "transport/descriptor.h"
#include "transport/dispatcher.h"
#include "transport/poller.h"

namespace larder::transport {

struct Accepted {
  enum class Outcome : std::uint8_t {
    kPeer,
    kNobody,    // nobody waits
    kFailed,    // this one is gone already; there may be others
    kNoMemory,  // no descriptor or no memory for it: it goes on waiting
  };

  Outcome outcome = Outcome::kNobody;
  Descriptor socket;  // does not block
  PeerName name;
};

class Listener final : public Watched {
 public:
  explicit Listener(Descriptor socket);           // of TCP, listening
  Listener(Descriptor socket, std::string path);  // local; an empty path: abstract

  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener();

  int descriptor() const { return socket_.get(); }

  Accepted accept() const;

 private:
  Descriptor socket_;
  bool is_local_;
  std::string path_;

  struct stat created_ {};  // what the path is while it is ours
};

struct Listeners {
  std::vector<std::unique_ptr<Listener>> sockets;
  std::uint16_t port = 0;  // 0: a local socket
};

// kBusy when the port or path is taken (the message names the owner where it can be found),
// kInvalid when the host is no address of this machine.
Result<Listeners> open_listeners(const std::string& host, std::uint16_t port);

// As it is given to clients: "tcp://localhost:5555", "ipc:///run/larder.sock".
std::string endpoint_text(const std::string& host, std::uint16_t port);

// The part of local sockets (local_listener.cc); `address` is what follows ipc://.
inline constexpr std::string_view kLocalScheme = "ipc://";
Result<std::unique_ptr<Listener>> open_local_listener(const std::string& address);

// "pid 812, uid 1000" of whoever is at the other end of a local socket.
std::string local_peer_text(int descriptor);

// A restart of a node's workers connects all at once; the kernel's default would make some wait.
inline constexpr int kBacklog = 1024;

}  // namespace larder::transport
