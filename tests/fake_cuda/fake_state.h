// fake_state.h - what the fake driver keeps; see fake_cuda.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "devices/cuda_driver.h"

namespace fake_cuda {

using larder::devices::CuAddress;
using larder::devices::CuResult;
using larder::devices::IpcHandle;

inline constexpr CuResult kSuccess = 0;
inline constexpr CuResult kInvalidValue = 1;
inline constexpr CuResult kOutOfMemory = 2;
inline constexpr CuResult kNotInitialised = 3;
inline constexpr CuResult kInvalidDevice = 101;
inline constexpr CuResult kInvalidContext = 201;
inline constexpr CuResult kMapFailed = 205;
inline constexpr CuResult kAlreadyMapped = 208;
inline constexpr CuResult kInvalidHandle = 400;
inline constexpr CuResult kNotFound = 500;
inline constexpr CuResult kNotReady = 600;
inline constexpr CuResult kIllegalAddress = 700;
inline constexpr CuResult kAlreadyRegistered = 712;
inline constexpr CuResult kNotRegistered = 713;

// Devices see registered host memory at other addresses than the host: what a test must notice.
inline constexpr std::uint64_t kDeviceShift = std::uint64_t{1} << 50;

// A file in /dev/shm that is mapped here; the creator removes it.
class SharedFile {
 public:
  static std::unique_ptr<SharedFile> create(const std::string& name, std::size_t bytes);
  static std::unique_ptr<SharedFile> open(const std::string& name);  // null: it is not there
  SharedFile(std::string name, void* base, std::size_t bytes, bool created);
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;
  ~SharedFile();

  CuAddress address() const;

  std::size_t bytes() const { return bytes_; }

  void* base() const { return base_; }

 private:
  std::string name_;
  void* base_;
  std::size_t bytes_;
  bool created_;
};

struct Counters {
  std::atomic<std::uint64_t> recorded{0};
  std::atomic<std::uint64_t> completed{0};
};

// Kept by the application's handle and by what is on streams.
struct Event {
  int device = 0;
  bool interprocess = false;
  std::uint64_t number = 0;  // of its file
  std::unique_ptr<SharedFile> file;
  Counters local;

  Counters& counters();
};

class Stream {
 public:
  explicit Stream(int device);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();  // runs to the end

  void push(std::function<void()> operation);
  void synchronize();

  int device() const { return device_; }

 private:
  void run();

  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> operations_;
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

struct Failure {
  std::uint64_t at_call = 0;
  CuResult result = kSuccess;
};

struct Context {
  int device = 0;
  int retained = 0;
};

struct State {
  State();

  const std::uint64_t nonce;
  int devices = 0;
  std::uint64_t copy_us = 0;

  std::mutex mutex;  // guards what follows
  bool initialised = false;
  std::map<std::string, std::uint64_t> calls;
  std::multimap<std::string, Failure> failures;
  std::map<int, Context> contexts;
  std::map<const void*, std::unique_ptr<Stream>> streams;
  std::map<const void*, std::shared_ptr<Event>> events;
  std::map<CuAddress, std::unique_ptr<SharedFile>> allocations;
  std::map<CuAddress, std::unique_ptr<SharedFile>> blocks;
  std::map<CuAddress, IpcHandle> block_handles;
  std::map<CuAddress, std::uint64_t> allocation_numbers;
  std::map<CuAddress, std::size_t> registrations;
  std::uint64_t modules = 0;
  std::uint64_t next_number = 1;

  std::atomic<std::uint64_t> violations{0};
  std::atomic<bool> held{false};
  std::atomic<bool> broken{false};
};

State& state();

// Counts a call; an error when one was asked for, or when a context is needed and none is current.
enum class Needs { kNothing, kContext };
CuResult enter(const char* function, Needs needs);

int current_device();  // REQUIRES: a context is current

// A file's name from what a handle says, and the handle.
std::string file_name(std::uint32_t pid, std::uint64_t nonce, std::uint64_t number);
IpcHandle make_handle(std::uint64_t number);

struct HandleOrigin {
  std::string file;
  bool is_own = false;
};

HandleOrigin origin_of(const IpcHandle& handle);

Stream* find_stream(const void* stream);
std::shared_ptr<Event> find_event(const void* event);

}  // namespace fake_cuda
