// Goal: torch's counters are taken down by one, and no other file is ever written.
// Method: files in /dev/shm with and without torch's kind of name.
#include "devices/storage_counter.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>

namespace larder::devices {
namespace {

class CounterFile {
 public:
  explicit CounterFile(const std::string& prefix)
      : name(prefix + std::to_string(::getpid()) + "_1_2"),
        fd_(::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600)) {
    EXPECT_GE(fd_, 0);
    write({2, 1, 0});
  }

  CounterFile(const CounterFile&) = delete;
  CounterFile& operator=(const CounterFile&) = delete;

  ~CounterFile() {
    ::close(fd_);
    ::shm_unlink(name.c_str());
  }

  std::array<std::int64_t, 3> read() const {
    std::array<std::int64_t, 3> counts{};
    EXPECT_EQ(::pread(fd_, counts.data(), sizeof(counts), 0), ssize_t{sizeof(counts)});
    return counts;
  }

  static constexpr std::size_t kBytes = 3 * sizeof(std::int64_t);

  void cut(std::size_t bytes) const { EXPECT_EQ(::ftruncate(fd_, static_cast<off_t>(bytes)), 0); }

  const std::string name;

 private:
  void write(const std::array<std::int64_t, 3>& counts) const {
    EXPECT_EQ(::pwrite(fd_, counts.data(), sizeof(counts), 0), ssize_t{sizeof(counts)});
  }

  int fd_;
};

using Counts = std::array<std::int64_t, 3>;

TEST(StorageCounter, TakesOneOffTheCounterOfAnIndex) {
  const CounterFile file("/torch_");
  EXPECT_TRUE(release_storage({.file_name = file.name, .index = 0}));
  EXPECT_TRUE(release_storage({.file_name = file.name, .index = 1}));
  EXPECT_EQ(file.read(), (Counts{1, 0, 0}));
}

TEST(StorageCounter, NeverGoesBelowZero) {
  const CounterFile file("/torch_");
  EXPECT_FALSE(release_storage({.file_name = file.name, .index = 2}));
  EXPECT_EQ(file.read(), (Counts{2, 1, 0}));
}

TEST(StorageCounter, DoesNotReachBeyondTheFile) {
  const CounterFile file("/torch_");
  EXPECT_FALSE(release_storage({.file_name = file.name, .index = 3}));
  EXPECT_FALSE(release_storage({.file_name = file.name, .index = ~std::uint64_t{0}}));
  EXPECT_FALSE(release_storage({.file_name = file.name, .index = (~std::uint64_t{0}) / 8}));
  EXPECT_EQ(file.read(), (Counts{2, 1, 0}));
}

// Its owner is another process, which may do what it likes.
TEST(StorageCounter, AFileThatIsCutShortMeanwhileIsLetGo) {
  const CounterFile file("/torch_");
  file.cut(0);
  file.cut(CounterFile::kBytes);
  std::atomic<bool> stop = false;
  std::thread cuts([&] {
    while (!stop) {
      file.cut(0);
      file.cut(CounterFile::kBytes);
    }
  });
  constexpr int kTries = 20000;
  for (int i = 0; i < kTries; ++i) {
    EXPECT_FALSE(release_storage({.file_name = file.name, .index = 1})) << "it holds zeros";
  }
  stop = true;
  cuts.join();
}

TEST(StorageCounter, LeavesFilesOfOthersAlone) {
  const CounterFile file("/larder_counter_test_");
  EXPECT_FALSE(release_storage({.file_name = file.name, .index = 0}));
  EXPECT_FALSE(release_storage({.file_name = "/torch_/.." + file.name, .index = 0}));
  EXPECT_EQ(file.read(), (Counts{2, 1, 0}));
  EXPECT_FALSE(release_storage({.file_name = "/torch_that_is_not_there", .index = 0}));
  EXPECT_FALSE(release_storage({.file_name = "", .index = 0}));
}

}  // namespace
}  // namespace larder::devices
