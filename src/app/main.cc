#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "app/server.h"
#include "base/log.h"
#include "config/config.h"

namespace {

// Blocked in every thread, so that only serve_until_stopped() receives them.
sigset_t handled_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  sigaddset(&signals, SIGUSR1);
  return signals;
}

// SIGUSR1 asks who holds what; the others stop.
void serve_until_stopped(const larder::app::Server& server, const sigset_t& signals) {
  int received = 0;
  while (sigwait(&signals, &received) != 0 || received == SIGUSR1) {
    if (received == SIGUSR1) {
      server.log_ledger();
    }
  }
  larder::log::info("Shutting down on {}",
                    received == SIGTERM  ? "SIGTERM"
                    : received == SIGINT ? "SIGINT"
                                         : "SIGHUP");
}

int serve(const larder::config::Config& config) {
  const sigset_t signals = handled_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  larder::app::StartFailure failure{};
  {
    const auto server = larder::app::Server::start(config, failure);
    if (server == nullptr) {
      larder::log::error("{}", failure.message);
      return failure.exit_code;
    }
    serve_until_stopped(*server, signals);
  }
  larder::log::info("stopped");
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const larder::config::Outcome outcome = larder::config::parse_command_line(
      arguments, larder::config::Machine::read(), [](const char* name) -> const char* {
        return std::getenv(name);
      });
  if (outcome.action == larder::config::Outcome::Action::kExit) {
    std::fputs(outcome.text.c_str(), outcome.exit_code == 0 ? stdout : stderr);
    return outcome.exit_code;
  }
  larder::log::set_level(outcome.config.log_level);
  for (const std::string& notice : outcome.notices) {
    larder::log::info("{}", notice);
  }
  return serve(outcome.config);
}
