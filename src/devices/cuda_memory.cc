#include "devices/cuda_memory.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <variant>

#include "devices/storage_counter.h"
#include "tensors/dtype.h"

namespace larder::devices {

Result<std::shared_ptr<CudaMemory>> CudaMemory::map(CudaDevice& device,
                                                    CudaShared& shared,
                                                    std::span<const TensorHandle> handles,
                                                    geometry::CachePlan plan) {
  if (auto current = device.make_current(); !current) {
    return current.error();
  }
  // Shared by the registration and the copies in flight.
  auto memory = std::make_shared<CudaMemory>(device, shared, std::move(plan));
  const auto mapped = memory->map_tensors(handles);
  memory->watch_readiness();
  if (!mapped) {
    return mapped.error();
  }
  return memory;
}

CudaMemory::CudaMemory(CudaDevice& device, CudaShared& shared, geometry::CachePlan plan)
    : EngineMemory(std::move(plan)),
      device_(device),
      shared_(shared),
      submitter_(device.driver(), device.copy_kernel(), shared.pool) {
  shared_.engines += 1;
}

CudaMemory::~CudaMemory() {
  const CudaDriver& driver = device_.driver();
  driver.context_set_current(device_.context());
  if (stream_ != nullptr) {
    // Nothing is in flight but perhaps the host function behind the last copy.
    driver.stream_synchronize(stream_);
    driver.stream_destroy(stream_);
  }
  blocks_.clear();
  for (const StorageCounter& counter : counters_) {
    release_storage(counter);
  }
  shared_.engines -= 1;
}

Result<void> CudaMemory::map_tensors(std::span<const TensorHandle> handles) {
  auto stream = device_.create_stream();
  if (!stream) {
    return stream.error();
  }
  stream_ = *stream;
  blocks_.reserve(handles.size());
  bases_.reserve(handles.size());
  for (const TensorHandle& handle : handles) {
    const auto* memory = std::get_if<CudaMemoryHandle>(&handle.memory);
    if (memory == nullptr) {
      return Error{Code::kInvalid, "a tensor that is not on a CUDA device"};
    }
    if (auto mapped = map_tensor(handle, *memory); !mapped) {
      return mapped;
    }
  }
  return {};
}

Result<void> CudaMemory::map_tensor(const TensorHandle& tensor, const CudaMemoryHandle& memory) {
  if (memory.counter) {
    counters_.push_back(*memory.counter);
  }
  if (memory.storage_bytes == 0) {
    bases_.push_back(0);
    return {};
  }
  std::size_t end = 0;
  if (tensor.storage_offset < 0 ||
      __builtin_add_overflow(memory.block_offset, memory.storage_bytes, &end)) {
    return Error{Code::kInvalid, "a tensor beyond the address space"};
  }
  auto block = device_.blocks().open(memory.block, end);
  if (!block) {
    return block.error();
  }
  const std::uint64_t first_element =
      static_cast<std::uint64_t>(tensor.storage_offset) * tensors::item_bytes(tensor.tensor.dtype);
  bases_.push_back(block->address() + memory.block_offset + first_element);
  blocks_.push_back(std::move(*block));
  if (!memory.ready) {
    return {};
  }
  auto waits = device_.wait_for(*memory.ready, stream_);
  waits_for_readiness_ = waits_for_readiness_ || waits.has_value();
  return waits;
}

// Without an event, as on a broken device, the destructor may have to wait.
void CudaMemory::watch_readiness() {
  if (!waits_for_readiness_) {
    return;
  }
  const auto event = device_.events().take();
  if (!event) {
    return;
  }
  if (device_.driver().event_record(event->event, stream_) != kCuSuccess) {
    device_.events().give_back(*event);
    return;
  }
  shared_.completions.watch({.context = device_.context(),
                             .stream = stream_,
                             .event = event->event,
                             .completed = [memory = shared_from_this(), event = *event](bool) {
                               memory->device_.events().give_back(event);
                             }});
}

Result<void> CudaMemory::check_event(std::span<const std::byte> engine_event) {
  if (engine_event.size() == kIpcHandleBytes) {
    return {};
  }
  std::string why = fmt::format(
      "events of {} bytes, where a CUDA event's handle has {}: they are of a kind that is not "
      "served (lmcache.mp.isolated_ipc in the engine's configuration makes it send such)",
      engine_event.size(),
      kIpcHandleBytes);
  if (!has_said_event_.exchange(true)) {
    log::warning("an engine on {} sends {}; nothing is stored or retrieved", device_.name(), why);
  }
  return Error{Code::kUnsupported, std::move(why)};
}

EngineMemory::Started CudaMemory::do_start(CopyJob job) {
  if (in_flight_.fetch_add(1) >= kCopiesInFlightMax) {
    in_flight_ -= 1;
    return refuse(job, {Code::kBusy, "too many copies wait for the engine"});
  }
  auto exported = shared_.pool.is_registered() ? submit(job) : submit_unpinned(job);
  if (!exported) {
    in_flight_ -= 1;
    return refuse(job, exported.error());
  }
  return {.started = true, .event = bytes_of(exported->handle)};
}

EngineMemory::Started CudaMemory::refuse(CopyJob& job, const Error& error) {
  if (auto turn = shared_.failed_copies.take_turn(shared_.clock.now())) {
    log::warning(
        "{}: a copy failed: {} ({} more held back)", device_.name(), error.detail, turn.held_back);
  }
  job.done(false);
  return {.started = false, .event = device_.completed_event()};
}

Result<ExportedEvents::Exported> CudaMemory::submit_unpinned(CopyJob& job) {
  const bool may_block = shared_.blocked.fetch_add(1) < shared_.blocked_max;
  Result<ExportedEvents::Exported> submitted =
      may_block ? submit(job)
                : Error{Code::kBusy,
                        "the pool is not registered with the driver, and others are held up by it"};
  shared_.blocked -= 1;
  return submitted;
}

// On an error nothing of the job is on the stream any more.
Result<ExportedEvents::Exported> CudaMemory::submit(CopyJob& job) {
  const auto engine_event = ipc_handle_of(job.engine_event);
  if (!engine_event) {
    return engine_event.error();
  }
  const MutexLock lock(mutex_);
  if (auto current = device_.make_current(); !current) {
    return current.error();
  }
  auto exported = device_.events().take();
  if (!exported) {
    return exported;
  }
  if (auto waits = device_.wait_for(*engine_event, stream_); !waits) {
    device_.events().give_back(*exported);
    return waits.error();
  }
  auto submitted = submit_copies(job);
  const CudaDriver& driver = device_.driver();
  if (submitted) {
    submitted = driver.check(driver.event_record(exported->event, stream_), "cuEventRecord");
  }
  if (!submitted) {
    // What was submitted before the failure may still be reading or writing.
    if (driver.stream_synchronize(stream_) == kCuSuccess) {
      device_.events().give_back(*exported);
    }
    return submitted.error();
  }
  watch(job, *exported);
  return exported;
}

Result<void> CudaMemory::submit_copies(const CopyJob& job) {
  for (const ObjectCopy& object : job.objects) {
    runs_.clear();
    append_object_runs(plan(), bases_, job, object, runs_);
    auto submitted = submitter_.submit(
        {.direction = job.direction, .bytes = object.bytes, .runs = runs_}, stream_);
    if (!submitted) {
      return submitted;
    }
  }
  return {};
}

void CudaMemory::watch(CopyJob& job, const ExportedEvents::Exported& exported) {
  shared_.copies_in_flight += 1;
  auto completed =
      [memory = shared_from_this(), done = std::move(job.done), exported](bool copied) {
        if (copied) {
          memory->device_.events().give_back(exported);
        }
        memory->in_flight_ -= 1;
        memory->shared_.copies_in_flight -= 1;
        done(copied);
      };
  shared_.completions.watch({.context = device_.context(),
                             .stream = stream_,
                             .event = exported.event,
                             .completed = std::move(completed)});
}

}  // namespace larder::devices
