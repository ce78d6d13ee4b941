#include "admin/http_server.h"

#include <fmt/core.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "admin/door_server.h"
#include "admin/routes.h"
#include "base/check.h"
#include "base/log.h"

namespace larder::admin {
namespace {

using Doors = std::vector<std::unique_ptr<DoorServer>>;

// The numeric addresses of a host, because the library would serve the first one only: by the name
// localhost, clients of either 127.0.0.1 or ::1 would find nobody.
Result<std::vector<std::string>> addresses_of(const std::string& host) {
  if (host.empty()) {
    return std::vector<std::string>{"0.0.0.0"};
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (status != 0) {
    return Error{Code::kInvalid,
                 fmt::format("HTTP host '{}' cannot be resolved: {}", host, gai_strerror(status))};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    const int printed = getnameinfo(
        entry->ai_addr, entry->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
    if (printed == 0 &&
        std::find(addresses.begin(), addresses.end(), text.data()) == addresses.end()) {
      addresses.emplace_back(text.data());
    }
  }
  return addresses;
}

// One server per address, all on one port. An address that this machine lacks, as ::1 in many
// containers, is passed over when there is another.
Result<Doors> open_doors(Door door,
                         const std::string& host,
                         std::uint16_t port,
                         const RouteContext& context) {
  const auto addresses = addresses_of(host);
  if (!addresses) {
    return addresses.error();
  }
  Doors doors;
  Error missing{Code::kInvalid, fmt::format("HTTP host '{}' has no address", host)};
  for (const std::string& address : *addresses) {
    auto opened = DoorServer::open(door, address, doors.empty() ? port : doors[0]->port(), context);
    if (opened) {
      doors.push_back(*std::move(opened));
    } else if (opened.error().code == Code::kInvalid) {
      missing = opened.error();
    } else {
      return opened.error();
    }
  }
  if (doors.empty()) {
    return missing;
  }
  return doors;
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(AdminActions actions, const metrics::Registry& metrics)
      : actions_(std::move(actions)), metrics_(metrics) {
    LARDER_CHECK(actions_.health && actions_.status_json && actions_.clear_l1);
  }

  Result<void> open(const HttpConfig& config) {
    auto opened = open_doors(Door::kAdmin, config.host, config.port, {actions_, metrics_});
    if (!opened) {
      return opened.error();
    }
    admin_ = *std::move(opened);
    if (config.prometheus_port) {
      open_for_prometheus(config.host, *config.prometheus_port);
    }
    return {};
  }

  std::uint16_t port() const { return admin_.at(0)->port(); }

  std::optional<std::uint16_t> prometheus_port() const {
    return prometheus_.empty() ? std::nullopt : std::optional(prometheus_[0]->port());
  }

 private:
  // Two servers of one host share the default port, so that it is taken is no reason not to start.
  void open_for_prometheus(const std::string& host, std::uint16_t port) {
    auto opened = open_doors(Door::kPrometheus, host, port, {actions_, metrics_});
    if (!opened) {
      log::warning(
          "metrics are served on HTTP port {} only: {}", this->port(), opened.error().detail);
      return;
    }
    prometheus_ = *std::move(opened);
  }

  const AdminActions actions_;
  const metrics::Registry& metrics_;
  Doors admin_;
  Doors prometheus_;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpConfig& config,
                                                      AdminActions actions,
                                                      const metrics::Registry& metrics) {
  auto impl = std::make_unique<Impl>(std::move(actions), metrics);
  if (const auto opened = impl->open(config); !opened) {
    return opened.error();
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

std::uint16_t HttpServer::port() const {
  return impl_->port();
}

std::optional<std::uint16_t> HttpServer::prometheus_port() const {
  return impl_->prometheus_port();
}

}  // namespace larder::admin
