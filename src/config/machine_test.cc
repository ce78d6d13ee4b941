// Goal: the memory limit of a container is found however its cgroups are mounted.
// Method: trees of files as Linux lays them out, in a temporary directory.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "config/config.h"
#include "config/machine_files.h"

namespace larder::config {
namespace {

namespace fs = std::filesystem;

class Tree {
 public:
  Tree() {
    std::string path = (fs::temp_directory_path() / "larder_machine_XXXXXX").string();
    root_ = mkdtemp(path.data());
  }

  ~Tree() { fs::remove_all(root_); }

  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  void write(const fs::path& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }

  const fs::path& root() const { return root_; }

 private:
  fs::path root_;
};

TEST(Machine, ALimitOfVersion2IsFound) {
  Tree tree;
  tree.write("proc/self/cgroup", "0::/kubepods/pod7/box\n");
  tree.write("sys/fs/cgroup/kubepods/pod7/box/memory.max", "1073741824\n");
  EXPECT_EQ(cgroup_memory_limit(tree.root()), 1073741824U);
}

TEST(Machine, TheLeastLimitOnTheWayUpCounts) {
  Tree tree;
  tree.write("proc/self/cgroup", "0::/kubepods/pod7/box\n");
  tree.write("sys/fs/cgroup/kubepods/pod7/box/memory.max", "max\n");
  tree.write("sys/fs/cgroup/kubepods/pod7/memory.max", "2000\n");
  tree.write("sys/fs/cgroup/kubepods/memory.max", "3000\n");
  EXPECT_EQ(cgroup_memory_limit(tree.root()), 2000U);
}

TEST(Machine, AGroupMountedAsTheTopIsFound) {
  Tree tree;
  tree.write("proc/self/cgroup", "0::/../../not/visible/here\n");
  tree.write("sys/fs/cgroup/memory.max", "4096\n");
  EXPECT_EQ(cgroup_memory_limit(tree.root()), 4096U);
}

TEST(Machine, ALimitOfVersion1IsFound) {
  Tree tree;
  tree.write("proc/self/cgroup",
             "9:name=systemd:/\n4:cpu,memory:/docker/abc\n1:cpuset:/docker/abc\n0::/\n");
  tree.write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "8192\n");
  tree.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(cgroup_memory_limit(tree.root()), 8192U);
}

TEST(Machine, NoLimitIsNoLimit) {
  Tree tree;
  EXPECT_EQ(cgroup_memory_limit(tree.root()), std::nullopt);
  tree.write("proc/self/cgroup", "nonsense\n0::/box\n3:notmemory:/box");
  tree.write("sys/fs/cgroup/box/memory.max", "max\n");
  tree.write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "5\n");
  EXPECT_EQ(cgroup_memory_limit(tree.root()), std::nullopt);
}

TEST(Machine, OnlyAPlainNumberIsALimit) {
  EXPECT_EQ(parse_memory_limit("123\n"), 123U);
  for (const char* text :
       {"", "\n", "max", "-1", "12x", "9223372036854771712", "99999999999999999999"}) {
    EXPECT_EQ(parse_memory_limit(text), std::nullopt) << text;
  }
}

TEST(Machine, ThisOneHasMemory) {
  EXPECT_GT(Machine::read().memory_bytes, std::size_t{16} << 20);
}

}  // namespace
}  // namespace larder::config
