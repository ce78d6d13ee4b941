// test_support.h - for the tests of this room: a directory of their own on tmpfs, and child
// processes.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "pool/file_descriptor.h"

namespace larder::pool {

// A new directory under /dev/shm, removed with all its files.
class TestDirectory {
 public:
  TestDirectory() {
    std::string pattern = "/dev/shm/larder_test_XXXXXX";
    const char* made = ::mkdtemp(pattern.data());
    EXPECT_NE(made, nullptr);
    path_ = pattern;
  }

  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }

  std::string file(const std::string& name) const { return path_ + "/" + name; }

  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      found.push_back(entry.path().filename().string());
    }
    std::ranges::sort(found);
    return found;
  }

  void write(const std::string& name, const std::string& content = "x") const {
    std::ofstream(file(name)) << content;
  }

 private:
  std::string path_;
};

// A forked child. The body runs there; its answer is the exit status.
class Child {
 public:
  explicit Child(const std::function<int()>& body) : pid_(::fork()) {
    if (pid_ == 0) {
      ::_exit(body());
    }
  }

  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}

  Child& operator=(Child&&) = delete;
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  ~Child() {
    if (pid_ > 0) {
      kill_hard();
    }
  }

  void kill_hard() {
    ::kill(pid_, SIGKILL);
    wait();
  }

  // The exit status, -1 when a signal ended it.
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

// A child tells its parent that it got somewhere.
class Signpost {
 public:
  Signpost() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    read_end_ = FileDescriptor(ends[0]);
    write_end_ = FileDescriptor(ends[1]);
  }

  void reached() const { EXPECT_EQ(::write(write_end_.get(), "1", 1), 1); }

  // REQUIRES: called once, in the parent, after the fork. False when the child ended before.
  bool wait() {
    { const FileDescriptor closed = std::move(write_end_); }
    char byte = 0;
    return ::read(read_end_.get(), &byte, 1) == 1;
  }

 private:
  FileDescriptor read_end_;
  FileDescriptor write_end_;
};

// The rest of a child that is to be killed.
[[noreturn]] inline void wait_for_the_end() {
  while (true) {
    ::pause();
  }
}

}  // namespace larder::pool
