// transport_bench.cc - what the request port costs: an echo of three small frames over loopback
// TCP, through a whole server and libzmq DEALER clients in the same process. Round trips report
// their median and 99th percentile; the pipelined runs keep 32 requests in flight. Each is run on
// the wire thread's lane and on a worker lane.
#include <benchmark/benchmark.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "metrics/metrics.h"
#include "transport/server.h"

namespace larder::transport {
namespace {

constexpr int kInFlight = 32;
constexpr int kFramesPerMessage = 3;

class EchoDispatcher final : public Dispatcher {
 public:
  explicit EchoDispatcher(Lane lane) : lane_(lane) {}

  std::optional<Route> route(const Request& /*request*/) override { return Route{lane_, 0, 0}; }

  Reply run(const Request& request) noexcept override {
    Reply reply;
    reply.has_value = true;
    reply.small.assign(request.frames[2].begin(), request.frames[2].end());
    return reply;
  }

  Reply refuse(const Request& request) noexcept override { return run(request); }

  void connection_opened(ConnectionId /*connection*/) override {}

  void connection_closed(ConnectionId /*connection*/) override {}

 private:
  const Lane lane_;
};

class EchoServer {
 public:
  explicit EchoServer(Lane lane) : dispatcher_(lane) {
    ServerConfig config;
    config.host = "127.0.0.1";
    Result<std::unique_ptr<Server>> server = Server::create(config, dispatcher_, metrics_);
    LARDER_CHECK(server.has_value());
    server_ = std::move(*server);
    server_->start();
  }

  std::uint16_t port() const { return server_->port(); }

 private:
  EchoDispatcher dispatcher_;
  metrics::Registry metrics_;
  std::unique_ptr<Server> server_;
};

class Client {
 public:
  explicit Client(std::uint16_t port)
      : context_(zmq_ctx_new()), socket_(zmq_socket(context_, ZMQ_DEALER)) {
    LARDER_CHECK(zmq_connect(socket_, ("tcp://127.0.0.1:" + std::to_string(port)).c_str()) == 0);
  }

  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  ~Client() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }

  void send() {
    zmq_send(socket_, "\x01", 1, ZMQ_SNDMORE);
    zmq_send(socket_, "\x15", 1, ZMQ_SNDMORE);
    LARDER_CHECK(zmq_send(socket_, "\xa2OK", 3, 0) == 3);
  }

  void receive() {
    std::array<char, 16> frame{};
    for (int i = 0; i < kFramesPerMessage; ++i) {
      LARDER_CHECK(zmq_recv(socket_, frame.data(), frame.size(), 0) > 0);
    }
  }

 private:
  void* context_;
  void* socket_;
};

Lane lane_of(const benchmark::State& state) {
  return static_cast<Lane>(state.range(0));
}

void round_trip(benchmark::State& state) {
  const EchoServer server(lane_of(state));
  Client client(server.port());
  client.send();
  client.receive();
  std::vector<double> micros;
  for ([[maybe_unused]] auto step : state) {
    const auto begin = std::chrono::steady_clock::now();
    client.send();
    client.receive();
    micros.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::sort(micros.begin(), micros.end());
  state.counters["p50_us"] = micros[micros.size() / 2];
  state.counters["p99_us"] = micros[micros.size() * 99 / 100];
}

void pipelined(benchmark::State& state) {
  const EchoServer server(lane_of(state));
  Client client(server.port());
  for (int i = 0; i < kInFlight; ++i) {
    client.send();
  }
  for ([[maybe_unused]] auto step : state) {
    client.receive();
    client.send();
  }
  for (int i = 0; i < kInFlight; ++i) {
    client.receive();
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()));
}

BENCHMARK(round_trip)
    ->ArgName("lane")
    ->Arg(static_cast<int>(Lane::kWire))
    ->Arg(static_cast<int>(Lane::kLookup))
    ->UseRealTime();
BENCHMARK(pipelined)
    ->ArgName("lane")
    ->Arg(static_cast<int>(Lane::kWire))
    ->Arg(static_cast<int>(Lane::kLookup))
    ->UseRealTime();

}  // namespace
}  // namespace larder::transport
