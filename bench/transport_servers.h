// transport_servers.h - the two servers that transport_bench.cc compares, with the same handlers:
// the request port, and a libzmq ROUTER of the structure it had before: libzmq's I/O thread, a wire
// thread that polls socket, monitor and outbox, and worker threads.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "handlers/handlers.h"
#include "handlers/test_copy_mode.h"
#include "metrics/metrics.h"
#include "transport/server.h"

namespace larder::bench {

inline constexpr std::size_t kObjects = 8;
inline constexpr std::int64_t kHidden = 131072;  // objects of 2 MiB
inline constexpr std::uint64_t kInstance = 7;
inline constexpr std::size_t kPoolBytes = 256U << 20;

// Requests: 'N' is answered at once with "OK"; the other is COMMIT_STORE of LMCache 0.5.2, run by
// larder's own handlers on a worker.
inline constexpr char kNoop = 'N';
inline constexpr char kCommitStore = 14;

// Larder's handlers over a pool, for COMMIT_STORE.
class Handlers {
 public:
  Handlers() {
    const auto registered = handlers::on_register_engine_driven(
        services_.services, {}, handlers::registration_of(kInstance, kHidden));
    LARDER_CHECK(registered.has_value());
  }

  // A connection of a client of 0.5.2.
  void open(transport::ConnectionId connection) {
    services_.dispatch.connection_opened(connection, {});
    constexpr std::int64_t kGetChunkSize = 18;
    const handlers::TestMessage hello(
        {handlers::packed_int(0), handlers::packed_int(kGetChunkSize)},
        static_cast<std::uint64_t>(connection));
    LARDER_CHECK(services_.dispatch.route(hello.request).has_value());
  }

  handlers::Dispatch& dispatch() { return services_.dispatch; }

 private:
  handlers::TestServices services_{false, kPoolBytes};
};

inline std::vector<std::byte> text_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// The request port.
class OwnServer {
 public:
  OwnServer() {
    transport::ServerConfig config;
    config.host = "127.0.0.1";
    config.message_bytes_max = std::size_t{2} << 30;
    config.buffered_bytes_max = std::size_t{4} << 30;
    Result<std::unique_ptr<transport::Server>> server =
        transport::Server::create(config, dispatcher_, metrics_);
    LARDER_CHECK(server.has_value());
    server_ = std::move(*server);
    server_->start();
  }

  std::uint16_t port() const { return server_->port(); }

 private:
  class BenchDispatcher final : public transport::Dispatcher {
   public:
    std::optional<transport::Route> route(const transport::Request& request) override {
      return is_noop(request.frames) ? transport::Route{} : handlers_.dispatch().route(request);
    }

    std::unique_ptr<transport::FrameSink> place(transport::ConnectionId connection,
                                                std::span<const transport::Frame> begun,
                                                std::uint64_t frame_bytes) override {
      return is_noop(begun) ? nullptr : handlers_.dispatch().place(connection, begun, frame_bytes);
    }

    transport::Reply run(const transport::Request& request) noexcept override {
      if (!is_noop(request.frames)) {
        return handlers_.dispatch().run(request);
      }
      transport::Reply reply;
      reply.has_value = true;
      reply.small = text_bytes("OK");
      return reply;
    }

    transport::Reply refuse(const transport::Request& request) noexcept override {
      return run(request);
    }

    void connection_opened(transport::ConnectionId connection,
                           const transport::PeerName& /*peer*/) override {
      handlers_.open(connection);
    }

    void connection_closed(transport::ConnectionId connection,
                           transport::ConnectionEnd how) override {
      handlers_.dispatch().connection_closed(connection, how);
    }

   private:
    static bool is_noop(std::span<const transport::Frame> frames) {
      return frames.size() > 1 && frames[1].size() == 1 && frames[1][0] == std::byte{kNoop};
    }

    Handlers handlers_;
  };

  BenchDispatcher dispatcher_;
  metrics::Registry metrics_;
  std::unique_ptr<transport::Server> server_;
};

// One libzmq frame as a value.
class Part {
 public:
  Part() { zmq_msg_init(&message_); }

  explicit Part(std::string_view text) {
    zmq_msg_init_size(&message_, text.size());
    std::memcpy(zmq_msg_data(&message_), text.data(), text.size());
  }

  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;

  Part(Part&& other) noexcept {
    zmq_msg_init(&message_);
    zmq_msg_move(&message_, &other.message_);
  }

  Part& operator=(Part&& other) noexcept {
    zmq_msg_move(&message_, &other.message_);
    return *this;
  }

  ~Part() { zmq_msg_close(&message_); }

  zmq_msg_t* message() { return &message_; }

  std::span<const std::byte> bytes() {
    return {static_cast<const std::byte*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }

 private:
  zmq_msg_t message_;
};

// The old request port's structure, without its bookkeeping. Runs until the process ends.
class LibzmqServer {
 public:
  LibzmqServer()
      : context_(zmq_ctx_new()),
        router_(zmq_socket(context_, ZMQ_ROUTER)),
        monitor_(zmq_socket(context_, ZMQ_PAIR)),
        wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    const int mandatory = 1;
    const int unlimited = 16384;
    zmq_setsockopt(router_, ZMQ_ROUTER_MANDATORY, &mandatory, sizeof mandatory);
    zmq_setsockopt(router_, ZMQ_SNDHWM, &unlimited, sizeof unlimited);
    zmq_socket_monitor(router_, "inproc://monitor", ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED);
    zmq_connect(monitor_, "inproc://monitor");
    LARDER_CHECK(zmq_bind(router_, "tcp://127.0.0.1:*") == 0);
    std::array<char, 64> endpoint{};
    std::size_t size = endpoint.size();
    zmq_getsockopt(router_, ZMQ_LAST_ENDPOINT, endpoint.data(), &size);
    const std::string text = endpoint.data();
    port_ = static_cast<std::uint16_t>(std::stoi(text.substr(text.rfind(':') + 1)));
    handlers_.open(kConnection);
    std::thread([this] { run_wire(); }).detach();
    for (int i = 0; i < 2; ++i) {
      std::thread([this] { run_worker(); }).detach();
    }
  }

  LibzmqServer(const LibzmqServer&) = delete;
  LibzmqServer& operator=(const LibzmqServer&) = delete;
  ~LibzmqServer() = default;

  std::uint16_t port() const { return port_; }

 private:
  using Parts = std::vector<Part>;

  static constexpr transport::ConnectionId kConnection{1};

  void run_wire() {
    constexpr int kFramesPerRound = 256;
    for (;;) {
      std::array<zmq_pollitem_t, 3> items{};
      items[0] = {nullptr, wake_, ZMQ_POLLIN, 0};
      items[1] = {monitor_, 0, ZMQ_POLLIN, 0};
      items[2] = {router_, 0, ZMQ_POLLIN, 0};
      zmq_poll(items.data(), static_cast<int>(items.size()), -1);
      read_monitor();
      send_answers();
      int budget = kFramesPerRound;
      while (budget > 0 && receive_one(budget)) {
      }
    }
  }

  void read_monitor() {
    for (Part event; zmq_msg_recv(event.message(), monitor_, ZMQ_DONTWAIT) >= 0;) {
      Part address;
      zmq_msg_recv(address.message(), monitor_, ZMQ_DONTWAIT);
    }
  }

  void send_answers() {
    std::uint64_t count = 0;
    static_cast<void>(!read(wake_, &count, sizeof count));
    std::deque<Parts> answers;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      answers.swap(answers_);
    }
    for (Parts& answer : answers) {
      send(answer);
    }
  }

  void send(Parts& parts) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const int more = i + 1 < parts.size() ? ZMQ_SNDMORE : 0;
      if (zmq_msg_send(parts[i].message(), router_, ZMQ_DONTWAIT | more) < 0) {
        return;
      }
    }
  }

  bool receive_one(int& budget) {
    Parts parts;
    for (bool has_more = true; has_more; --budget) {
      Part part;
      if (zmq_msg_recv(part.message(), router_, ZMQ_DONTWAIT) < 0) {
        return false;
      }
      has_more = zmq_msg_more(part.message()) != 0;
      parts.push_back(std::move(part));
    }
    if (parts[2].bytes()[0] == std::byte{kNoop}) {
      parts.resize(3);
      parts.emplace_back("OK");
      send(parts);
      return true;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    requests_.push_back(std::move(parts));
    work_.notify_one();
    return true;
  }

  // What a handler of the request says.
  std::vector<std::byte> answer_to(Parts& parts) {
    transport::Request request;
    request.connection = kConnection;
    for (std::size_t i = 1; i < parts.size(); ++i) {
      request.frames.push_back(parts[i].bytes());
    }
    const std::optional<transport::Route> route = handlers_.dispatch().route(request);
    LARDER_CHECK(route.has_value());
    request.route = *route;
    return handlers_.dispatch().run(request).small;
  }

  void run_worker() {
    for (;;) {
      Parts parts;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        work_.wait(lock, [this] { return !requests_.empty(); });
        parts = std::move(requests_.front());
        requests_.pop_front();
      }
      const std::vector<std::byte> answer = answer_to(parts);
      parts.resize(3);
      parts.emplace_back(
          std::string_view(reinterpret_cast<const char*>(answer.data()), answer.size()));
      const std::lock_guard<std::mutex> lock(mutex_);
      answers_.push_back(std::move(parts));
      const std::uint64_t one = 1;
      static_cast<void>(!write(wake_, &one, sizeof one));
    }
  }

  void* context_;
  void* router_;
  void* monitor_;
  int wake_;
  std::uint16_t port_ = 0;
  Handlers handlers_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<Parts> requests_;
  std::deque<Parts> answers_;
};

}  // namespace larder::bench
