#include "transport/server.h"

#include <pthread.h>

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"
#include "transport/outbox.h"
#include "transport/received_frames.h"
#include "transport/router_loop.h"
#include "transport/router_socket.h"
#include "transport/strands.h"
#include "transport/transport_counters.h"

namespace larder::transport {
namespace {

// Quick requests are answered on the wire thread and wait nowhere; their pipelined replies need
// room as well.
constexpr std::size_t kRepliesUnsentMin = 4096;

}  // namespace

class Server::Impl {
 public:
  struct Opened {
    std::unique_ptr<RouterSocket> socket;
    std::uint16_t port;
    std::shared_ptr<Outbox> outbox;  // shared with replies that libzmq still holds
  };

  Impl(const ServerConfig& config,
       Dispatcher& dispatcher,
       metrics::Registry& metrics,
       Opened opened)
      : dispatcher_(dispatcher),
        counters_(metrics),
        opened_(std::move(opened)),
        strands_({config.lookup_workers,
                  config.transfer_workers,
                  config.requests_waiting_max,
                  config.request_bytes_waiting_max},
                 [this](Request request) { return run(std::move(request)); }),
        loop_(config, {*opened_.socket, dispatcher_, strands_, opened_.outbox, counters_}) {}

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() = default;

  void start() {
    const MutexLock lock(life_);
    LARDER_CHECK(!is_started_);
    is_started_ = true;
    strands_.start();
    wire_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "larder-wire");
      loop_.run();
    });
  }

  void stop(std::chrono::milliseconds drain) {
    const MutexLock lock(life_);
    if (is_stopped_) {
      return;
    }
    is_stopped_ = true;
    if (wire_.joinable()) {
      opened_.outbox->wind_down(Phase::kDrain);
      const std::size_t dropped = strands_.stop(drain);
      counters_.requests_cut_off.add(dropped);
      if (dropped > 0) {
        log::warning("{} requests were still waiting at the end and got no answer", dropped);
      }
      opened_.outbox->wind_down(Phase::kLeave);
      wire_.join();
    }
    opened_.socket.reset();
  }

  std::uint16_t port() const { return opened_.port; }

  ServerCounts counts() const { return {loop_.connection_count(), strands_.size()}; }

  bool probe(std::chrono::milliseconds timeout) { return opened_.outbox->probe(timeout); }

 private:
  // Worker threads.
  After run(Request request) {
    Reply reply = dispatcher_.run(request);
    ReceivedFrames& frames = frames_of(request);
    if (!reply.send) {
      return After::kNext;
    }
    try {
      opened_.outbox->push(frames.make_answer(request.connection, std::move(reply)));
    } catch (const std::bad_alloc&) {
      counters_.replies_no_memory.add();
    }
    return frames.unsent()->is_full() ? After::kHold : After::kNext;
  }

  Dispatcher& dispatcher_;
  TransportCounters counters_;
  Opened opened_;
  Strands strands_;
  RouterLoop loop_;

  Mutex life_;  // start() and stop()
  bool is_started_ LARDER_GUARDED_BY(life_) = false;
  bool is_stopped_ LARDER_GUARDED_BY(life_) = false;
  std::thread wire_;
};

Result<std::unique_ptr<Server>> Server::create(const ServerConfig& config,
                                               Dispatcher& dispatcher,
                                               metrics::Registry& metrics) {
  Result<std::shared_ptr<Outbox>> outbox = Outbox::create();
  if (!outbox) {
    return outbox.error();
  }
  // A connection may have so many requests waiting, and every one may be answered while its peer
  // reads nothing.
  Result<std::unique_ptr<RouterSocket>> socket = RouterSocket::open(
      {config.frame_bytes_max, std::max(config.requests_waiting_max, kRepliesUnsentMin)});
  if (!socket) {
    return socket.error();
  }
  const Result<std::uint16_t> port = (*socket)->bind(config.host, config.port);
  if (!port) {
    return port.error();
  }
  auto impl = std::make_unique<Impl>(
      config, dispatcher, metrics, Impl::Opened{std::move(*socket), *port, std::move(*outbox)});
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() {
  stop();
}

void Server::start() {
  impl_->start();
}

void Server::stop(std::chrono::milliseconds drain) {
  impl_->stop(drain);
}

std::uint16_t Server::port() const {
  return impl_->port();
}

ServerCounts Server::counts() const {
  return impl_->counts();
}

bool Server::probe(std::chrono::milliseconds timeout) {
  return impl_->probe(timeout);
}

}  // namespace larder::transport
