#include "fake_state.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>
#include <utility>

namespace fake_cuda {

namespace {

constexpr std::chrono::microseconds kGatePoll{200};

struct HandleFields {
  std::uint32_t magic = 0;
  std::uint32_t pid = 0;
  std::uint64_t nonce = 0;
  std::uint64_t number = 0;
};

constexpr std::uint32_t kMagic = 0x4643754b;

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

void read_failures(std::multimap<std::string, Failure>& failures) {
  const char* text = std::getenv("FAKE_CUDA_FAIL");
  std::istringstream entries(text != nullptr ? text : "");
  std::string entry;
  while (std::getline(entries, entry, ',')) {
    std::istringstream fields(entry);
    std::string function;
    std::string skipped;
    std::string result;
    std::getline(fields, function, ':');
    std::getline(fields, skipped, ':');
    std::getline(fields, result, ':');
    failures.emplace(function,
                     Failure{.at_call = std::strtoull(skipped.c_str(), nullptr, 10) + 1,
                             .result = std::atoi(result.c_str())});
  }
}

void* map_file(int fd, std::size_t bytes) {
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  return base == MAP_FAILED ? nullptr : base;
}

}  // namespace

State& state() {
  static State instance;
  return instance;
}

State::State()
    : nonce((std::uint64_t{std::random_device{}()} << 32) | std::random_device{}()),
      devices(static_cast<int>(number_from("FAKE_CUDA_DEVICES", 2))),
      copy_us(number_from("FAKE_CUDA_COPY_US", 0)) {
  read_failures(failures);
}

std::unique_ptr<SharedFile> SharedFile::create(const std::string& name, std::size_t bytes) {
  const int fd = ::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    return nullptr;
  }
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    ::close(fd);
    ::shm_unlink(name.c_str());
    return nullptr;
  }
  return std::make_unique<SharedFile>(name, map_file(fd, bytes), bytes, true);
}

std::unique_ptr<SharedFile> SharedFile::open(const std::string& name) {
  const int fd = ::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) {
    return nullptr;
  }

  struct stat status {};

  ::fstat(fd, &status);
  const auto bytes = static_cast<std::size_t>(status.st_size);
  return std::make_unique<SharedFile>(name, map_file(fd, bytes), bytes, false);
}

SharedFile::SharedFile(std::string name, void* base, std::size_t bytes, bool created)
    : name_(std::move(name)), base_(base), bytes_(bytes), created_(created) {}

SharedFile::~SharedFile() {
  ::munmap(base_, bytes_);
  if (created_) {
    ::shm_unlink(name_.c_str());
  }
}

CuAddress SharedFile::address() const {
  return std::bit_cast<CuAddress>(base_);
}

Counters& Event::counters() {
  // A fresh file is zeroes, which is what counters start with.
  return file != nullptr ? *static_cast<Counters*>(file->base()) : local;
}

Stream::Stream(int device) : device_(device), thread_([this] { run(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Stream::push(std::function<void()> operation) {
  const std::lock_guard lock(mutex_);
  operations_.push_back(std::move(operation));
  changed_.notify_all();
}

void Stream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return operations_.empty() && !busy_; });
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !operations_.empty() || stopping_; });
    if (operations_.empty()) {
      return;
    }
    while (state().held && !state().broken) {
      changed_.wait_for(lock, kGatePoll);
    }
    const auto operation = std::move(operations_.front());
    operations_.pop_front();
    busy_ = true;
    lock.unlock();
    if (!state().broken) {
      operation();
    }
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

std::string file_name(std::uint32_t pid, std::uint64_t nonce, std::uint64_t number) {
  std::ostringstream name;
  name << "/fake_cuda_" << pid << '_' << std::hex << nonce << '_' << number;
  return name.str();
}

IpcHandle make_handle(std::uint64_t number) {
  const HandleFields fields{.magic = kMagic,
                            .pid = static_cast<std::uint32_t>(::getpid()),
                            .nonce = state().nonce,
                            .number = number};
  IpcHandle handle{};
  std::memcpy(handle.data(), &fields, sizeof(fields));
  return handle;
}

HandleOrigin origin_of(const IpcHandle& handle) {
  HandleFields fields;
  std::memcpy(&fields, handle.data(), sizeof(fields));
  if (fields.magic != kMagic) {
    return {};
  }
  return {.file = file_name(fields.pid, fields.nonce, fields.number),
          .is_own = fields.nonce == state().nonce};
}

}  // namespace fake_cuda
