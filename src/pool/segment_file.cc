#include "pool/segment_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>
#include <system_error>

#include "base/log.h"
#include "pool/segment_name.h"

namespace larder::pool {
namespace {

constexpr const char* kMadeByUs = "user.larder";

// Tries to get a name before giving up: each loss means that another server started in the same
// moment.
constexpr int kCreateAttemptsMax = 16;

std::string error_text(int number) {
  return std::generic_category().message(number);
}

bool try_lock(const FileDescriptor& file) {
  return ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;
}

bool leads_to(const std::string& path, const FileDescriptor& file) {
  const auto named = identity_at(path);
  return named.has_value() && named == identity_of(file);
}

// Never blocks on a FIFO and never follows a link: the directory is writable for everybody.
FileDescriptor open_existing(const std::string& path) {
  return FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
}

bool is_our_users_file(const FileDescriptor& file, struct stat& status) {
  return ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) &&
         status.st_uid == ::geteuid();
}

Error busy(const std::string& path, const std::string& why) {
  return Error{
      Code::kBusy,
      fmt::format("the shared-memory segment {} {}, or choose another --shm-name", path, why)};
}

// Success: the name is free, or was a moment ago.
Result<void> remove_stale(const std::string& path) {
  const FileDescriptor file = open_existing(path);
  if (!file.valid()) {
    if (errno == ENOENT) {
      return {};
    }
    return busy(path,
                fmt::format("exists and cannot be opened ({}): remove it", error_text(errno)));
  }

  struct stat status {};

  if (!is_our_users_file(file, status)) {
    return busy(path, "exists and is not a regular file of this user: remove it");
  }
  if (!try_lock(file)) {
    return busy(path, "is in use by a running server: stop that server");
  }
  if (!leads_to(path, file)) {
    return {};
  }
  const bool made_by_us = ::fgetxattr(file.get(), kMadeByUs, nullptr, 0) >= 0;
  const auto mapper = other_process_mapping({status.st_dev, status.st_ino});
  if (!made_by_us && mapper.has_value()) {
    return busy(path,
                fmt::format("is mapped by process {}: stop that process, remove the file if no "
                            "server uses it",
                            *mapper));
  }
  log::warning(
      "removing the stale shared-memory segment {} ({} bytes), left by a server that is gone",
      path,
      status.st_size);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return busy(path,
                fmt::format("is stale but cannot be removed ({}): remove it", error_text(errno)));
  }
  return {};
}

// Sweeps one name of an open directory. Returns the bytes the file held, nothing when it was left
// alone.
std::optional<std::size_t> sweep_one(const std::string& path) {
  const FileDescriptor file = open_existing(path);

  struct stat status {};

  if (!file.valid() || !is_our_users_file(file, status) || !try_lock(file) ||
      !leads_to(path, file)) {
    return std::nullopt;
  }
  if (::unlink(path.c_str()) != 0) {
    return std::nullopt;
  }
  constexpr std::size_t kStatBlockBytes = 512;
  return static_cast<std::size_t>(status.st_blocks) * kStatBlockBytes;
}

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

}  // namespace

std::optional<FileIdentity> identity_of(const FileDescriptor& file) {
  struct stat status {};

  if (::fstat(file.get(), &status) != 0) {
    return std::nullopt;
  }
  return FileIdentity{status.st_dev, status.st_ino};
}

std::optional<FileIdentity> identity_at(const std::string& path) {
  struct stat status {};

  if (::lstat(path.c_str(), &status) != 0) {
    return std::nullopt;
  }
  return FileIdentity{status.st_dev, status.st_ino};
}

Result<LockedFile> create_locked_file(const std::string& directory,
                                      const std::optional<std::string>& given_name) {
  std::string path;
  for (int attempt = 0; attempt < kCreateAttemptsMax; ++attempt) {
    std::string name = given_name.has_value() ? *given_name : fresh_segment_name();
    path = directory + "/" + name;
    FileDescriptor file(
        ::open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
    if (!file.valid()) {
      if (errno != EEXIST) {
        return Error{
            Code::kSystem,
            fmt::format("cannot create the shared-memory segment {}: {}", path, error_text(errno))};
      }
      if (given_name.has_value()) {
        if (auto removed = remove_stale(path); !removed) {
          return removed.error();
        }
      }
      continue;
    }
    if (!try_lock(file)) {
      if (errno == EWOULDBLOCK) {
        continue;  // a sweeper was faster and is removing the file
      }
      const int failure = errno;
      ::unlink(path.c_str());
      return Error{Code::kSystem, fmt::format("cannot lock {}: {}", path, error_text(failure))};
    }
    if (!leads_to(path, file)) {
      continue;
    }
    ::fsetxattr(file.get(), kMadeByUs, "1", 1, 0);  // may not exist here; see the header
    if (::fchmod(file.get(), S_IRUSR | S_IWUSR) != 0) {
      const int failure = errno;
      ::unlink(path.c_str());
      return Error{Code::kSystem,
                   fmt::format("cannot set the mode of {}: {}", path, error_text(failure))};
    }
    return LockedFile{std::move(file), std::move(name), std::move(path)};
  }
  return Error{Code::kBusy,
               fmt::format("{} was taken by other starting servers {} times in a row: try again",
                           path,
                           kCreateAttemptsMax)};
}

Swept sweep_stale_segments(const std::string& directory) {
  Swept swept;
  const std::unique_ptr<DIR, CloseDirectory> listing(::opendir(directory.c_str()));
  if (!listing) {
    return swept;
  }
  while (const dirent* entry = ::readdir(listing.get())) {
    const std::string_view name(entry->d_name);
    if (!name.starts_with(kMarkedPrefix)) {
      continue;
    }
    if (const auto bytes = sweep_one(directory + "/" + std::string(name))) {
      ++swept.files;
      swept.bytes += *bytes;
    }
  }
  return swept;
}

std::optional<pid_t> other_process_mapping(const FileIdentity& identity) {
  // A line of /proc/<pid>/maps: range, permissions, offset, device, inode, path. The path is of no
  // use: it differs between mount namespaces.
  const std::string wanted = fmt::format(
      " {:02x}:{:02x} {} ", major(identity.device), minor(identity.device), identity.inode);
  std::error_code failed;
  for (std::filesystem::directory_iterator entry("/proc", failed), end; !failed && entry != end;
       entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    pid_t pid = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size() || pid == ::getpid()) {
      continue;
    }
    std::ifstream maps(entry->path() / "maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find(wanted) != std::string::npos) {
        return pid;
      }
    }
  }
  return std::nullopt;
}

}  // namespace larder::pool
