// Goal: no server ever removes the segment of a live one, and what dead ones left goes away.
// Method: real files on tmpfs, child processes that hold locks or mappings and are killed, and
// several processes that create and sweep at once.
#include "pool/segment_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "pool/segment_name.h"
#include "pool/test_support.h"

namespace larder::pool {
namespace {

constexpr std::size_t kFileBytes = 8192;
const std::string kGiven = "lmcache_l1_pool_given";

// What a child does to be a live server.
int hold(const std::string& directory,
         const std::optional<std::string>& name,
         const Signpost& made) {
  const auto locked = create_locked_file(directory, name);
  if (!locked) {
    return 1;
  }
  made.reached();
  wait_for_the_end();
}

// What a child does to be a Python server or an engine: maps the file, holds no lock.
int map_file(const std::string& path, const Signpost& mapped) {
  const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (::ftruncate(file.get(), kFileBytes) != 0 ||
      ::mmap(nullptr, kFileBytes, PROT_READ, MAP_SHARED, file.get(), 0) == MAP_FAILED) {
    return 1;
  }
  mapped.reached();
  wait_for_the_end();
}

TEST(SegmentFile, IsPrivateToItsUserWhateverTheUmask) {
  const TestDirectory directory;
  const mode_t before = ::umask(0777);
  const auto locked = create_locked_file(directory.path(), std::nullopt);
  ::umask(before);
  ASSERT_TRUE(locked.has_value());

  struct stat status {};

  ASSERT_EQ(::fstat(locked->file.get(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0600U);
  EXPECT_TRUE(locked->name.starts_with(kMarkedPrefix));
  EXPECT_EQ(identity_at(locked->path), identity_of(locked->file));
}

TEST(SegmentFile, StaysLockedAgainstOthersWhileItIsOpen) {
  const TestDirectory directory;
  auto locked = create_locked_file(directory.path(), std::nullopt);
  ASSERT_TRUE(locked.has_value());
  const FileDescriptor other(::open(locked->path.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_NE(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
  { const FileDescriptor closed = std::move(locked->file); }
  EXPECT_EQ(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
}

TEST(SegmentFile, MissingDirectoryIsTheSystemsRefusal) {
  const auto locked = create_locked_file("/dev/shm/larder_test_missing", std::nullopt);
  ASSERT_FALSE(locked.has_value());
  EXPECT_EQ(locked.error().code, Code::kSystem);
  EXPECT_EQ(sweep_stale_segments("/dev/shm/larder_test_missing").files, 0U);
}

TEST(Sweep, RemovesWhatAKilledServerLeftAndSparesTheLiving) {
  const TestDirectory directory;
  Signpost dead_made;
  Signpost live_made;
  Child dead([&] { return hold(directory.path(), std::nullopt, dead_made); });
  ASSERT_TRUE(dead_made.wait());
  const std::string dead_name = directory.names().at(0);
  const Child live([&] { return hold(directory.path(), std::nullopt, live_made); });
  ASSERT_TRUE(live_made.wait());
  EXPECT_EQ(sweep_stale_segments(directory.path()).files, 0U);
  EXPECT_EQ(directory.names().size(), 2U);
  dead.kill_hard();
  EXPECT_EQ(sweep_stale_segments(directory.path()).files, 1U);
  ASSERT_EQ(directory.names().size(), 1U);
  EXPECT_NE(directory.names()[0], dead_name);
}

TEST(Sweep, TouchesOnlyMarkedRegularFiles) {
  const TestDirectory directory;
  directory.write("lmcache_l1_pool_1234");   // a Python server's
  directory.write("lmcache_l1_pool_given");  // an operator's name
  directory.write("lmcache_kv_larder");      // an engine's
  directory.write("lmcache_l1_pool_larder_1_stale", std::string(kFileBytes, 'x'));
  std::filesystem::create_directory(directory.file("lmcache_l1_pool_larder_directory"));
  std::filesystem::create_symlink("lmcache_l1_pool_1234",
                                  directory.file("lmcache_l1_pool_larder_link"));
  ASSERT_EQ(::mkfifo(directory.file("lmcache_l1_pool_larder_fifo").c_str(), 0600), 0);
  const Swept swept = sweep_stale_segments(directory.path());
  EXPECT_EQ(swept.files, 1U);
  EXPECT_EQ(swept.bytes, kFileBytes);
  EXPECT_EQ(directory.names(),
            (std::vector<std::string>{"lmcache_kv_larder",
                                      "lmcache_l1_pool_1234",
                                      "lmcache_l1_pool_given",
                                      "lmcache_l1_pool_larder_directory",
                                      "lmcache_l1_pool_larder_fifo",
                                      "lmcache_l1_pool_larder_link"}));
}

TEST(Sweep, SparesAnotherUsersFile) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "only root can make another user's file";
  }
  const TestDirectory directory;
  directory.write("lmcache_l1_pool_larder_1_theirs");
  ASSERT_EQ(::chown(directory.file("lmcache_l1_pool_larder_1_theirs").c_str(), 12345, 12345), 0);
  EXPECT_EQ(sweep_stale_segments(directory.path()).files, 0U);
  EXPECT_EQ(directory.names().size(), 1U);
}

TEST(GivenName, IsRefusedWhileALiveServerHoldsIt) {
  const TestDirectory directory;
  Signpost made;
  const Child live([&] { return hold(directory.path(), kGiven, made); });
  ASSERT_TRUE(made.wait());
  const auto before = identity_at(directory.file(kGiven));
  const auto refused = create_locked_file(directory.path(), kGiven);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kBusy);
  EXPECT_NE(refused.error().detail.find(directory.file(kGiven)), std::string::npos);
  EXPECT_NE(refused.error().detail.find("--shm-name"), std::string::npos);
  EXPECT_EQ(identity_at(directory.file(kGiven)), before);
}

TEST(GivenName, IsTakenOverFromADeadServer) {
  const TestDirectory directory;
  Signpost made;
  Child dead([&] { return hold(directory.path(), kGiven, made); });
  ASSERT_TRUE(made.wait());
  dead.kill_hard();
  const FileDescriptor old(::open(directory.file(kGiven).c_str(), O_RDONLY | O_CLOEXEC));
  const auto locked = create_locked_file(directory.path(), kGiven);
  ASSERT_TRUE(locked.has_value()) << locked.error().detail;
  EXPECT_NE(identity_of(locked->file), identity_of(old));  // a new file, never the old bytes
  EXPECT_EQ(identity_at(directory.file(kGiven)), identity_of(locked->file));
}

TEST(GivenName, IsRefusedWhileAServerWithoutLockMapsIt) {
  const TestDirectory directory;
  Signpost mapped;
  Child python([&] { return map_file(directory.file(kGiven), mapped); });
  ASSERT_TRUE(mapped.wait());
  const auto before = identity_at(directory.file(kGiven));
  ASSERT_TRUE(before.has_value());
  EXPECT_EQ(other_process_mapping(*before), python.pid());
  const auto refused = create_locked_file(directory.path(), kGiven);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kBusy);
  EXPECT_NE(refused.error().detail.find(std::to_string(python.pid())), std::string::npos);
  EXPECT_EQ(identity_at(directory.file(kGiven)), before);
  python.kill_hard();
  EXPECT_EQ(other_process_mapping(*before), std::nullopt);
  EXPECT_TRUE(create_locked_file(directory.path(), kGiven).has_value());
}

// A server that crashed comes back under its name although the engines, which outlive it, still map
// the old segment.
TEST(GivenName, IsTakenOverFromADeadServerOfOursThatEnginesStillMap) {
  const TestDirectory directory;
  directory.write("probe");
  if (::setxattr(directory.file("probe").c_str(), "user.larder", "1", 1, 0) != 0) {
    GTEST_SKIP() << "no extended attributes on this tmpfs (before Linux 6.6)";
  }
  Signpost made;
  Child dead([&] { return hold(directory.path(), kGiven, made); });
  ASSERT_TRUE(made.wait());
  Signpost mapped;
  const Child engine([&] { return map_file(directory.file(kGiven), mapped); });
  ASSERT_TRUE(mapped.wait());
  dead.kill_hard();
  EXPECT_TRUE(create_locked_file(directory.path(), kGiven).has_value());
}

TEST(GivenName, IsRefusedWhenItIsNotARegularFile) {
  const TestDirectory directory;
  directory.write("target");
  std::filesystem::create_symlink(directory.file("target"), directory.file("lmcache_l1_pool_link"));
  std::filesystem::create_directory(directory.file("lmcache_l1_pool_directory"));
  ASSERT_EQ(::mkfifo(directory.file("lmcache_l1_pool_fifo").c_str(), 0600), 0);
  for (const std::string name :
       {"lmcache_l1_pool_link", "lmcache_l1_pool_directory", "lmcache_l1_pool_fifo"}) {
    const auto refused = create_locked_file(directory.path(), name);
    ASSERT_FALSE(refused.has_value()) << name;
    EXPECT_EQ(refused.error().code, Code::kBusy);
  }
  EXPECT_EQ(directory.names().size(), 4U);
}

// Each child starts and stops servers that sweep; half of them "crash" (the lock goes, the file
// stays).
int start_and_stop(const std::string& directory,
                   const std::optional<std::string>& name,
                   int rounds) {
  log::set_level(log::Level::kError);  // hundreds of stale segments are expected here
  for (int round = 0; round < rounds; ++round) {
    sweep_stale_segments(directory);
    const auto locked = create_locked_file(directory, name);
    if (!locked) {
      if (name.has_value() && locked.error().code == Code::kBusy) {
        continue;  // another child has it, or was just trying to
      }
      return 1;
    }
    for (int look = 0; look < 20; ++look) {
      sweep_stale_segments(directory);
      if (identity_at(locked->path) != identity_of(locked->file)) {
        return 2;  // somebody took a live server's name
      }
    }
    if (round % 2 == 0 && ::unlink(locked->path.c_str()) != 0) {
      return 3;
    }
  }
  return 0;
}

TEST(ServersStartingAtOnce, NeverRemoveALiveOnesSegment) {
  const TestDirectory directory;
  std::vector<Child> children;
  for (int i = 0; i < 6; ++i) {
    children.emplace_back([&] { return start_and_stop(directory.path(), std::nullopt, 80); });
  }
  for (Child& child : children) {
    EXPECT_EQ(child.wait(), 0);
  }
  sweep_stale_segments(directory.path());
  EXPECT_TRUE(directory.names().empty());
}

TEST(ServersStartingAtOnce, NeverShareOneGivenName) {
  const TestDirectory directory;
  std::vector<Child> children;
  for (int i = 0; i < 6; ++i) {
    children.emplace_back([&] { return start_and_stop(directory.path(), kGiven, 80); });
  }
  for (Child& child : children) {
    EXPECT_EQ(child.wait(), 0);
  }
  EXPECT_TRUE(create_locked_file(directory.path(), kGiven).has_value());
}

}  // namespace
}  // namespace larder::pool
