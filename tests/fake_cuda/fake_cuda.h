// fake_cuda.h - a CUDA driver without a device, for tests: the functions of devices/cuda_driver.h,
// and some by which a test or another process plays the engine.
//
// "Device memory" is shared memory, so a handle opens it in any process and tests look at it
// directly. Streams are threads that run what was put on them in order, later. Stricter than a
// driver: a call without a current context, a block opened twice, a wait for an event that was
// never recorded, a copy outside what is open, a batch of memory that is not registered are refused
// or counted as violations. What one loaded copy of the library exported it does not open itself,
// as with processes; a test that is both sides loads it under two names.
//
// Environment: FAKE_CUDA_DEVICES (2), FAKE_CUDA_COPY_US (0: how long each copy takes),
// FAKE_CUDA_FAIL ("cuMemcpyAsync:2:700": the third call from the start gives error 700).
#pragma once

#include <cstdint>

extern "C" {

struct FakeCudaCounts {
  std::uint64_t contexts;
  std::uint64_t streams;
  std::uint64_t events;
  std::uint64_t blocks;  // of other processes, open here
  std::uint64_t allocations;
  std::uint64_t registrations;
  std::uint64_t modules;
  std::uint64_t violations;
};

void fake_cuda_counts(FakeCudaCounts* counts);

// Calls of a function since the library was loaded.
std::uint64_t fake_cuda_calls(const char* function);

// The call after `skipped` further ones gives `result`, once.
void fake_cuda_fail(const char* function, std::uint64_t skipped, int result);

// While held, no stream begins another operation.
void fake_cuda_hold(int held);

// What an error on the device does: from now on calls give error 700, what is on streams is
// dropped, host functions are not called. 0 mends it.
void fake_cuda_break(int broken);
}
