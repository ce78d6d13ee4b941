// tensor_pickle.h - the pickled tensor list of copy mode, read and written without Python.
//
// COMMIT_STORE carries pickle.dumps(list of CPU tensors): protocol 2 to 5, each tensor a call of
// torch's rebuild functions over a nested legacy torch.save stream. The reader accepts exactly the
// globals of that form (a whitelist over codec/pickle_reader.h); it calls nothing, and refuses
// anything else. PREPARE_RETRIEVE carries the writer's form: one byte storage for the whole batch
// and _rebuild_tensor_v3 per tensor, which loads byte for byte for every dtype.
//
// Pure functions, any thread. Views returned point into the input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "codec/bytes.h"
#include "tensors/layout.h"

namespace larder::tensors {

// One tensor of a payload: elements are found at storage[(offset + sum index*stride) * item size],
// never outside it.
struct TensorView {
  Dtype dtype{};
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;   // in elements, none negative
  std::int64_t offset = 0;             // in elements
  std::span<const std::byte> storage;  // the whole storage, in the input

  bool is_contiguous() const;
  bool is_whole_storage() const;      // and in its order: the storage's bytes are the tensor's
  std::size_t element_count() const;  // 1 for a scalar, 0 when any dimension is 0
};

struct TensorListLimits {
  std::size_t tensors_max;        // chunks of the request's range
  std::size_t storage_bytes_max;  // of one storage
};

// Bytes of a storage that were cut out of the pickle (object_cutter.h).
struct CutBytes {
  std::size_t position;              // where in the pickle that is left they would begin
  std::span<const std::byte> bytes;  // where they are
};

// kMalformed for anything that is not such a list; kTooLarge beyond the limits or kDimensionsMax.
// Every view is bounds-checked here; one without elements may name any offset. `cuts`, by position,
// are all of a storage's bytes each; the lengths of the blobs that they were the ends of are those
// of what is left.
Result<std::vector<TensorView>> read_tensor_list(std::span<const std::byte> pickle,
                                                 const TensorListLimits& limits,
                                                 std::span<const CutBytes> cuts = {});

// Copies the tensor's elements row-major into `to`, converting nothing. kMismatch unless dtype and
// shape equal the layout's and `to` has exactly bytes_of(layout) bytes. A contiguous tensor is one
// memcpy. REQUIRES: the tensor comes from read_tensor_list.
Result<void> copy_to_object(const TensorView& tensor,
                            const Layout& layout,
                            std::span<std::byte> to);

// What stands around the bytes of `count` objects of this layout in the pickle of their list.
// REQUIRES: as tensor_list_bytes().
struct AroundTensors {
  codec::Bytes head;
  codec::Bytes tail;
};

AroundTensors around_tensor_list(const Layout& layout, std::size_t count);

// Exactly how much write_tensor_list appends for `count` objects of this layout. REQUIRES:
// bytes_of(layout) has a value, and `count` objects can be counted in 63 bits.
std::size_t tensor_list_bytes(const Layout& layout, std::size_t count);

// Appends the pickle of a list of `objects.size()` tensors of this layout to `to`. Each object has
// exactly bytes_of(layout) bytes; they are copied once.
void write_tensor_list(const Layout& layout,
                       std::span<const std::span<const std::byte>> objects,
                       codec::Bytes& to);

}  // namespace larder::tensors
