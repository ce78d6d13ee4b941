#include <list>
#include <memory>
#include <numeric>
#include <utility>

#include "handlers/handlers.h"
#include "handlers/transfer.h"
#include "tensors/tensor_pickle.h"

namespace larder::handlers {
namespace {

using sessions::ClientKind;

// A msgpack binary counts its bytes in 32 bits.
constexpr std::size_t kPayloadBytesMax = 0xFFFFFFFF;

// Pins that end when the reply has left, on the thread that sends it.
class LentObjects {
 public:
  LentObjects(cache::CacheIndex& index, cache::ReadLease pins) : index_(index) {
    pins_.push_back(std::move(pins));
  }

  LentObjects(const LentObjects&) = delete;
  LentObjects& operator=(const LentObjects&) = delete;

  ~LentObjects() { index_.release_later(std::move(pins_)); }

  const cache::ReadLease& pins() const { return pins_.front(); }

 private:
  cache::CacheIndex& index_;
  std::list<cache::ReadLease> pins_;  // one
};

// The objects are sent from the pool, under pins of their own: the transfer's may end before.
protocol::LentPayload payload_of(Services& services,
                                 const Transfer& transfer,
                                 const cache::ReadLease& lease) {
  std::vector<std::size_t> all(lease.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  auto owner = std::make_shared<LentObjects>(services.index, services.index.share(lease, all));
  tensors::AroundTensors around = tensors::around_tensor_list(transfer.space.layout, lease.size());
  protocol::LentPayload payload{std::move(around.head), {}, std::move(around.tail), nullptr};
  payload.objects.reserve(lease.size());
  for (std::size_t i = 0; i < lease.size(); ++i) {
    payload.objects.push_back(owner->pins().bytes(i));
  }
  payload.owner = std::move(owner);
  services.metrics.copy_mode_bytes_out.add(payload.byte_count());
  return payload;
}

}  // namespace

// Slots for a client that maps the pool, bytes for one that does not, both while we cannot tell (a
// reader that never stored anything): each takes what it understands. The pins live until
// COMMIT_RETRIEVE, which every client sends.
Result<protocol::PrepareRetrieveResponse> on_prepare_retrieve(
    Services& services, const Caller& caller, const protocol::TransferRequest& request) {
  Result<Transfer> transfer =
      resolve_transfer(services, caller, request.key, request.instance_id, CopiedBy::kEngine);
  if (!transfer) {
    return transfer.error();
  }
  protocol::PrepareRetrieveResponse response;
  if (transfer->range.count() == 0) {
    return response;
  }
  Result<cache::ReadLease> lease =
      pin_intact(services, request.key, transfer->space, transfer->objects);
  if (!lease) {
    services.metrics.read_failed(
        transfer->space.model_name, transfer->range.count(), lease.error().code);
    log::debug("retrieve {}: {}", request.key.request_id, lease.error().detail);
    return response;
  }
  const ClientKind kind =
      services.pool.shm_name().empty() ? ClientKind::kCopy : transfer->instance->kind();
  const bool fits =
      tensors::tensor_list_bytes(transfer->space.layout, lease->size()) <= kPayloadBytesMax;
  if (kind == ClientKind::kCopy && !fits) {
    return Error{Code::kTooLarge, "the range is larger than a message can be"};
  }
  if (kind != ClientKind::kSharedMemory && fits) {
    response.payload = payload_of(services, *transfer, *lease);
  }
  if (kind != ClientKind::kCopy) {
    response.slots.emplace();
    for (std::size_t i = 0; i < lease->size(); ++i) {
      response.slots->push_back(describe_slot(*transfer, lease->offset(i)));
    }
    if (!transfer->instance->open_retrieve(
            transfer->key, request.key.request_id, std::move(*lease))) {
      return Error{Code::kNotFound,
                   "the instance was unregistered meanwhile, or has too many open transfers"};
    }
  }
  if (kind == ClientKind::kUnknown) {
    services.metrics.sent_both_forms.add();
  }
  response.success = true;
  services.metrics.chunks_loaded(transfer->worker,
                                 transfer->space.model_name,
                                 transfer->space.cache_salt,
                                 transfer->range.count());
  return response;
}

Result<bool> on_commit_retrieve(Services& services,
                                const Caller& caller,
                                const protocol::TransferRequest& request) {
  Result<Transfer> transfer =
      resolve_transfer(services, caller, request.key, request.instance_id, CopiedBy::kEngine);
  if (!transfer) {
    return transfer.error();
  }
  const std::optional<cache::ReadLease> ended =
      transfer->instance->close_retrieve(transfer->key, request.key.request_id);
  return true;
}

}  // namespace larder::handlers
