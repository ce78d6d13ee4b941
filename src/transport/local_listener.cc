#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "transport/listener.h"

namespace larder::transport {
namespace {

struct LocalAddress {
  sockaddr_un bytes{};
  socklen_t size = 0;

  const sockaddr* pointer() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

Result<LocalAddress> parse(const std::string& text) {
  LocalAddress address;
  address.bytes.sun_family = AF_UNIX;
  if (text.empty() || text == "@" || text.size() >= sizeof address.bytes.sun_path) {
    return Error{Code::kInvalid,
                 fmt::format("ipc://{}: a path of 1 to {} bytes is needed",
                             text,
                             sizeof address.bytes.sun_path - 1)};
  }
  std::memcpy(address.bytes.sun_path, text.data(), text.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + text.size());
  if (text.front() == '@') {
    address.bytes.sun_path[0] = '\0';  // abstract: the kernel's name for it
  } else {
    ++address.size;
  }
  return address;
}

Error system_error(const std::string& address, int failure) {
  return Error{failure == EADDRINUSE ? Code::kBusy : Code::kSystem,
               fmt::format("cannot listen on ipc://{}: {}", address, std::strerror(failure))};
}

Descriptor make_socket() {
  return Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

// Makes room at a path that a dead server left behind; fails when somebody listens there or it is
// no socket at all. libzmq would take over either.
Result<void> clear_path(const LocalAddress& address, const std::string& path) {
  struct stat found {};

  if (lstat(path.c_str(), &found) != 0) {
    return {};  // nothing there, or bind() will say what is wrong
  }
  if (!S_ISSOCK(found.st_mode)) {
    return Error{Code::kInvalid, fmt::format("{} exists and is no socket", path)};
  }
  const Descriptor probe = make_socket();
  if (connect(probe.get(), address.pointer(), address.size) == 0 || errno == EAGAIN) {
    const std::string owner = local_peer_text(probe.get());
    return Error{
        Code::kBusy,
        fmt::format(
            "ipc://{} is in use{}", path, owner.empty() ? "" : fmt::format(" ({})", owner))};
  }
  if (errno != ECONNREFUSED) {
    return system_error(path, errno);
  }
  unlink(path.c_str());
  return {};
}

}  // namespace

Listener::Listener(Descriptor socket, std::string path)
    : Watched(Kind::kListener),
      socket_(std::move(socket)),
      is_local_(true),
      path_(std::move(path)) {
  if (!path_.empty()) {
    lstat(path_.c_str(), &created_);
  }
}

Listener::~Listener() {
  struct stat found {};

  if (!path_.empty() && lstat(path_.c_str(), &found) == 0 && found.st_ino == created_.st_ino &&
      found.st_dev == created_.st_dev) {
    unlink(path_.c_str());
  }
}

std::string local_peer_text(int descriptor) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return "";
  }
  return fmt::format("pid {}, uid {}", peer.pid, peer.uid);
}

Result<std::unique_ptr<Listener>> open_local_listener(const std::string& address) {
  const Result<LocalAddress> parsed = parse(address);
  if (!parsed) {
    return parsed.error();
  }
  const bool is_abstract = address.front() == '@';
  if (!is_abstract) {
    if (const Result<void> cleared = clear_path(*parsed, address); !cleared) {
      return cleared.error();
    }
  }
  Descriptor socket = make_socket();
  if (!socket.is_open() || bind(socket.get(), parsed->pointer(), parsed->size) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    return system_error(address, errno);
  }
  return std::make_unique<Listener>(std::move(socket), is_abstract ? "" : address);
}

}  // namespace larder::transport
