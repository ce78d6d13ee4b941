#include "devices/host_memory.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <map>
#include <variant>

#include "tensors/dtype.h"

namespace larder::devices {
namespace {

std::byte* pointer_to(std::uint64_t address) {
  // Runs carry numbers, as device memory cannot be pointed into; these are of this process.
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

std::uint64_t address_of(const std::byte* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}

struct Piece {
  std::byte* to;
  const std::byte* from;
  std::size_t to_stride;
  std::size_t from_stride;
};

// From here on a piece is written past the caches, as memcpy writes megabytes: what is copied is
// not read again soon, and the lines that are overwritten need not be fetched first
// (bench/block_copy_bench.cc). Smaller ones are better off in the cache.
constexpr std::size_t kStreamedBytesMin = 4096;

#if defined(__SSE2__)
void copy_streamed(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kAlign = sizeof(__m128i);
  constexpr std::size_t kStep = 4 * kAlign;
  const std::size_t head = (kAlign - reinterpret_cast<std::uintptr_t>(to) % kAlign) % kAlign;
  std::memcpy(to, from, head);
  to += head;
  from += head;
  bytes -= head;
  for (; bytes >= kStep; bytes -= kStep, to += kStep, from += kStep) {
    for (std::size_t at = 0; at < kStep; at += kAlign) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
    }
  }
  std::memcpy(to, from, bytes);
}

// Streamed writes become visible with this, not by themselves.
void end_streaming() {
  _mm_sfence();
}
#else
void copy_streamed(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

void end_streaming() {}
#endif

// A size that the compiler knows makes a head's few hundred bytes a handful of instructions.
template <std::size_t kBytes>
void copy_rows(Piece piece, std::uint32_t rows) {
  for (std::uint32_t row = 0; row < rows; ++row) {
    std::memcpy(piece.to, piece.from, kBytes);
    piece.to += piece.to_stride;
    piece.from += piece.from_stride;
  }
}

void copy_rows(Piece piece, std::uint32_t rows, std::size_t bytes) {
  switch (bytes) {
    case 64:
      return copy_rows<64>(piece, rows);
    case 128:
      return copy_rows<128>(piece, rows);
    case 256:
      return copy_rows<256>(piece, rows);
    case 512:
      return copy_rows<512>(piece, rows);
    default:
      for (std::uint32_t row = 0; row < rows; ++row) {
        std::memcpy(piece.to, piece.from, bytes);
        piece.to += piece.to_stride;
        piece.from += piece.from_stride;
      }
  }
}

std::vector<MappedRange> ranges_of(const std::vector<SharedSegment>& segments) {
  std::vector<MappedRange> ranges;
  ranges.reserve(segments.size());
  for (const SharedSegment& segment : segments) {
    ranges.push_back(segment.range());
  }
  return ranges;
}

}  // namespace

EventHandle host_event() {
  EventHandle event(kHostEvent.size());
  std::memcpy(event.data(), kHostEvent.data(), kHostEvent.size());
  return event;
}

Result<std::shared_ptr<EngineMemory>> HostMemory::map(std::span<const TensorHandle> handles,
                                                      geometry::CachePlan plan,
                                                      const Shared& shared) {
  Result<Mapped> mapped = map_segments(handles, shared.budget);
  if (!mapped) {
    return mapped.error();
  }
  return std::shared_ptr<EngineMemory>(
      new HostMemory(std::move(plan), std::move(*mapped), shared.crew));
}

Result<HostMemory::Mapped> HostMemory::map_segments(std::span<const TensorHandle> handles,
                                                    SegmentBudget& budget) {
  std::map<std::string_view, std::size_t> bytes_by_name;
  for (const TensorHandle& handle : handles) {
    const auto& memory = std::get<SharedSegmentHandle>(handle.memory);
    if (memory.bytes > 0) {
      std::size_t& bytes = bytes_by_name[memory.name];
      bytes = std::max(bytes, memory.bytes);
    }
  }
  Result<SegmentBudget::Lease> lease = budget.take(bytes_by_name.size());
  if (!lease) {
    return lease.error();
  }
  Mapped mapped{std::move(*lease), {}, {}};
  std::map<std::string_view, const std::byte*> starts;
  for (const auto& [name, bytes] : bytes_by_name) {
    Result<SharedSegment> segment = SharedSegment::map(std::string(name), bytes);
    if (!segment) {
      return segment.error();
    }
    starts.emplace(name, segment->range().base);
    mapped.segments.push_back(std::move(*segment));
  }
  for (const TensorHandle& handle : handles) {
    const auto& memory = std::get<SharedSegmentHandle>(handle.memory);
    const std::size_t offset =
        static_cast<std::size_t>(handle.storage_offset) * tensors::item_bytes(handle.tensor.dtype);
    mapped.bases.push_back(memory.bytes == 0 ? 0 : address_of(starts.at(memory.name)) + offset);
  }
  return mapped;
}

HostMemory::HostMemory(geometry::CachePlan plan, Mapped mapped, CopyCrew& crew)
    : EngineMemory(std::move(plan)),
      mapped_(std::move(mapped)),
      ranges_(ranges_of(mapped_.segments)),
      crew_(crew) {}

EngineMemory::Started HostMemory::do_start(CopyJob job) {
  crew_.run(job.objects.size(), [this, &job](std::size_t i) { copy(job, job.objects[i]); });
  const bool copied = !ranges_.is_broken();
  job.done(copied);
  return {copied, host_event()};
}

void HostMemory::copy(const CopyJob& job, const ObjectCopy& object) {
  std::vector<geometry::CopyRun> runs;
  append_object_runs(plan(), mapped_.bases, job, object, runs);
  const FaultGuard guard(ranges_);
  copy_runs(runs, job.direction);
}

void copy_runs(std::span<const geometry::CopyRun> runs, Direction direction) {
  for (const geometry::CopyRun& run : runs) {
    std::byte* const engine = pointer_to(run.engine);
    std::byte* const object = pointer_to(run.object);
    const Piece piece = direction == Direction::kStore
                            ? Piece{object, engine, run.object_stride, run.engine_stride}
                            : Piece{engine, object, run.engine_stride, run.object_stride};
    if (run.rows > 1) {
      copy_rows(piece, run.rows, run.bytes);
    } else if (run.bytes < kStreamedBytesMin) {
      std::memcpy(piece.to, piece.from, run.bytes);
    } else {
      copy_streamed(piece.to, piece.from, run.bytes);
    }
  }
  end_streaming();
}

}  // namespace larder::devices
