#include "devices/fault_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>

#include "base/check.h"

namespace larder::devices {
namespace {

// What the handler needs to find; a signal handler is given nothing else.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables)
constinit thread_local GuardedRanges* guarded = nullptr;

struct sigaction before {};

std::once_flag installed;

// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

void on_bus_error(int signal, siginfo_t* facts, void* context) {
  if (facts != nullptr && FaultGuard::mend(facts->si_addr)) {
    return;
  }
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    before.sa_sigaction(signal, facts, context);
    return;
  }
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
    return;
  }
  // Returning runs the instruction again, this time without a handler.
  ::signal(signal, SIG_DFL);
}

void install() {
  struct sigaction ours {};

  ours.sa_sigaction = &on_bus_error;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER;
  ::sigemptyset(&ours.sa_mask);
  LARDER_CHECK(::sigaction(SIGBUS, &ours, &before) == 0);
}

std::uintptr_t number_of(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

GuardedRanges::GuardedRanges(std::vector<MappedRange> ranges) : ranges_(std::move(ranges)) {
  std::call_once(installed, &install);
}

bool GuardedRanges::mend(const std::byte* address) noexcept {
  for (const MappedRange& range : ranges_) {
    if (number_of(address) - number_of(range.base) >= range.bytes) {
      continue;
    }
    // Before the memory changes, so that nobody who read the new memory misses it.
    broken_.store(true, std::memory_order_release);
    const auto page = static_cast<std::uintptr_t>(::getpagesize());
    const std::size_t offset = (number_of(address) - number_of(range.base)) / page * page;
    std::byte* const from = range.base + offset;
    return ::mmap(from,
                  range.bytes - offset,
                  PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
                  -1,
                  0) == from;
  }
  return false;
}

FaultGuard::FaultGuard(GuardedRanges& ranges) noexcept {
  LARDER_CHECK(guarded == nullptr);
  guarded = &ranges;
}

FaultGuard::~FaultGuard() {
  guarded = nullptr;
}

bool FaultGuard::mend(const void* address) noexcept {
  return guarded != nullptr && guarded->mend(static_cast<const std::byte*>(address));
}

}  // namespace larder::devices
