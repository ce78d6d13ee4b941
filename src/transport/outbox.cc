#include "transport/outbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace larder::transport {

Result<std::unique_ptr<Outbox>> Outbox::create() {
  Descriptor descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!descriptor.is_open()) {
    return Error{Code::kSystem, std::string("eventfd: ") + std::strerror(errno)};
  }
  return std::make_unique<Outbox>(std::move(descriptor));
}

void Outbox::wake() {
  if (signalled_) {
    return;
  }
  signalled_ = true;
  const std::uint64_t one = 1;
  while (write(descriptor_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void Outbox::push(Answer answer) {
  const MutexLock lock(mutex_);
  // An answer that is not taken is destroyed after the lock is released, as a parameter outlives
  // the locals.
  if (phase_reached_ != Phase::kLeave) {
    answers_.push_back(std::move(answer));
    wake();
  }
}

bool Outbox::probe(std::chrono::milliseconds timeout) {
  const SteadyClock clock;
  const TimePoint deadline = clock.now() + timeout;
  const MutexLock lock(mutex_);
  const std::uint64_t ticket = ++probe_wanted_;
  wake();
  while (probe_answered_ < ticket && phase_reached_ != Phase::kLeave) {
    const Duration left = deadline - clock.now();
    if (left <= Duration::zero()) {
      return false;
    }
    acknowledged_.wait_for(mutex_, left);
  }
  return probe_answered_ >= ticket;
}

void Outbox::wind_down(Phase phase) {
  const MutexLock lock(mutex_);
  phase_wanted_ = phase;
  wake();
  while (phase_reached_ < phase) {
    acknowledged_.wait(mutex_);
  }
}

Outbox::Batch Outbox::take() {
  Batch batch;
  const MutexLock lock(mutex_);
  if (!signalled_) {
    batch.phase = phase_wanted_;
    return batch;
  }
  signalled_ = false;
  batch.answers.swap(answers_);
  batch.probe = probe_wanted_;
  batch.phase = phase_wanted_;
  batch.is_awaited = probe_wanted_ != probe_answered_ || phase_wanted_ != phase_reached_;
  return batch;
}

void Outbox::acknowledge(const Batch& batch) {
  std::vector<Answer> late;  // destroyed after the lock is released, as above
  const MutexLock lock(mutex_);
  if (batch.phase == Phase::kLeave) {
    late.swap(answers_);
  }
  probe_answered_ = batch.probe;
  phase_reached_ = batch.phase;
  acknowledged_.notify_all();
}

}  // namespace larder::transport
