#include <cstring>
#include <limits>
#include <string_view>

#include "base/check.h"
#include "tensors/tensor_pickle.h"

namespace larder::tensors {
namespace {

using namespace std::string_view_literals;

// Memo slots of what every tensor after the first refers to.
enum Slot : std::uint8_t { kRebuild, kStorage, kSize, kStride, kHooks, kDtype };

// The first four pickles of a storage (magic number, version, byte order, description), in
// torch.save's legacy form.
constexpr std::string_view kStorageHead =
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
    "\x80\x02M\xe9\x03."
    "\x80\x02}(X\x10\x00\x00\x00protocol_versionM\xe9\x03X\x0d\x00\x00\x00little_endian\x88"
    "X\x0a\x00\x00\x00type_sizes}(X\x05\x00\x00\x00shortK\x02X\x03\x00\x00\x00intK\x04"
    "X\x04\x00\x00\x00longK\x04uu."
    "\x80\x02(X\x07\x00\x00\x00storagectorch\nByteStorage\nX\x01\x00\x00\x00"
    "0X\x03\x00\x00\x00"
    "cpu"sv;
// The end of the description, after the number of bytes, and the list of keys.
constexpr std::string_view kStorageTail =
    "NtQ.\x80\x02]X\x01\x00\x00\x00"
    "0a."sv;

class CountingSink {
 public:
  void append(const void* /*from*/, std::size_t bytes) { bytes_ += bytes; }

  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

class BufferSink {
 public:
  explicit BufferSink(codec::Bytes& to) : to_(to) {}

  void append(const void* from, std::size_t bytes) {
    const std::size_t before = to_.size();
    to_.resize(before + bytes);
    std::memcpy(to_.data() + before, from, bytes);
  }

 private:
  codec::Bytes& to_;
};

// Writes the list around the objects' bytes. One body for both sinks, so that the size announced is
// the size written.
template <typename Sink>
class ListWriter {
 public:
  ListWriter(const Layout& layout, std::size_t count, Sink& sink)
      : layout_(layout), count_(count), sink_(sink) {
    const Result<std::size_t> bytes = bytes_of(layout);
    LARDER_CHECK(bytes.has_value());
    object_bytes_ = bytes.value();
    LARDER_CHECK(count <= static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max()) /
                              object_bytes_);
  }

  // Everything in front of the objects' bytes.
  void write_head() {
    text("\x80\x04]("sv);
    text("ctorch._utils\n_rebuild_tensor_v3\n"sv);
    put(kRebuild);
    text("(ctorch.storage\n_load_from_bytes\n"sv);
    CountingSink inside;
    ListWriter<CountingSink>(layout_, count_, inside).write_storage_head();
    const std::size_t blob_bytes = inside.bytes() + storage_bytes();
    if (blob_bytes <= std::numeric_limits<std::uint32_t>::max()) {
      text("B"sv);
      number(blob_bytes, 4);
    } else {
      text("\x8e"sv);
      number(blob_bytes, 8);
    }
    write_storage_head();
  }

  // Everything behind them.
  void write_tail() {
    text("\x85R"sv);
    put(kStorage);
    for (std::size_t i = 0; i < count_; ++i) {
      write_tensor(i);
    }
    text("e."sv);
  }

  void write_storage_head() {
    text(kStorageHead);
    integer(storage_bytes());
    text(kStorageTail);
    number(storage_bytes(), 8);
  }

  std::size_t storage_bytes() const { return object_bytes_ * count_; }

 private:
  void write_tensor(std::size_t index) {
    const bool first = index == 0;
    if (!first) {
      get(kRebuild);
      text("("sv);
      get(kStorage);
    }
    integer(index * (object_bytes_ / item_bytes(layout_.dtype)));
    if (first) {
      write_size_and_stride();
      text(
          "\x89"
          "ccollections\nOrderedDict\n"sv);
      put(kHooks);
      text(")Rctorch\n"sv);
      text(name_of(layout_.dtype));
      text("\n"sv);
      put(kDtype);
    } else {
      get(kSize);
      get(kStride);
      text("\x89"sv);
      get(kHooks);
      text(")R"sv);
      get(kDtype);
    }
    text("tR"sv);
  }

  void write_size_and_stride() {
    text("("sv);
    for (const std::int64_t dimension : layout_.shape) {
      integer(static_cast<std::uint64_t>(dimension));
    }
    text("t"sv);
    put(kSize);
    text("("sv);
    std::uint64_t stride = object_bytes_ / item_bytes(layout_.dtype);
    for (const std::int64_t dimension : layout_.shape) {
      stride /= static_cast<std::uint64_t>(dimension);
      integer(stride);
    }
    text("t"sv);
    put(kStride);
  }

  void text(std::string_view characters) { sink_.append(characters.data(), characters.size()); }

  void number(std::uint64_t value, std::size_t bytes) { sink_.append(&value, bytes); }

  void integer(std::uint64_t value) {
    if (value <= std::numeric_limits<std::uint8_t>::max()) {
      text("K"sv);
      number(value, 1);
    } else if (value <= std::numeric_limits<std::uint16_t>::max()) {
      text("M"sv);
      number(value, 2);
    } else if (value <= std::numeric_limits<std::int32_t>::max()) {
      text("J"sv);
      number(value, 4);
    } else {
      text("\x8a\x08"sv);
      number(value, 8);
    }
  }

  void put(Slot slot) {
    text("q"sv);
    number(slot, 1);
  }

  void get(Slot slot) {
    text("h"sv);
    number(slot, 1);
  }

  const Layout& layout_;
  std::size_t count_;
  Sink& sink_;
  std::size_t object_bytes_ = 0;
};

constexpr std::string_view kEmptyList = "\x80\x04]."sv;

}  // namespace

std::size_t tensor_list_bytes(const Layout& layout, std::size_t count) {
  if (count == 0) {
    return kEmptyList.size();
  }
  CountingSink sink;
  ListWriter<CountingSink> writer(layout, count, sink);
  writer.write_head();
  writer.write_tail();
  return sink.bytes() + writer.storage_bytes();
}

AroundTensors around_tensor_list(const Layout& layout, std::size_t count) {
  AroundTensors around;
  BufferSink head(around.head);
  if (count == 0) {
    head.append(kEmptyList.data(), kEmptyList.size());
    return around;
  }
  ListWriter<BufferSink>(layout, count, head).write_head();
  BufferSink tail(around.tail);
  ListWriter<BufferSink>(layout, count, tail).write_tail();
  return around;
}

void write_tensor_list(const Layout& layout,
                       std::span<const std::span<const std::byte>> objects,
                       codec::Bytes& to) {
  to.reserve(to.size() + tensor_list_bytes(layout, objects.size()));
  const AroundTensors around = around_tensor_list(layout, objects.size());
  to.insert(to.end(), around.head.begin(), around.head.end());
  for (const std::span<const std::byte> object : objects) {
    LARDER_CHECK(object.size() == bytes_of(layout).value());
    to.insert(to.end(), object.begin(), object.end());
  }
  to.insert(to.end(), around.tail.begin(), around.tail.end());
}

}  // namespace larder::tensors
