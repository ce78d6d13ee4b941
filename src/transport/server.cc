#include "transport/server.h"

#include <pthread.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/mutex.h"
#include "transport/listener.h"
#include "transport/outbox.h"
#include "transport/poller.h"
#include "transport/received_message.h"
#include "transport/reply_encoder.h"
#include "transport/strands.h"
#include "transport/transport_counters.h"
#include "transport/wire_loop.h"

namespace larder::transport {
namespace {

// A connection takes a descriptor, and 1024 is the soft limit of many systems.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) {
    return;
  }
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    log::warning("could not raise the limit of open files: {}", std::strerror(errno));
  }
}

}  // namespace

class Server::Impl {
 public:
  struct Opened {
    Listeners listeners;
    Poller poller;
    std::unique_ptr<Outbox> outbox;
  };

  Impl(const ServerConfig& config,
       Dispatcher& dispatcher,
       metrics::Registry& metrics,
       Opened opened)
      : dispatcher_(dispatcher),
        counters_(metrics),
        opened_(std::move(opened)),
        endpoint_(endpoint_text(config.host, opened_.listeners.port)),
        strands_({config.lookup_workers, config.transfer_workers},
                 [this](Request request) { return run(std::move(request)); }),
        loop_(config,
              {opened_.poller,
               opened_.listeners.sockets,
               dispatcher_,
               strands_,
               *opened_.outbox,
               counters_}) {}

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
    opened_.listeners.sockets.clear();
  }

  std::uint16_t port() const { return opened_.listeners.port; }

  const std::string& endpoint() const { return endpoint_; }

  ServerCounts counts() const {
    return {loop_.connection_count(), strands_.size(), loop_.buffered_bytes()};
  }

  const PeerList& peers() const { return loop_.peers(); }

  bool probe(std::chrono::milliseconds timeout) { return opened_.outbox->probe(timeout); }

 private:
  // Worker threads.
  After run(Request request) {
    Reply reply = dispatcher_.run(request);
    const std::shared_ptr<UnsentBytes> unsent = unsent_of(request);
    Answer answer{request.connection, request.byte_count(), std::nullopt};
    try {
      if (reply.send) {
        answer.message = encode_reply(request, std::move(reply));
      }
    } catch (const std::bad_alloc&) {
      counters_.replies_no_memory.add();
    }
    request = Request();  // its memory is free before the wire thread hears of it
    opened_.outbox->push(std::move(answer));
    return unsent->is_full() ? After::kHold : After::kNext;
  }

  Dispatcher& dispatcher_;
  TransportCounters counters_;
  Opened opened_;
  const std::string endpoint_;
  Strands strands_;
  WireLoop loop_;

  Mutex life_;  // start() and stop()
  bool is_started_ LARDER_GUARDED_BY(life_) = false;
  bool is_stopped_ LARDER_GUARDED_BY(life_) = false;
  std::thread wire_;
};

Result<std::unique_ptr<Server>> Server::create(const ServerConfig& config,
                                               Dispatcher& dispatcher,
                                               metrics::Registry& metrics) {
  raise_descriptor_limit();
  Result<std::unique_ptr<Outbox>> outbox = Outbox::create();
  if (!outbox) {
    return outbox.error();
  }
  Result<Poller> poller = Poller::create();
  if (!poller) {
    return poller.error();
  }
  Result<Listeners> listeners = open_listeners(config.host, config.port);
  if (!listeners) {
    return listeners.error();
  }
  auto impl = std::make_unique<Impl>(
      config,
      dispatcher,
      metrics,
      Impl::Opened{std::move(*listeners), std::move(*poller), std::move(*outbox)});
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

std::string Server::endpoint() const {
  return impl_->endpoint();
}

std::vector<ConnectedPeer> Server::peers(std::size_t count_max) const {
  return impl_->peers().list(count_max);
}

ServerCounts Server::counts() const {
  return impl_->counts();
}

bool Server::probe(std::chrono::milliseconds timeout) {
  return impl_->probe(timeout);
}

}  // namespace larder::transport
