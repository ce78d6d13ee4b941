// descriptor.h - owns one file descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace larder::transport {

class Descriptor {
 public:
  Descriptor() = default;

  explicit Descriptor(int number) : number_(number) {}

  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}

  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      close();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }

  ~Descriptor() { close(); }

  int get() const { return number_; }

  bool is_open() const { return number_ >= 0; }

  void close() {
    if (is_open()) {
      ::close(std::exchange(number_, -1));
    }
  }

 private:
  int number_ = -1;
};

}  // namespace larder::transport
