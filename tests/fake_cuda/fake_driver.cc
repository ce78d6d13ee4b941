// Contexts, streams, events, and the controls of tests. The functions have the driver's names.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "fake_cuda.h"
#include "fake_state.h"

namespace fake_cuda {

namespace {

constexpr std::chrono::microseconds kEventPoll{50};
constexpr int kVersion = 13000;

// The context that each thread works in, as the driver keeps it.
Context*& current_context() {
  thread_local Context* current = nullptr;
  return current;
}

// An event completes in the order of its records, whatever streams they are on.
void complete(Counters& counters, std::uint64_t number) {
  std::uint64_t seen = counters.completed.load();
  while (seen < number && !counters.completed.compare_exchange_weak(seen, number)) {
  }
}

void wait_until_complete(Counters& counters, std::uint64_t number) {
  while (counters.completed.load() < number && !state().broken) {
    std::this_thread::sleep_for(kEventPoll);
  }
}

}  // namespace

CuResult enter(const char* function, Needs needs) {
  State& fake = state();
  const std::lock_guard lock(fake.mutex);
  const std::uint64_t call = ++fake.calls[function];
  const auto [begin, end] = fake.failures.equal_range(function);
  for (auto failure = begin; failure != end; ++failure) {
    if (failure->second.at_call == call) {
      return failure->second.result;
    }
  }
  if (needs == Needs::kContext && !fake.initialised) {
    return kNotInitialised;
  }
  if (needs == Needs::kContext && current_context() == nullptr) {
    return kInvalidContext;
  }
  return fake.broken && needs == Needs::kContext ? kIllegalAddress : kSuccess;
}

int current_device() {
  return current_context()->device;
}

Stream* find_stream(const void* stream) {
  const std::lock_guard lock(state().mutex);
  const auto found = state().streams.find(stream);
  return found != state().streams.end() ? found->second.get() : nullptr;
}

std::shared_ptr<Event> find_event(const void* event) {
  const std::lock_guard lock(state().mutex);
  const auto found = state().events.find(event);
  return found != state().events.end() ? found->second : nullptr;
}

}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT(google-build-using-namespace): the driver's names are global

// NOLINTBEGIN(readability-identifier-naming): the driver's names
extern "C" {

CuResult cuInit(unsigned /*flags*/) {
  const CuResult entered = enter("cuInit", Needs::kNothing);
  if (entered == kSuccess) {
    const std::lock_guard lock(state().mutex);
    state().initialised = true;
  }
  return entered;
}

CuResult cuDriverGetVersion(int* version) {
  *version = kVersion;
  return enter("cuDriverGetVersion", Needs::kNothing);
}

CuResult cuGetErrorName(CuResult result, const char** name) {
  static const std::map<CuResult, const char*> names{
      {kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
      {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {100, "CUDA_ERROR_NO_DEVICE"},
      {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
      {kMapFailed, "CUDA_ERROR_MAP_FAILED"},
      {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS"}};
  const auto known = names.find(result);
  if (known == names.end()) {
    return kInvalidValue;
  }
  *name = known->second;
  return kSuccess;
}

CuResult cuDeviceGetCount(int* count) {
  *count = state().devices;
  return enter("cuDeviceGetCount", Needs::kNothing);
}

CuResult cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  const CuResult entered = enter("cuDeviceGet", Needs::kNothing);
  return entered == kSuccess && ordinal >= state().devices ? kInvalidDevice : entered;
}

// facef00d-0000-0000-0000-0000000000NN
CuResult cuDeviceGetUuid_v2(larder::devices::CuUuid* uuid, int device) {
  *uuid = {std::byte{0xfa}, std::byte{0xce}, std::byte{0xf0}, std::byte{0x0d}};
  uuid->back() = static_cast<std::byte>(device);
  return enter("cuDeviceGetUuid_v2", Needs::kNothing);
}

CuResult cuDevicePrimaryCtxRetain(larder::devices::CuContext* context, int device) {
  const CuResult entered = enter("cuDevicePrimaryCtxRetain", Needs::kNothing);
  if (entered != kSuccess) {
    return entered;
  }
  const std::lock_guard lock(state().mutex);
  Context& retained = state().contexts[device];
  retained.device = device;
  retained.retained += 1;
  *context = reinterpret_cast<larder::devices::CuContext>(&retained);
  return kSuccess;
}

CuResult cuDevicePrimaryCtxRelease_v2(int device) {
  const CuResult entered = enter("cuDevicePrimaryCtxRelease_v2", Needs::kNothing);
  const std::lock_guard lock(state().mutex);
  state().contexts[device].retained -= 1;
  return entered;
}

CuResult cuCtxSetCurrent(larder::devices::CuContext context) {
  const CuResult entered = enter("cuCtxSetCurrent", Needs::kNothing);
  if (entered == kSuccess) {
    current_context() = reinterpret_cast<Context*>(context);
  }
  return entered;
}

CuResult cuStreamCreate(larder::devices::CuStream* stream, unsigned /*flags*/) {
  const CuResult entered = enter("cuStreamCreate", Needs::kContext);
  if (entered != kSuccess) {
    return entered;
  }
  auto created = std::make_unique<Stream>(current_device());
  *stream = reinterpret_cast<larder::devices::CuStream>(created.get());
  const std::lock_guard lock(state().mutex);
  state().streams.emplace(created.get(), std::move(created));
  return kSuccess;
}

CuResult cuStreamDestroy_v2(larder::devices::CuStream stream) {
  enter("cuStreamDestroy_v2", Needs::kNothing);
  std::unique_ptr<Stream> destroyed;
  const std::lock_guard lock(state().mutex);
  const auto found = state().streams.find(stream);
  if (found == state().streams.end()) {
    state().violations += 1;
    return kInvalidHandle;
  }
  destroyed = std::move(found->second);
  state().streams.erase(found);
  return kSuccess;
}

CuResult cuStreamSynchronize(larder::devices::CuStream stream) {
  const CuResult entered = enter("cuStreamSynchronize", Needs::kContext);
  Stream* found = find_stream(stream);
  if (found == nullptr) {
    return kInvalidHandle;
  }
  if (entered != kSuccess) {
    return entered;
  }
  found->synchronize();
  return state().broken ? kIllegalAddress : kSuccess;
}

CuResult cuStreamWaitEvent(larder::devices::CuStream stream,
                           larder::devices::CuEvent event,
                           unsigned /*flags*/) {
  const CuResult entered = enter("cuStreamWaitEvent", Needs::kContext);
  if (entered != kSuccess) {
    return entered;
  }
  Stream* waiting = find_stream(stream);
  auto waited = find_event(event);
  if (waiting == nullptr || waited == nullptr) {
    return kInvalidHandle;
  }
  const std::uint64_t number = waited->counters().recorded.load();
  if (number == 0) {
    state().violations += 1;
  }
  waiting->push(
      [waited = std::move(waited), number] { wait_until_complete(waited->counters(), number); });
  return kSuccess;
}

CuResult cuLaunchHostFunc(larder::devices::CuStream stream,
                          larder::devices::CuHostFunction function,
                          void* argument) {
  const CuResult entered = enter("cuLaunchHostFunc", Needs::kContext);
  if (entered != kSuccess) {
    return entered;
  }
  Stream* found = find_stream(stream);
  if (found == nullptr) {
    return kInvalidHandle;
  }
  found->push([function, argument] { function(argument); });
  return kSuccess;
}

CuResult cuEventCreate(larder::devices::CuEvent* event, unsigned flags) {
  const CuResult entered = enter("cuEventCreate", Needs::kContext);
  if (entered != kSuccess) {
    return entered;
  }
  auto created = std::make_shared<Event>();
  created->device = current_device();
  created->interprocess = (flags & larder::devices::kCuEventInterprocess) != 0;
  if (created->interprocess && (flags & larder::devices::kCuEventDisableTiming) == 0) {
    return kInvalidValue;
  }
  const std::lock_guard lock(state().mutex);
  if (created->interprocess) {
    created->number = state().next_number++;
    created->file = SharedFile::create(
        file_name(static_cast<std::uint32_t>(::getpid()), state().nonce, created->number),
        sizeof(Counters));
    if (created->file == nullptr) {
      return kOutOfMemory;
    }
  }
  *event = reinterpret_cast<larder::devices::CuEvent>(created.get());
  state().events.emplace(created.get(), std::move(created));
  return kSuccess;
}

CuResult cuEventDestroy_v2(larder::devices::CuEvent event) {
  enter("cuEventDestroy_v2", Needs::kNothing);
  const std::lock_guard lock(state().mutex);
  if (state().events.erase(event) == 0) {
    state().violations += 1;
    return kInvalidHandle;
  }
  return kSuccess;
}

CuResult cuEventRecord(larder::devices::CuEvent event, larder::devices::CuStream stream) {
  const CuResult entered = enter("cuEventRecord", Needs::kContext);
  if (entered != kSuccess) {
    return entered;
  }
  auto recorded = find_event(event);
  Stream* on = find_stream(stream);
  if (recorded == nullptr || on == nullptr || recorded->device != on->device()) {
    return kInvalidHandle;
  }
  const std::uint64_t number = recorded->counters().recorded.fetch_add(1) + 1;
  on->push([recorded = std::move(recorded), number] { complete(recorded->counters(), number); });
  return kSuccess;
}

CuResult cuEventQuery(larder::devices::CuEvent event) {
  const CuResult entered = enter("cuEventQuery", Needs::kContext);
  if (entered != kSuccess) {
    return entered;
  }
  const auto queried = find_event(event);
  if (queried == nullptr) {
    return kInvalidHandle;
  }
  const Counters& counters = queried->counters();
  return counters.completed.load() >= counters.recorded.load() ? kSuccess : kNotReady;
}

CuResult cuIpcGetEventHandle(IpcHandle* handle, larder::devices::CuEvent event) {
  const CuResult entered = enter("cuIpcGetEventHandle", Needs::kContext);
  if (entered != kSuccess) {
    return entered;
  }
  const auto exported = find_event(event);
  if (exported == nullptr || !exported->interprocess) {
    return kInvalidHandle;
  }
  *handle = make_handle(exported->number);
  return kSuccess;
}

CuResult cuIpcOpenEventHandle(larder::devices::CuEvent* event, IpcHandle handle) {
  const CuResult entered = enter("cuIpcOpenEventHandle", Needs::kContext);
  if (entered != kSuccess) {
    return entered;
  }
  const HandleOrigin origin = origin_of(handle);
  if (origin.is_own) {
    return kInvalidContext;
  }
  auto opened = std::make_shared<Event>();
  opened->device = current_device();
  opened->file = SharedFile::open(origin.file);
  if (opened->file == nullptr) {
    return kMapFailed;
  }
  *event = reinterpret_cast<larder::devices::CuEvent>(opened.get());
  const std::lock_guard lock(state().mutex);
  state().events.emplace(opened.get(), std::move(opened));
  return kSuccess;
}

void fake_cuda_counts(FakeCudaCounts* counts) {
  State& fake = state();
  const std::lock_guard lock(fake.mutex);
  *counts = {};
  for (const auto& [device, context] : fake.contexts) {
    counts->contexts += static_cast<std::uint64_t>(std::max(context.retained, 0));
  }
  counts->streams = fake.streams.size();
  counts->events = fake.events.size();
  counts->blocks = fake.blocks.size();
  counts->allocations = fake.allocations.size();
  counts->registrations = fake.registrations.size();
  counts->modules = fake.modules;
  counts->violations = fake.violations;
}

std::uint64_t fake_cuda_calls(const char* function) {
  const std::lock_guard lock(state().mutex);
  return state().calls[function];
}

void fake_cuda_fail(const char* function, std::uint64_t skipped, int result) {
  const std::lock_guard lock(state().mutex);
  state().failures.emplace(
      function, Failure{.at_call = state().calls[function] + skipped + 1, .result = result});
}

void fake_cuda_hold(int held) {
  state().held = held != 0;
}

void fake_cuda_break(int broken) {
  state().broken = broken != 0;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
