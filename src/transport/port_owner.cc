#include "transport/port_owner.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

namespace larder::transport {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kListening = "0A";

// An address as /proc/net/tcp and tcp6 print it: each 32-bit word in memory order.
template <std::size_t N>
std::string proc_hex(const std::array<std::uint32_t, N>& words) {
  std::string text;
  for (const std::uint32_t word : words) {
    text += fmt::format("{:08X}", word);
  }
  return text;
}

// The local addresses whose listener keeps us from binding `address`; empty: any.
std::vector<std::string> rivals_of(const std::string& address) {
  const std::string any6 = proc_hex(std::array<std::uint32_t, 4>{});
  std::array<std::uint32_t, 1> v4{};
  if (inet_pton(AF_INET, address.c_str(), v4.data()) == 1) {
    if (v4[0] == INADDR_ANY) {
      return {};
    }
    const std::string mapped = proc_hex(std::array<std::uint32_t, 4>{0, 0, htonl(0xffff), v4[0]});
    return {proc_hex(v4), proc_hex(std::array<std::uint32_t, 1>{}), mapped, any6};
  }
  std::array<std::uint32_t, 4> v6{};
  if (inet_pton(AF_INET6, address.c_str(), v6.data()) == 1 && proc_hex(v6) != any6) {
    return {proc_hex(v6), any6};
  }
  return {};
}

bool is_rival(const std::vector<std::string>& rivals, std::string_view address) {
  for (const std::string& rival : rivals) {
    if (rival == address) {
      return true;
    }
  }
  return rivals.empty();
}

// The inode of the listening socket of one line, if it is one of the rivals.
std::optional<std::string> listener_of(const std::string& line,
                                       const std::vector<std::string>& rivals,
                                       std::uint16_t port) {
  std::istringstream fields(line);
  std::string slot;
  std::string local;
  std::string remote;
  std::string state;
  std::string skipped;
  std::string inode;
  fields >> slot >> local >> remote >> state;
  for (int i = 0; i < 5; ++i) {
    fields >> skipped;  // queues, timers, retransmits, uid, timeout
  }
  fields >> inode;
  const std::size_t colon = local.find(':');
  if (!fields || state != kListening || colon == std::string::npos ||
      local.substr(colon + 1) != fmt::format("{:04X}", port) ||
      !is_rival(rivals, std::string_view(local).substr(0, colon))) {
    return std::nullopt;
  }
  return inode;
}

std::optional<std::string> find_listener(const std::string& address, std::uint16_t port) {
  const std::vector<std::string> rivals = rivals_of(address);
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      if (std::optional<std::string> inode = listener_of(line, rivals, port)) {
        return inode;
      }
    }
  }
  return std::nullopt;
}

bool holds(const fs::path& folder, const std::string& link) {
  std::error_code failed;
  for (fs::directory_iterator descriptor(folder / "fd", failed), end; !failed && descriptor != end;
       descriptor.increment(failed)) {
    std::error_code unreadable;
    if (fs::read_symlink(descriptor->path(), unreadable) == link) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string find_port_owner(const std::string& address, std::uint16_t port) {
  const std::optional<std::string> inode = find_listener(address, port);
  if (!inode) {
    return "";
  }
  const std::string link = "socket:[" + *inode + "]";
  std::error_code failed;
  for (fs::directory_iterator entry("/proc", failed), end; !failed && entry != end;
       entry.increment(failed)) {
    const std::string pid = entry->path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos || !holds(entry->path(), link)) {
      continue;
    }
    std::string name;
    std::getline(std::ifstream(entry->path() / "comm"), name);
    return fmt::format("pid {}, {}", pid, name);
  }
  return "";
}

}  // namespace larder::transport
