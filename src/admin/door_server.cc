#include "admin/door_server.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <exception>
#include <string_view>
#include <utility>

#include "admin/elastic_threads.h"
#include "admin/request_stream.h"
#include "base/log.h"

namespace larder::admin {
namespace {

constexpr std::size_t kBodyBytesMax = 1U << 20;

// Connections that wait for accept(). The library asks for 5, and a connection beyond them is
// retried by the client's kernel after a second only.
constexpr int kBacklog = 512;

// Not SO_REUSEPORT, the library's choice: two servers would share a port, and requests, unnoticed.
void set_listening_options(socket_t socket) {
  const int on = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
}

Code code_of_bind_failure(int error) {
  switch (error) {
    case EADDRINUSE:
      return Code::kBusy;
    case EAFNOSUPPORT:
    case EADDRNOTAVAIL:
      return Code::kInvalid;
    default:
      return Code::kSystem;
  }
}

bool announces_body(const httplib::Request& request) {
  return request.has_header("Transfer-Encoding") ||
         (request.has_header("Content-Length") &&
          request.get_header_value("Content-Length") != "0");
}

// The library would read a length that is not a number as 0, and an empty body clears the cache.
bool has_bad_length(const httplib::Request& request) {
  const std::string length = request.get_header_value("Content-Length");
  return length.find_first_not_of("0123456789") != std::string::npos;
}

std::string query_of(const httplib::Request& request) {
  const std::size_t mark = request.target.find('?');
  return mark == std::string::npos ? std::string() : request.target.substr(mark + 1);
}

void fill(httplib::Response& response, const Reply& reply) {
  if (reply.status != 200) {
    response.status = reply.status;  // 200 is the library's default: 206 when a range was asked for
  }
  if (!reply.content_type.empty()) {
    response.set_content(reply.body, reply.content_type);
  }
  for (const auto& [name, value] : reply.headers) {
    response.set_header(name, value);
  }
}

}  // namespace

DoorServer::DoorServer(Door door, const RouteContext& context) : door_(door), context_(context) {
  set_socket_options(set_listening_options);
  set_tcp_nodelay(true);  // head and body are written one after the other
  set_payload_max_length(kBodyBytesMax);
  new_task_queue = [this] {
    listening_.count_down();
    return std::make_unique<ElasticThreads>(ThreadLimits{}).release();  // the library deletes it
  };
  set_routes();
}

void DoorServer::set_routes() {
  // Nearly everything is answered here, before the library would read a body: without a length it
  // reads until the client closes, and `curl -X POST` sends none.
  set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    if (takes_body(door_, request.method, request.path) && announces_body(request)) {
      return HandlerResponse::Unhandled;
    }
    respond(request, "", response);
    return HandlerResponse::Handled;
  });
  const auto with_body = [this](const httplib::Request& request,
                                httplib::Response& response,
                                const httplib::ContentReader& read) {
    read_and_respond(request, response, read);
  };
  Post("/.*", with_body);
  Put("/.*", with_body);
  set_exception_handler([](const httplib::Request& request,
                           httplib::Response& response,
                           const std::exception_ptr& /*failure*/) {
    log::error("{} failed: exception", request.path);
    fill(response, {500, "text/plain; charset=utf-8", "Internal Server Error", {}});
  });
  // Called for every status from 400 on; those of the library itself have no body yet.
  set_error_handler([](const httplib::Request& /*request*/, httplib::Response& response) {
    if (response.body.empty()) {
      fill(response, refusal(response.status));
    }
  });
}

Result<void> DoorServer::bind(const std::string& address, std::uint16_t port) {
  errno = 0;
  const int bound = port == 0 ? bind_to_any_port(address)
                              : (bind_to_port(address, port) ? static_cast<int>(port) : -1);
  if (bound < 0) {
    // The library keeps the reason to itself; an address has one socket, so its errno is the last.
    const int error = errno;
    return Error{
        code_of_bind_failure(error),
        fmt::format(
            "cannot listen for HTTP on port {} of '{}': {}", port, address, std::strerror(error))};
  }
  port_ = static_cast<std::uint16_t>(bound);
  ::listen(svr_sock_, kBacklog);
  return {};
}

Result<std::unique_ptr<DoorServer>> DoorServer::open(Door door,
                                                     const std::string& address,
                                                     std::uint16_t port,
                                                     const RouteContext& context) {
  std::unique_ptr<DoorServer> server(new DoorServer(door, context));
  if (const auto bound = server->bind(address, port); !bound) {
    return bound.error();
  }
  server->listener_ = std::thread([&serving = *server] { serving.listen_until_stopped(); });
  return server;
}

void DoorServer::listen_until_stopped() {
  if (!listen_after_bind()) {
    log::error("HTTP port {} is closed: accept() failed: {}", port_, std::strerror(errno));
  }
}

DoorServer::~DoorServer() {
  if (!listener_.joinable()) {
    return;
  }
  listening_.wait();
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    for (const socket_t socket : open_sockets_) {
      shutdown(socket, SHUT_RD);  // ends every wait for a request, and no reply
    }
  }
  stop();
  listener_.join();
}

bool DoorServer::process_and_close_socket(socket_t socket) {
  bool stopping = false;
  {
    const MutexLock lock(mutex_);
    stopping = stopping_;
    open_sockets_.insert(socket);
  }
  const bool answered = !stopping && answer_one(socket);
  {
    const MutexLock lock(mutex_);
    open_sockets_.erase(socket);
  }
  close(socket);
  return answered;
}

bool DoorServer::answer_one(socket_t socket) {
  try {
    RequestStream stream(socket, {}, clock_);
    bool closes = true;
    if (!stream.await_request() || !process_request(stream, true, closes, nullptr)) {
      return false;
    }
    stream.finish();
    return true;
  } catch (const std::exception& failure) {
    log::error("HTTP request failed: {}", failure.what());
    return false;
  }
}

void DoorServer::respond(const httplib::Request& request,
                         std::string body,
                         httplib::Response& response) {
  const Reply reply = answer(door_,
                             {request.method,
                              request.path,
                              query_of(request),
                              request.get_header_value("Content-Type"),
                              std::move(body)},
                             context_);
  log::debug("HTTP {} {} -> {}", request.method, request.path, reply.status);
  fill(response, reply);
}

void DoorServer::read_and_respond(const httplib::Request& request,
                                  httplib::Response& response,
                                  const httplib::ContentReader& read) {
  if (request.is_multipart_form_data()) {
    response.status = 415;
    return;
  }
  if (has_bad_length(request)) {
    response.status = 400;
    return;
  }
  std::string body;
  // The library's own limit counts neither chunks nor what a compressed body unfolds to.
  bool too_large = false;
  const bool complete = read([&](const char* bytes, std::size_t size) {
    too_large = size > kBodyBytesMax - body.size();
    if (!too_large) {
      body.append(bytes, size);
    }
    return !too_large;
  });
  if (complete) {
    respond(request, std::move(body), response);
  } else if (too_large) {
    response.status = 413;
  }
}

}  // namespace larder::admin
