// file_descriptor.h - an open file, closed on destruction. Move-only; no thread safety of its own.
#pragma once

#include <unistd.h>

#include <utility>

namespace larder::pool {

class FileDescriptor {
 public:
  FileDescriptor() = default;

  explicit FileDescriptor(int number) : number_(number) {}

  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  ~FileDescriptor() {
    if (valid()) {
      ::close(number_);
    }
  }

  bool valid() const { return number_ >= 0; }

  int get() const { return number_; }

 private:
  int number_ = -1;
};

}  // namespace larder::pool
