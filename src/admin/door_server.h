// door_server.h - one address of the admin port, served by cpp-httplib.
//
// Private to this room. The library parses requests and prints replies; this ties it to the route
// table, to ElasticThreads and to RequestStream. Each connection serves one request, which the
// reply says: probes and scrapes are seconds apart, and the library would poll an open connection.
//
// Written for 0.11: process_and_close_socket is the library's own way to serve another kind of
// socket (its TLS server is made so).
#pragma once

#include <httplib.h>

#include <cstdint>
#include <latch>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "admin/routes.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"

namespace larder::admin {

class DoorServer final : private httplib::Server {
 public:
  // Binds to a numeric address and serves from now on; port 0 is any free one. kBusy when the port
  // is taken, kInvalid when this machine lacks the address. What `context` refers to outlives this.
  static Result<std::unique_ptr<DoorServer>> open(Door door,
                                                  const std::string& address,
                                                  std::uint16_t port,
                                                  const RouteContext& context);

  DoorServer(const DoorServer&) = delete;
  DoorServer& operator=(const DoorServer&) = delete;
  ~DoorServer() override;  // stops reading, waits for the answers being made, joins

  std::uint16_t port() const { return port_; }

 private:
  DoorServer(Door door, const RouteContext& context);

  Result<void> bind(const std::string& address, std::uint16_t port);
  void set_routes();
  void listen_until_stopped();
  bool process_and_close_socket(socket_t socket) override;
  bool answer_one(socket_t socket);
  void respond(const httplib::Request& request, std::string body, httplib::Response& response);
  void read_and_respond(const httplib::Request& request,
                        httplib::Response& response,
                        const httplib::ContentReader& read);

  const Door door_;
  const RouteContext context_;
  SteadyClock clock_;
  std::uint16_t port_ = 0;
  std::latch listening_{1};  // the library ignores a stop() before it
  Mutex mutex_;
  bool stopping_ LARDER_GUARDED_BY(mutex_) = false;
  std::set<socket_t> open_sockets_ LARDER_GUARDED_BY(mutex_);
  std::thread listener_;
};

}  // namespace larder::admin
