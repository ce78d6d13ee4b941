// The part of the index that notices when stored bytes have changed.
#include "base/check.h"
#include "cache/cache_index.h"
#include "cache/checksum.h"

namespace larder::cache {
namespace {

// Of a sample, one object in so many is compared.
constexpr std::uint64_t kSampleOf = 16;

// Spreads the turns: requests of sixteen chunks would otherwise have the same one compared each
// time.
std::uint64_t mix(std::uint64_t turn) {
  turn = (turn ^ (turn >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  turn = (turn ^ (turn >> 27U)) * 0x94d049bb133111ebULL;
  return turn ^ (turn >> 31U);
}

}  // namespace

std::vector<std::uint64_t> CacheIndex::checksums_of(std::span<const pool::Slot> slots) const {
  std::vector<std::uint64_t> checksums(slots.size(), 0);
  if (verification_ != Verification::kOff) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      checksums[i] = checksum_of(slots[i].bytes());
    }
  }
  return checksums;
}

std::vector<std::size_t> CacheIndex::find_corrupted(const ReadLease& lease) {
  std::vector<std::size_t> corrupted;
  if (verification_ == Verification::kOff) {
    return corrupted;
  }
  std::uint64_t compared = 0;
  for (std::size_t position = 0; position < lease.size(); ++position) {
    if (!lease.holds(position)) {
      continue;
    }
    const Object& object = *lease.objects_[position];
    bool is_corrupted = object.is_corrupted.load();
    if (!is_corrupted && is_due()) {
      ++compared;
      is_corrupted = checksum_of(object.slot.bytes()) != object.checksum;
    }
    if (is_corrupted) {
      corrupted.push_back(position);
    }
  }
  verified_objects_.add(compared);
  if (!corrupted.empty()) {
    const MutexLock lock(mutex_);
    for (const std::size_t position : corrupted) {
      condemn(*lease.objects_[position]);
    }
  }
  return corrupted;
}

bool CacheIndex::is_due() {
  return verification_ == Verification::kAlways ||
         mix(verify_turns_.fetch_add(1, std::memory_order_relaxed)) % kSampleOf == 0;
}

void CacheIndex::condemn(Object& object) {
  LARDER_CHECK(object.pins > 0);
  if (object.is_corrupted.exchange(true)) {
    return;  // somebody else found it too
  }
  corrupted_objects_.add();
  if (object.shelf == nullptr) {
    return;  // cleared before
  }
  policy_->remove(object, Leaving::kCleared);
  object.shelf->tenant->pinned_bytes -= pool_.rounded(object.slot.size());
  // What is behind it stays: it is found again once this chunk is stored again.
  untie(object);
  detached_.emplace(&object, take_out(object));
}

}  // namespace larder::cache
