// segment_file.h - whose is a segment's file: creating, locking, sweeping.
//
// A live pool holds an flock on its file; the system drops it with the process, however that ends.
// Two rules make this safe between servers that start and sweep at the same time:
//   - a file is unlinked only by who holds its lock and has seen, after taking it, that the name
//   leads to it;
//   - a new file counts as ours only after the same check; before, a sweeper may take it for stale
//   and remove it, which
//     the check notices, and we try again.
// Names that an operator gives are not swept. If such a file exists and is not locked, it is
// removed with a warning, unless it was not made by us and another process maps it: that may be a
// Python server, which takes no lock. What we make carries an extended attribute (where the file
// system has them), so that engines which still map the segment of a crashed server do not keep its
// successor from starting.
//
// Stateless; any thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>

#include "base/result.h"
#include "pool/file_descriptor.h"

namespace larder::pool {

// What a file is, whatever its name.
struct FileIdentity {
  dev_t device;
  ino_t inode;

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

std::optional<FileIdentity> identity_of(const FileDescriptor& file);
std::optional<FileIdentity> identity_at(
    const std::string& path);  // does not follow a symbolic link

struct LockedFile {
  FileDescriptor file;  // open for reading and writing; the lock ends when it is closed
  std::string name;
  std::string path;
};

// A new empty file of mode 0600, locked. Without a name: a fresh marked one. kBusy: the name
// belongs to somebody else (the message says to whom and what to do); kSystem: the directory
// refuses.
Result<LockedFile> create_locked_file(const std::string& directory,
                                      const std::optional<std::string>& given_name);

struct Swept {
  std::size_t files = 0;
  std::size_t bytes = 0;  // that they held; freed when the last process that maps them lets go
};

// Unlinks the marked segments of this user whose lock can be taken. What cannot be opened is
// skipped.
Swept sweep_stale_segments(const std::string& directory);

// A process other than this one that maps the file, as far as /proc shows.
std::optional<pid_t> other_process_mapping(const FileIdentity& identity);

}  // namespace larder::pool
