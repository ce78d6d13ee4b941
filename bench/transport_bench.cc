// transport_bench.cc - what the request port costs, next to a libzmq ROUTER of the structure it had
// before, both with libzmq DEALER clients over loopback TCP.
//
// Each server is a process of its own, so that its CPU time is the server's alone. The two take
// turns several times, and medians are compared: on a shared machine only ratios mean something.
//
//   noop          one small request at a time: median round trip, server CPU
//   pipelined     32 small requests in flight: rate, server CPU
//   store         copy mode: one COMMIT_STORE of 8 objects of 2 MiB, pickled as clients do, run by
//   the
//                 real handlers behind both; the pool is full from the first half on
//   ping          the slowest of a hundred round trips while another client sends a message of 1 GB
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "transport_servers.h"

namespace larder::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 7;
constexpr int kRoundTrips = 4000;
constexpr int kPipelined = 60'000;
constexpr int kInFlight = 32;
constexpr std::uint32_t kStores = 40;
constexpr char kTrue = '\xc3';  // COMMIT_STORE's answer when all is stored
constexpr std::size_t kGigabyte = std::size_t{1} << 30;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

// A server in a child process, which ends with this object.
class ServerProcess {
 public:
  template <typename Server>
  static ServerProcess start() {
    std::array<int, 2> told{};
    LARDER_CHECK(pipe(told.data()) == 0);
    const pid_t child = fork();
    LARDER_CHECK(child >= 0);
    if (child == 0) {
      const Server server;
      const std::uint16_t port = server.port();
      LARDER_CHECK(write(told[1], &port, sizeof port) == sizeof port);
      for (;;) {
        pause();
      }
    }
    std::uint16_t port = 0;
    LARDER_CHECK(read(told[0], &port, sizeof port) == sizeof port);
    close(told[0]);
    close(told[1]);
    return {child, port};
  }

  ServerProcess(pid_t child, std::uint16_t port) : child_(child), port_(port) {
    LARDER_CHECK(clock_getcpuclockid(child_, &cpu_clock_) == 0);
  }

  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  ~ServerProcess() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

  std::uint16_t port() const { return port_; }

  double cpu_seconds() const {
    constexpr double kNanosecond = 1e-9;
    timespec time{};
    clock_gettime(cpu_clock_, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * kNanosecond;
  }

 private:
  pid_t child_;
  std::uint16_t port_;
  clockid_t cpu_clock_{};
};

class Client {
 public:
  explicit Client(std::uint16_t port)
      : context_(zmq_ctx_new()), socket_(zmq_socket(context_, ZMQ_DEALER)) {
    const int no_linger = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &no_linger, sizeof no_linger);
    LARDER_CHECK(zmq_connect(socket_, ("tcp://127.0.0.1:" + std::to_string(port)).c_str()) == 0);
    ask_noop();
  }

  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  ~Client() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }

  void send_noop() {
    zmq_send(socket_, "\x01", 1, ZMQ_SNDMORE);
    LARDER_CHECK(zmq_send(socket_, &kNoop, 1, 0) == 1);
  }

  // The payload is lent: it outlives the message.
  void send_payload(char operation,
                    const std::vector<std::vector<std::byte>>& front,
                    std::vector<std::byte>& payload) {
    zmq_send(socket_, "\x01", 1, ZMQ_SNDMORE);
    zmq_send(socket_, &operation, 1, ZMQ_SNDMORE);
    for (const std::vector<std::byte>& frame : front) {
      zmq_send(socket_, frame.data(), frame.size(), ZMQ_SNDMORE);
    }
    zmq_msg_t message;
    zmq_msg_init_data(&message, payload.data(), payload.size(), nullptr, nullptr);
    LARDER_CHECK(zmq_msg_send(&message, socket_, 0) >= 0);
  }

  // Returns the value's first byte.
  char receive() {
    std::array<char, 16> frame{};
    for (int i = 0; i < 3; ++i) {
      LARDER_CHECK(zmq_recv(socket_, frame.data(), frame.size(), 0) > 0);
    }
    return frame.front();
  }

  void ask_noop() {
    send_noop();
    receive();
  }

 private:
  void* context_;
  void* socket_;
};

// What one server did in one round, by name of the figure.
using Figures = std::map<std::string, double>;

constexpr double kMicro = 1e6;
constexpr double kMilli = 1e3;

void measure_noop(const ServerProcess& server, Figures& figures) {
  Client client(server.port());
  std::vector<double> micros;
  const double cpu = server.cpu_seconds();
  for (int i = 0; i < kRoundTrips; ++i) {
    const Clock::time_point begin = Clock::now();
    client.ask_noop();
    micros.push_back(seconds_since(begin) * kMicro);
  }
  figures["noop p50, us"] = quantile(micros, 0.5);
  figures["noop server CPU, ms per 1000"] =
      (server.cpu_seconds() - cpu) * kMilli / kRoundTrips * 1000;
}

void measure_pipelined(const ServerProcess& server, Figures& figures) {
  Client client(server.port());
  const double cpu = server.cpu_seconds();
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kInFlight; ++i) {
    client.send_noop();
  }
  for (int i = 0; i < kPipelined - kInFlight; ++i) {
    client.receive();
    client.send_noop();
  }
  for (int i = 0; i < kInFlight; ++i) {
    client.receive();
  }
  figures["pipelined, 1000 per s"] = kPipelined / seconds_since(begin) / 1000;
  figures["pipelined server CPU, ms per 1000"] =
      (server.cpu_seconds() - cpu) * kMilli / kPipelined * 1000;
}

void measure_store(const ServerProcess& server, Figures& figures) {
  Client client(server.port());
  const tensors::Layout layout{tensors::Dtype::kFloat16,
                               {2, 1, handlers::kTestChunkTokens, kHidden}};
  const std::vector<std::vector<std::byte>> objects(
      kObjects, std::vector<std::byte>(handlers::object_bytes_of(kHidden), std::byte{7}));
  std::vector<std::byte> payload = handlers::binary(handlers::list_of(layout, objects));
  const std::vector<std::byte> instance = handlers::packed_int(kInstance);
  const double cpu = server.cpu_seconds();
  const Clock::time_point begin = Clock::now();
  for (std::uint32_t i = 0; i < kStores; ++i) {
    client.send_payload(
        kCommitStore, {handlers::packed(handlers::key_of("r", i, kObjects)), instance}, payload);
    LARDER_CHECK(client.receive() == kTrue);
  }
  const double gigabytes =
      static_cast<double>(payload.size()) * kStores / static_cast<double>(kGigabyte);
  figures["store 8 x 2 MiB, GiB/s"] = gigabytes / seconds_since(begin);
  figures["store server CPU, ms per GiB"] = (server.cpu_seconds() - cpu) * kMilli / gigabytes;
}

void measure_ping(const ServerProcess& server, std::vector<std::byte>& payload, Figures& figures) {
  Client pinger(server.port());
  Client sender(server.port());
  std::atomic<bool> is_sent{false};
  std::thread sending([&] {
    sender.send_payload(kNoop, {}, payload);
    sender.receive();
    is_sent = true;
  });
  std::vector<double> millis;
  while (!is_sent) {
    const Clock::time_point begin = Clock::now();
    pinger.ask_noop();
    millis.push_back(seconds_since(begin) * kMilli);
  }
  sending.join();
  figures["ping p99 beside 1 GB, ms"] = quantile(millis, 0.99);
}

template <typename Server>
Figures measure(std::vector<std::byte>& payload) {
  const ServerProcess server = ServerProcess::start<Server>();
  Figures figures;
  measure_noop(server, figures);
  measure_pipelined(server, figures);
  measure_store(server, figures);
  measure_ping(server, payload, figures);
  return figures;
}

Figures medians(const std::vector<Figures>& rounds) {
  Figures medians;
  for (const auto& [name, unused] : rounds.front()) {
    std::vector<double> values;
    for (const Figures& round : rounds) {
      values.push_back(round.at(name));
    }
    medians[name] = quantile(values, 0.5);
  }
  return medians;
}

void write_json(const std::string& path, const Figures& libzmq, const Figures& own) {
  std::ofstream file(path);
  const char* separator = "{\n";
  for (const auto& [name, value] : own) {
    file << separator << "  \"" << name << "\": {\"libzmq\": " << libzmq.at(name)
         << ", \"own\": " << value << "}";
    separator = ",\n";
  }
  file << "\n}\n";
}

// The flag of the other benchmarks, so that `make bench` runs this like them.
std::string output_path(int argc, char** argv) {
  constexpr std::string_view kFlag = "--benchmark_out=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(kFlag)) {
      return std::string(argument.substr(kFlag.size()));
    }
  }
  return "";
}

int run(int argc, char** argv) {
  log::set_level(log::Level::kWarning);
  std::vector<std::byte> payload(kGigabyte, std::byte{3});
  std::vector<Figures> libzmq_rounds;
  std::vector<Figures> own_rounds;
  for (int round = 0; round < kRounds; ++round) {
    libzmq_rounds.push_back(measure<LibzmqServer>(payload));
    own_rounds.push_back(measure<OwnServer>(payload));
  }
  const Figures libzmq = medians(libzmq_rounds);
  const Figures own = medians(own_rounds);
  std::printf("%-36s %10s %10s %8s\n", "median of rounds", "libzmq", "own", "ratio");
  for (const auto& [name, value] : own) {
    const double before = libzmq.at(name);
    std::printf("%-36s %10.3f %10.3f %7.2fx\n", name.c_str(), before, value, value / before);
  }
  if (const std::string path = output_path(argc, argv); !path.empty()) {
    write_json(path, libzmq, own);
  }
  return 0;
}

}  // namespace
}  // namespace larder::bench

int main(int argc, char** argv) {
  return larder::bench::run(argc, argv);
}
