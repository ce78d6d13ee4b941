// Goal: what is reserved can be touched by anybody, and the file is there exactly as long as the
// segment. Method: real files on tmpfs; where mounting is allowed, a tmpfs that is too small, in a
// child's own mount namespace.
#include "pool/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "pool/segment_name.h"
#include "pool/test_support.h"

namespace larder::pool {
namespace {

constexpr std::size_t kMebibyte = std::size_t{1} << 20;

std::size_t backed_bytes(const std::string& path) {
  struct stat status {};

  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return static_cast<std::size_t>(status.st_blocks) * 512;
}

TEST(Segment, IsAFileOfExactlyTheAskedSizeThatOthersCanMap) {
  const TestDirectory directory;
  const auto segment =
      Segment::create_shared(directory.path(), "lmcache_l1_pool_kv", kMebibyte + 5);
  ASSERT_TRUE(segment.has_value()) << segment.error().detail;
  EXPECT_EQ(segment->name(), "lmcache_l1_pool_kv");
  EXPECT_EQ(std::filesystem::file_size(directory.file(segment->name())), kMebibyte + 5);
  ASSERT_TRUE(segment->reserve(0, 4096).has_value());
  segment->base()[7] = std::byte{42};
  const FileDescriptor other(::open(directory.file(segment->name()).c_str(), O_RDONLY | O_CLOEXEC));
  std::byte seen{};
  ASSERT_EQ(::pread(other.get(), &seen, 1, 7), 1);
  EXPECT_EQ(seen, std::byte{42});
}

TEST(Segment, IsSparseUntilARangeIsReserved) {
  const TestDirectory directory;
  const auto segment = Segment::create_shared(directory.path(), std::nullopt, 4 * kMebibyte);
  ASSERT_TRUE(segment.has_value());
  const std::string path = directory.file(segment->name());
  EXPECT_EQ(backed_bytes(path), 0U);
  ASSERT_TRUE(segment->reserve(0, kMebibyte).has_value());
  EXPECT_EQ(backed_bytes(path), kMebibyte);
  segment->populate(0, kMebibyte);
  ASSERT_TRUE(segment->reserve(kMebibyte + 1, 4096).has_value());  // touches two pages
  EXPECT_EQ(backed_bytes(path), kMebibyte + 8192);
}

TEST(Segment, PopulatingKeepsTheBytes) {
  const TestDirectory directory;
  const auto segment = Segment::create_shared(directory.path(), std::nullopt, kMebibyte);
  ASSERT_TRUE(segment.has_value());
  ASSERT_TRUE(segment->reserve(0, kMebibyte).has_value());
  std::fill_n(segment->base(), kMebibyte, std::byte{7});
  segment->populate(5000, 20000);
  EXPECT_EQ(std::count(segment->base(), segment->base() + kMebibyte, std::byte{7}),
            static_cast<std::ptrdiff_t>(kMebibyte));
}

TEST(Segment, GoesWithItsOwner) {
  const TestDirectory directory;
  {
    const auto segment = Segment::create_shared(directory.path(), std::nullopt, kMebibyte);
    ASSERT_TRUE(segment.has_value());
    EXPECT_TRUE(segment->name_intact());
    EXPECT_EQ(directory.names(), std::vector<std::string>{segment->name()});
  }
  EXPECT_TRUE(directory.names().empty());
}

TEST(Segment, NoticesThatItsNameWasTakenAndLeavesTheNewOwnerAlone) {
  const TestDirectory directory;
  {
    const auto segment = Segment::create_shared(directory.path(), "lmcache_l1_pool_kv", kMebibyte);
    ASSERT_TRUE(segment.has_value());
    ASSERT_EQ(::unlink(directory.file("lmcache_l1_pool_kv").c_str()), 0);
    EXPECT_FALSE(segment->name_intact());
    directory.write("lmcache_l1_pool_kv", "another server's");
    EXPECT_FALSE(segment->name_intact());
  }
  EXPECT_EQ(directory.names(), std::vector<std::string>{"lmcache_l1_pool_kv"});
}

TEST(Segment, SweepsBeforeItLooksForRoom) {
  const TestDirectory directory;
  directory.write("lmcache_l1_pool_larder_1_stale");
  const auto segment = Segment::create_shared(directory.path(), std::nullopt, kMebibyte);
  ASSERT_TRUE(segment.has_value());
  EXPECT_EQ(directory.names(), std::vector<std::string>{segment->name()});
}

TEST(Segment, RefusesWhatTheDirectoryCannotHold) {
  const TestDirectory directory;
  constexpr std::size_t kHuge = std::size_t{1} << 50;
  const auto refused = Segment::create_shared(directory.path(), std::nullopt, kHuge);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kNoSpace);
  for (const std::string& part : {std::to_string(kHuge),
                                  directory.path(),
                                  std::string("--l1-size-gb"),
                                  std::string("--shm-size")}) {
    EXPECT_NE(refused.error().detail.find(part), std::string::npos) << refused.error().detail;
  }
  EXPECT_TRUE(directory.names().empty());
}

TEST(Segment, FileSizeLimitOfTheProcessIsAnError) {
  const TestDirectory directory;
  Child child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{kMebibyte, kMebibyte};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto refused = Segment::create_shared(directory.path(), std::nullopt, 2 * kMebibyte);
    return !refused && refused.error().code == Code::kNoSpace && directory.names().empty() ? 0 : 1;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(Segment, PrivateMemoryHasNoFileAndNoName) {
  const auto segment = Segment::create_private(kMebibyte);
  ASSERT_TRUE(segment.has_value());
  EXPECT_EQ(segment->name(), "");
  EXPECT_TRUE(segment->name_intact());
  EXPECT_TRUE(segment->reserve(0, kMebibyte).has_value());
  std::fill_n(segment->base(), kMebibyte, std::byte{1});
  EXPECT_EQ(Segment::create_private(std::size_t{1} << 60).error().code, Code::kNoSpace);
}

TEST(Segment, MovedFromLeavesFileAndMappingToTheNewOne) {
  const TestDirectory directory;
  auto first = Segment::create_shared(directory.path(), std::nullopt, kMebibyte);
  ASSERT_TRUE(first.has_value());
  {
    const Segment second(std::move(*first));
    EXPECT_TRUE(second.name_intact());
    ASSERT_TRUE(second.reserve(0, 1).has_value());
    second.base()[0] = std::byte{1};
  }
  EXPECT_TRUE(directory.names().empty());
}

TEST(ReserveByWriting, BacksExactlyTheRangeWithZeroes) {
  const TestDirectory directory;
  directory.write("file", std::string(100000, 'x'));
  const FileDescriptor file(::open(directory.file("file").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(reserve_by_writing(file, 1000, 98000).has_value());
  std::string content(100000, '?');
  ASSERT_EQ(::pread(file.get(), content.data(), content.size(), 0), 100000);
  EXPECT_EQ(content, std::string(1000, 'x') + std::string(98000, '\0') + std::string(1000, 'x'));
}

TEST(ReserveByWriting, ReportsThatThereIsNoMore) {
  const TestDirectory directory;
  directory.write("file");
  Child child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{kMebibyte, kMebibyte};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const FileDescriptor file(::open(directory.file("file").c_str(), O_RDWR | O_CLOEXEC));
    const auto refused = reserve_by_writing(file, 0, 2 * kMebibyte);
    return !refused && refused.error().code == Code::kNoSpace ? 0 : 1;
  });
  EXPECT_EQ(child.wait(), 0);
}

// Somebody else fills the directory after the start: reserving says so, and nothing that was
// reserved is lost.
int reserve_in_a_full_directory(const std::string& directory) {
  constexpr int kMountRefused = 77;
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("tmpfs", directory.c_str(), "tmpfs", 0, "size=4m") != 0) {
    return kMountRefused;
  }
  const auto segment = Segment::create_shared(directory, std::nullopt, 3 * kMebibyte);
  if (!segment || !segment->reserve(0, kMebibyte)) {
    return 1;
  }
  const FileDescriptor hog(
      ::open((directory + "/hog").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!reserve_by_writing(hog, 0, 2 * kMebibyte)) {
    return 2;
  }
  const auto refused = segment->reserve(kMebibyte, 2 * kMebibyte);
  if (refused || refused.error().code != Code::kNoSpace) {
    return 3;
  }
  std::fill_n(segment->base(), kMebibyte, std::byte{1});
  return Segment::create_shared(directory, std::nullopt, 2 * kMebibyte).has_value() ? 4 : 0;
}

TEST(Segment, SaysSoWhenTheDirectoryFillsUpLater) {
  const TestDirectory directory;
  Child child([&] { return reserve_in_a_full_directory(directory.path()); });
  const int status = child.wait();
  if (status == 77) {
    GTEST_SKIP() << "mounting is not permitted here";
  }
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace larder::pool
