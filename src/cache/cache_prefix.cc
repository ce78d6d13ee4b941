// Reading: which chunks of a prompt are there, and pinning them.
#include <algorithm>
#include <utility>

#include "cache/cache_index.h"

namespace larder::cache {
namespace {

// What one space holds of a prompt, found chunk by chunk.
struct Row {
  const Shelf* shelf = nullptr;
  std::optional<std::uint32_t> window_chunks;
  std::vector<Object*> objects = {};  // of each chunk, rank by rank; nullptr where one is missing
  std::size_t unbroken = 0;           // chunks in a row up to the last one

  void find(const keys::ChunkHash& hash, std::span<const std::uint32_t> kv_ranks) {
    bool complete = true;
    for (const std::uint32_t rank : kv_ranks) {
      objects.push_back(shelf->find(keys::ObjectId{hash, rank}));
      complete = complete && objects.back() != nullptr;
    }
    unbroken = complete ? unbroken + 1 : 0;
  }

  // How many of the last of so many chunks a hit takes.
  std::size_t needed(std::size_t chunks) const {
    return window_chunks.has_value() ? std::min<std::size_t>(*window_chunks, chunks) : chunks;
  }
};

// The most leading chunks that every row can serve. A row without a window ends the search at its
// first hole; those with one may serve again behind a hole.
std::size_t find_prefix(std::vector<Row>& rows,
                        std::span<const keys::ChunkHash> hashes,
                        std::span<const std::uint32_t> kv_ranks) {
  std::size_t served = 0;
  for (std::size_t chunk = 0; chunk < hashes.size(); ++chunk) {
    bool serves = true;
    for (Row& row : rows) {
      row.find(hashes[chunk], kv_ranks);
      serves = serves && row.unbroken >= row.needed(chunk + 1);
      if (!row.window_chunks.has_value() && row.unbroken == 0) {
        return served;
      }
    }
    served = serves ? chunk + 1 : served;
  }
  return served;
}

}  // namespace

PrefixLookup CacheIndex::acquire_prefix(std::span<const NeededSpace> spaces,
                                        std::span<const keys::ChunkHash> hashes,
                                        std::span<const std::uint32_t> kv_ranks) {
  PrefixLookup answer;
  if (spaces.empty() || kv_ranks.empty()) {
    return answer;
  }
  const MutexLock lock(mutex_);
  std::vector<Row> rows;
  for (const NeededSpace& needed : spaces) {
    const Shelf* const shelf = find_shelf(needed.space);
    if (shelf == nullptr) {
      return answer;
    }
    rows.push_back({shelf, needed.window_chunks});
  }
  answer.chunks = find_prefix(rows, hashes, kv_ranks);
  std::vector<Object*> pinned;
  pinned.reserve(rows.size() * answer.chunks * kv_ranks.size());
  for (Row& row : rows) {
    row.objects.resize(answer.chunks * kv_ranks.size());
    const std::size_t unneeded = (answer.chunks - row.needed(answer.chunks)) * kv_ranks.size();
    std::fill_n(row.objects.begin(), unneeded, nullptr);
    for (Object* object : row.objects) {
      if (object != nullptr) {
        pin(*object);
      }
    }
    pinned.insert(pinned.end(), row.objects.begin(), row.objects.end());
  }
  // Chunk by chunk over all spaces and ranks: what makes up one chunk must also go together.
  for (std::size_t chunk = answer.chunks; chunk-- > 0;) {
    for (const Row& row : rows) {
      for (std::size_t rank = 0; rank < kv_ranks.size(); ++rank) {
        if (Object* const object = row.objects[chunk * kv_ranks.size() + rank]) {
          Usage::count(object->usage.found);
          policy_->touch(*object, Use::kFound);
          newest_use_ = object->usage.last_use;
        }
      }
    }
  }
  answer.lease = ReadLease(this, std::move(pinned));
  return answer;
}

Result<ReadLease> CacheIndex::acquire(const KeySpace& space, const StoreRange& range) {
  std::vector<Object*> objects;
  const MutexLock lock(mutex_);
  Shelf* const shelf = find_shelf(space);
  if (shelf == nullptr) {
    return Error{Code::kNotFound, "nothing is stored for this model and salt"};
  }
  for (const keys::ChunkHash& hash : range.hashes.subspan(range.first_chunk)) {
    Object* const object = shelf->find(keys::ObjectId{hash, range.kv_rank});
    if (object == nullptr) {
      return Error{Code::kNotFound, "a chunk is not stored"};
    }
    objects.push_back(object);
  }
  for (Object* object : objects) {
    pin(*object);
  }
  touch_prefix({&shelf, 1}, range.hashes, {&range.kv_rank, 1});
  return ReadLease(this, std::move(objects));
}

void CacheIndex::touch(std::span<const NeededSpace> spaces,
                       std::span<const keys::ChunkHash> hashes,
                       std::span<const std::uint32_t> kv_ranks) {
  if (spaces.empty() || kv_ranks.empty()) {
    return;
  }
  const std::size_t step = chunks_in_step(spaces.size() * kv_ranks.size());
  for (std::size_t end = hashes.size(); end > 0;) {
    const std::size_t first = end - std::min(end, step);
    const MutexLock lock(mutex_);
    std::vector<Shelf*> shelves;
    for (const NeededSpace& needed : spaces) {
      if (Shelf* const shelf = find_shelf(needed.space); shelf != nullptr) {
        shelves.push_back(shelf);
      }
    }
    touch_prefix(shelves, hashes.subspan(first, end - first), kv_ranks);
    end = first;
  }
}

}  // namespace larder::cache
