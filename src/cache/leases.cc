#include "cache/leases.h"

#include "base/check.h"
#include "cache/cache_index.h"

namespace larder::cache {

ReadLease& ReadLease::operator=(ReadLease&& other) noexcept {
  if (this != &other) {
    const ReadLease released(std::move(*this));
    index_ = std::exchange(other.index_, nullptr);
    objects_ = std::move(other.objects_);
    other.objects_.clear();
  }
  return *this;
}

ReadLease::~ReadLease() {
  if (index_ != nullptr && !objects_.empty()) {
    index_->release(objects_);
  }
}

std::span<const std::byte> ReadLease::bytes(std::size_t position) const {
  LARDER_CHECK(holds(position));
  return objects_[position]->slot.bytes();
}

std::size_t ReadLease::offset(std::size_t position) const {
  LARDER_CHECK(holds(position));
  return objects_[position]->slot.offset();
}

bool ReadLease::is_corrupted(std::size_t position) const {
  LARDER_CHECK(holds(position));
  return objects_[position]->is_corrupted.load();
}

void ReadLease::move_to(std::size_t position, ReadLease& other) {
  LARDER_CHECK(holds(position));
  LARDER_CHECK(other.index_ == nullptr || other.index_ == index_);
  other.index_ = index_;
  other.objects_.push_back(std::exchange(objects_[position], nullptr));
}

void ReadLease::absorb(ReadLease&& other) {
  LARDER_CHECK(index_ == nullptr || other.index_ == nullptr || other.index_ == index_);
  if (index_ == nullptr) {
    index_ = other.index_;
  }
  objects_.insert(objects_.end(), other.objects_.begin(), other.objects_.end());
  other.objects_.clear();
  other.index_ = nullptr;
}

WriteLease& WriteLease::operator=(WriteLease&& other) noexcept {
  if (this != &other) {
    const WriteLease discarded(std::move(*this));
    index_ = std::exchange(other.index_, nullptr);
    clear_count_ = other.clear_count_;
    space_ = std::move(other.space_);
    kv_rank_ = other.kv_rank_;
    hashes_ = std::move(other.hashes_);
    chunks_ = std::move(other.chunks_);
    slots_ = std::move(other.slots_);
    checksums_ = std::move(other.checksums_);
    missing_ = other.missing_;
  }
  return *this;
}

WriteLease::~WriteLease() {
  if (index_ != nullptr) {
    index_->forget(*this);
  }
}

keys::ObjectId WriteLease::id(std::size_t position) const {
  return keys::ObjectId{hashes_[chunks_[position]], kv_rank_};
}

bool WriteLease::commit() {
  LARDER_CHECK(index_ != nullptr);
  CacheIndex* const index = index_;
  checksums_ = index->checksums_of(slots_);
  const bool published = index->publish(*this);
  index->forget(*this);
  return published;
}

std::vector<pool::Slot> WriteLease::abandon() {
  std::vector<pool::Slot> slots = std::move(slots_);
  slots_.clear();
  if (index_ != nullptr) {
    index_->reserved_objects_.fetch_sub(slots.size());
    index_ = nullptr;
  }
  return slots;
}

}  // namespace larder::cache
