// Goal: what engines hand over is read exactly, in both wire forms, and nothing that contradicts
// itself or leads elsewhere gets past.
// Method: handles that LMCache 0.5.2 pickled and 0.5.6 encoded; and handles written here in both
// forms that are wrong in one thing. Every prefix of a handle is refused too.
#include "devices/shared_tensor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "codec/msgpack_writer.h"

namespace larder::devices {
namespace {

using codec::MsgpackWriter;
using Json = nlohmann::json;
using tensors::Dtype;

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
const std::string kUuid = "0b3b7f2a-0000-1111-2222-333344445555";

std::string counted(char first) {
  std::string bytes(kIpcHandleBytes, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(first + static_cast<char>(i));
  }
  return bytes;
}

IpcHandle ipc_handle(char first) {
  IpcHandle handle{};
  std::memcpy(handle.data(), counted(first).data(), handle.size());
  return handle;
}

Json recorded(const std::string& part) {
  return Json::parse(std::ifstream(LARDER_FIXTURES "/device_vectors.json")).at(part);
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

Result<TensorHandle> read(const std::string& body) {
  return read_tensor_handle(std::as_bytes(std::span(body)));
}

TensorHandle read_or_fail(const std::string& body) {
  Result<TensorHandle> handle = read(body);
  if (!handle) {
    ADD_FAILURE() << handle.error().detail;
    return {};
  }
  return std::move(handle).value();
}

const SharedSegmentHandle& segment_of(const TensorHandle& handle) {
  return std::get<SharedSegmentHandle>(handle.memory);
}

const CudaMemoryHandle& cuda_of(const TensorHandle& handle) {
  return std::get<CudaMemoryHandle>(handle.memory);
}

TEST(RecordedPickle, OfASharedSegmentIsRead) {
  const TensorHandle handle = read_or_fail(from_hex(recorded("handles").at(0).at("pickle")));
  EXPECT_EQ(segment_of(handle).name, "/lmcache_kv_4242_0");
  EXPECT_EQ(segment_of(handle).bytes, 3072U);
  EXPECT_EQ(handle.tensor.dtype, Dtype::kBfloat16);
  EXPECT_EQ(handle.tensor.shape, (std::vector<std::int64_t>{2, 12, 2, 8, 4}));
  EXPECT_EQ(handle.tensor.stride, (std::vector<std::int64_t>{768, 64, 32, 4, 1}));
  EXPECT_EQ(handle.storage_offset, 0);
  EXPECT_EQ(handle.device_uuid, "cpu");
}

TEST(RecordedPickle, OfAnEmptyTensorHasNoSegment) {
  const TensorHandle handle = read_or_fail(from_hex(recorded("handles").at(1).at("pickle")));
  EXPECT_EQ(segment_of(handle).name, "");
  EXPECT_EQ(segment_of(handle).bytes, 0U);
}

TEST(RecordedPickle, OfACudaStorageIsRead) {
  const TensorHandle handle = read_or_fail(from_hex(recorded("handles").at(2).at("pickle")));
  EXPECT_EQ(cuda_of(handle).block, ipc_handle(0));
  EXPECT_EQ(cuda_of(handle).storage_bytes, 52428800U);
  EXPECT_EQ(cuda_of(handle).block_offset, 2097152U);
  ASSERT_TRUE(cuda_of(handle).counter);
  EXPECT_EQ(cuda_of(handle).counter->file_name, "/torch_1234_987654321_0");
  EXPECT_EQ(cuda_of(handle).counter->index, 7U);
  EXPECT_FALSE(cuda_of(handle).ready);
  EXPECT_EQ(handle.device_uuid, kUuid);
  EXPECT_EQ(handle.tensor.dtype, Dtype::kBfloat16);
}

TEST(RecordedPickle, OfAViewBeyondItsStorageIsRefused) {
  const Result<TensorHandle> handle = read(from_hex(recorded("handles").at(3).at("pickle")));
  ASSERT_FALSE(handle);
  EXPECT_EQ(handle.error().code, Code::kInvalid);
}

TEST(RecordedPickle, OfACudaAllocationIsRead) {
  const TensorHandle handle = read_or_fail(from_hex(recorded("handles").at(4).at("pickle")));
  EXPECT_EQ(cuda_of(handle).block, ipc_handle(0));
  EXPECT_EQ(cuda_of(handle).storage_bytes, 8589934592U);
  EXPECT_EQ(cuda_of(handle).block_offset, 0U);
  EXPECT_FALSE(cuda_of(handle).counter);
  EXPECT_FALSE(cuda_of(handle).ready);
}

std::string recorded_map(const std::string& name) {
  for (const Json& map : recorded("handle_maps")) {
    if (map.at("name") == name) {
      return from_hex(map.at("map"));
    }
  }
  ADD_FAILURE() << name;
  return "";
}

TEST(RecordedMap, OfASharedSegmentIsRead) {
  const TensorHandle handle = read_or_fail(recorded_map("cpu_shm"));
  EXPECT_EQ(segment_of(handle).name, "/lmcache_kv_4242_0");
  EXPECT_EQ(segment_of(handle).bytes, 3072U);
  EXPECT_EQ(handle.tensor.stride, (std::vector<std::int64_t>{768, 64, 32, 4, 1}));
  EXPECT_EQ(segment_of(read_or_fail(recorded_map("cpu_shm_empty"))).name, "");
}

TEST(RecordedMap, OfACudaStorageIsRead) {
  const TensorHandle plain = read_or_fail(recorded_map("cuda"));
  EXPECT_EQ(cuda_of(plain).block, ipc_handle(0));
  EXPECT_EQ(cuda_of(plain).counter.value().file_name, "/torch_1234_987654321_0");
  EXPECT_FALSE(cuda_of(plain).ready);
  const TensorHandle waiting = read_or_fail(recorded_map("cuda_waits"));
  EXPECT_EQ(cuda_of(waiting).ready.value(), ipc_handle(64));
  EXPECT_FALSE(cuda_of(waiting).counter);
  EXPECT_EQ(waiting.storage_offset, 10);
  EXPECT_EQ(waiting.tensor.dtype, Dtype::kFloat8E4m3fn);
}

TEST(RecordedMap, OfACudaAllocationIsRead) {
  const TensorHandle handle = read_or_fail(recorded_map("cuda_raw"));
  EXPECT_EQ(cuda_of(handle).block, ipc_handle(0));
  EXPECT_EQ(cuda_of(handle).block_offset, 4096U);
  EXPECT_EQ(cuda_of(handle).storage_bytes, 8589934592U);
}

TEST(RecordedMap, OfOtherMemoryIsRefusedByName) {
  for (const std::string name : {"cuda_vmm", "musa", "npu"}) {
    const Result<TensorHandle> handle = read(recorded_map(name));
    ASSERT_FALSE(handle);
    EXPECT_EQ(handle.error().code, Code::kUnsupported);
    EXPECT_NE(handle.error().detail.find(name), std::string::npos);
  }
}

// Writes one value as pickle opcodes or as msgpack.
class Form {
 public:
  explicit Form(bool is_pickle) : is_pickle_(is_pickle) {}

  bool is_pickle() const { return is_pickle_; }

  std::string text(const std::string& text) const {
    return is_pickle_ ? "\x8c" + one_byte(text.size()) + text
                      : written([&](MsgpackWriter& to) { to.write_string(text); });
  }

  std::string bytes(const std::string& bytes) const {
    return is_pickle_ ? "C" + one_byte(bytes.size()) + bytes : written([&](MsgpackWriter& to) {
      to.write_binary(std::as_bytes(std::span(bytes)));
    });
  }

  std::string number(std::int64_t number) const {
    if (!is_pickle_) {
      return written([&](MsgpackWriter& to) { to.write_int(number); });
    }
    std::string little_endian(sizeof(number), '\0');
    std::memcpy(little_endian.data(), &number, sizeof(number));
    return "\x8a\x08" + little_endian;
  }

  std::string flag(bool flag) const {
    return is_pickle_ ? (flag ? "\x88" : "\x89")
                      : written([&](MsgpackWriter& to) { to.write_bool(flag); });
  }

  std::string none() const { return is_pickle_ ? "N" : "\xc0"; }

  std::string dtype(const std::string& name) const {
    return is_pickle_ ? text("torch") + text(name) + "\x93" : text(name);
  }

  std::string tuple(const std::vector<std::string>& items) const {
    std::string joined;
    for (const std::string& item : items) {
      joined += item;
    }
    return is_pickle_
               ? "(" + joined + "t"
               : written([&](MsgpackWriter& to) { to.write_array_header(items.size()); }) + joined;
  }

  std::string ints(const std::vector<std::int64_t>& numbers) const {
    std::vector<std::string> items;
    for (const std::int64_t each : numbers) {
      items.push_back(number(each));
    }
    return tuple(items);
  }

  using Fields = std::vector<std::pair<std::string, std::string>>;

  std::string map(const Fields& fields) const {
    std::string joined;
    for (const auto& [name, value] : fields) {
      joined += text(name) + value;
    }
    return is_pickle_
               ? "}(" + joined + "u"
               : written([&](MsgpackWriter& to) { to.write_map_header(fields.size()); }) + joined;
  }

 private:
  static std::string one_byte(std::size_t size) { return {static_cast<char>(size)}; }

  static std::string written(const std::function<void(MsgpackWriter&)>& write) {
    codec::Bytes bytes;
    MsgpackWriter writer(bytes);
    write(writer);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  bool is_pickle_;
};

// 2 x 3 float16 values in 12 bytes, unless a test says otherwise.
struct Tensor {
  std::string dtype = "float16";
  std::vector<std::int64_t> shape = {2, 3};
  std::vector<std::int64_t> stride = {3, 1};
  std::int64_t offset = 0;
  std::string device = "cpu";
};

std::string object(const Form& form,
                   const std::pair<std::string, std::string>& class_and_type,
                   const Tensor& tensor,
                   Form::Fields fields) {
  const Form::Fields metadata = {{"dtype", form.dtype(tensor.dtype)},
                                 {"shape", form.ints(tensor.shape)},
                                 {"stride", form.ints(tensor.stride)},
                                 {"storage_offset", form.number(tensor.offset)},
                                 {"device_uuid", form.text(tensor.device)}};
  if (form.is_pickle()) {
    fields.insert(fields.end(), metadata.begin(), metadata.end());
    return "\x80\x04" + form.text("some.module") + form.text(class_and_type.first) + "\x93)\x81" +
           form.map(fields) + "b.";
  }
  fields.emplace_back("type", form.text(class_and_type.second));
  fields.emplace_back("version", form.number(1));
  fields.emplace_back("metadata", form.map(metadata));
  return form.map(fields);
}

struct Segment {
  Tensor tensor = {};
  std::string name = "/lmcache_kv_1_0";
  std::int64_t bytes = 12;

  std::string in(const Form& form) const {
    return object(form,
                  {"CpuShmTensorWrapper", "cpu_shm"},
                  tensor,
                  {{"shm_name", form.text(name)}, {"nbytes", form.number(bytes)}});
  }
};

struct Storage {
  Tensor tensor = {.device = kUuid};
  std::optional<std::string> block = "\x02" + ("c" + counted(0));
  std::int64_t bytes = 12;
  std::int64_t offset = 512;
  std::optional<std::string> counter_name = "/torch_1_2_3";
  std::int64_t counter_index = 4;
  std::optional<std::string> event = std::string(kIpcHandleBytes, '\0');
  bool must_wait = false;

  std::string in(const Form& form) const {
    const auto optional = [&form](const std::optional<std::string>& value) {
      return value ? form.bytes(*value) : form.none();
    };
    const std::string handle = form.tuple({form.number(0),
                                           optional(block),
                                           form.number(bytes),
                                           form.number(offset),
                                           optional(counter_name),
                                           form.number(counter_index),
                                           optional(event),
                                           form.flag(must_wait)});
    return object(form, {"CudaIPCWrapper", "cuda"}, tensor, {{"handle", handle}});
  }
};

struct Allocation {
  Tensor tensor = {.device = kUuid};
  std::string handle = counted(0);
  std::int64_t bytes = 12;
  std::int64_t offset = 512;

  std::string in(const Form& form) const {
    const bool old = form.is_pickle();
    return object(form,
                  {"RawCudaIPCWrapper", "cuda_raw"},
                  tensor,
                  {{old ? "_ipc_handle_reserved" : "ipc_handle", form.bytes(handle)},
                   {old ? "_nbytes" : "nbytes", form.number(bytes)},
                   {old ? "_alloc_offset" : "alloc_offset", form.number(offset)}});
  }
};

class Handle : public testing::TestWithParam<bool> {
 protected:
  template <typename Written>
  TensorHandle accepted(const Written& written) const {
    return read_or_fail(written.in(form_));
  }

  template <typename Written>
  void expect_refused(const Written& written, Code code) const {
    const Result<TensorHandle> handle = read(written.in(form_));
    ASSERT_FALSE(handle);
    EXPECT_EQ(handle.error().code, code) << handle.error().detail;
  }

  Form form_{GetParam()};
};

TEST_P(Handle, OfASegmentIsRead) {
  const TensorHandle handle = accepted(Segment{.tensor = {.offset = 2}, .bytes = 16});
  EXPECT_EQ(segment_of(handle).name, "/lmcache_kv_1_0");
  EXPECT_EQ(segment_of(handle).bytes, 16U);
  EXPECT_EQ(handle.storage_offset, 2);
  EXPECT_EQ(handle.tensor.shape, (std::vector<std::int64_t>{2, 3}));
}

TEST_P(Handle, NamesOneSegmentAndNoOtherPlace) {
  EXPECT_EQ(segment_of(accepted(Segment{.name = "/" + std::string(254, 'x')})).name.size(), 255U);
  for (const std::string& name : {std::string(""),
                                  std::string("/"),
                                  std::string("x"),
                                  std::string("/../etc/passwd"),
                                  std::string("/a/b"),
                                  std::string("//a"),
                                  std::string("/a\0b", 4)}) {
    expect_refused(Segment{.name = name}, Code::kInvalid);
  }
}

TEST_P(Handle, NeedsNoNameForNoBytes) {
  const TensorHandle handle =
      accepted(Segment{.tensor = {.shape = {0, 3}}, .name = "../of no interest", .bytes = 0});
  EXPECT_EQ(segment_of(handle).name, "");
}

TEST_P(Handle, IsOfATensorInsideItsMemory) {
  EXPECT_EQ(segment_of(accepted(Segment{.tensor = {.stride = {9, 1}}, .bytes = 24})).bytes, 24U);
  expect_refused(Segment{.bytes = 11}, Code::kInvalid);
  expect_refused(Segment{.tensor = {.offset = 1}}, Code::kInvalid);
  expect_refused(Segment{.tensor = {.stride = {4, 1}}}, Code::kInvalid);
  expect_refused(Segment{.bytes = 0}, Code::kInvalid);
  expect_refused(Segment{.bytes = -1}, Code::kInvalid);
  expect_refused(Storage{.bytes = 11}, Code::kInvalid);
  expect_refused(Allocation{.bytes = 11}, Code::kInvalid);
}

TEST_P(Handle, IsOfSizesThatCanBeCounted) {
  expect_refused(Segment{.tensor = {.offset = -1}}, Code::kInvalid);
  expect_refused(Segment{.tensor = {.shape = {2, -3}}}, Code::kInvalid);
  expect_refused(Segment{.tensor = {.stride = {-3, 1}}}, Code::kInvalid);
  expect_refused(Segment{.tensor = {.stride = {3}}}, Code::kInvalid);
  expect_refused(Segment{.tensor = {.shape = {kHuge, kHuge}}, .bytes = kHuge}, Code::kTooLarge);
  expect_refused(Segment{.tensor = {.offset = kHuge}, .bytes = kHuge}, Code::kTooLarge);
  const std::vector<std::int64_t> nine(9, 1);
  expect_refused(Segment{.tensor = {.shape = nine, .stride = nine}}, Code::kTooLarge);
  expect_refused(Storage{.offset = -1}, Code::kInvalid);
  expect_refused(Storage{.bytes = -1}, Code::kInvalid);
  expect_refused(Storage{.bytes = kHuge, .offset = kHuge}, Code::kInvalid);
  expect_refused(Allocation{.offset = -1}, Code::kInvalid);
  expect_refused(Allocation{.bytes = kHuge, .offset = 1}, Code::kInvalid);
}

TEST_P(Handle, IsOfAKnownDtype) {
  EXPECT_EQ(accepted(Segment{.tensor = {.dtype = "float8_e5m2"}}).tensor.dtype, Dtype::kFloat8E5m2);
  expect_refused(Segment{.tensor = {.dtype = "qint8"}}, Code::kUnsupported);
}

TEST_P(Handle, OfACudaStorageIsRead) {
  const TensorHandle handle = accepted(Storage{});
  EXPECT_EQ(cuda_of(handle).block, ipc_handle(0));
  EXPECT_EQ(cuda_of(handle).block_offset, 512U);
  EXPECT_EQ(cuda_of(handle).storage_bytes, 12U);
  EXPECT_EQ(cuda_of(handle).counter.value().file_name, "/torch_1_2_3");
  EXPECT_EQ(cuda_of(handle).counter.value().index, 4U);
  EXPECT_FALSE(cuda_of(handle).ready);
}

TEST_P(Handle, OfABlockHasTheFormOfAnyReleaseOfTorch) {
  EXPECT_EQ(cuda_of(accepted(Storage{.block = counted(0)})).block, ipc_handle(0));
  EXPECT_EQ(cuda_of(accepted(Storage{.block = "\x01" + ("c" + counted(0))})).block, ipc_handle(0));
  for (const std::string& block :
       {std::string(), std::string("\x02"), "\x02" + counted(0), "\x02x" + counted(0)}) {
    expect_refused(Storage{.block = block}, Code::kUnsupported);
  }
  expect_refused(Storage{.block = std::nullopt}, Code::kInvalid);
}

TEST_P(Handle, OfAnExpandableSegmentIsRefusedByName) {
  for (const std::string& block : {"\x02" + ("e" + counted(0)),
                                   std::string("\x02"
                                               "e12345")}) {
    const Result<TensorHandle> handle = read(Storage{.block = block}.in(form_));
    ASSERT_FALSE(handle);
    EXPECT_EQ(handle.error().code, Code::kUnsupported);
    EXPECT_NE(handle.error().detail.find("expandable"), std::string::npos);
  }
}

TEST_P(Handle, OfAnEmptyStorageHasNoBlock) {
  const TensorHandle handle = accepted(Storage{.tensor = {.shape = {0, 3}, .device = kUuid},
                                               .block = std::nullopt,
                                               .bytes = 0,
                                               .counter_name = std::nullopt,
                                               .event = std::nullopt});
  EXPECT_EQ(cuda_of(handle).storage_bytes, 0U);
}

TEST_P(Handle, WaitsForAnEventOnlyWhenItSaysSo) {
  const TensorHandle handle = accepted(Storage{.event = counted(9), .must_wait = true});
  EXPECT_EQ(cuda_of(handle).ready.value(), ipc_handle(9));
  EXPECT_FALSE(cuda_of(accepted(Storage{.event = counted(9)})).ready);
  expect_refused(Storage{.event = std::nullopt, .must_wait = true}, Code::kInvalid);
  expect_refused(Storage{.event = "short", .must_wait = true}, Code::kInvalid);
}

TEST_P(Handle, MayHaveNoCounterButNotOneThatLeadsElsewhere) {
  EXPECT_FALSE(cuda_of(accepted(Storage{.counter_name = std::nullopt})).counter);
  EXPECT_FALSE(cuda_of(accepted(Storage{.counter_name = ""})).counter);
  expect_refused(Storage{.counter_name = "/../x"}, Code::kInvalid);
  expect_refused(Storage{.counter_index = -1}, Code::kInvalid);
}

TEST_P(Handle, OfACudaAllocationIsRead) {
  const TensorHandle handle = accepted(Allocation{});
  EXPECT_EQ(cuda_of(handle).block, ipc_handle(0));
  EXPECT_EQ(cuda_of(handle).block_offset, 512U);
  EXPECT_EQ(cuda_of(handle).storage_bytes, 12U);
  expect_refused(Allocation{.handle = counted(0) + "x"}, Code::kInvalid);
  expect_refused(Allocation{.handle = ""}, Code::kInvalid);
}

TEST_P(Handle, NamesItsCudaDeviceInOneWay) {
  EXPECT_EQ(accepted(Allocation{.tensor = {.device = "GPU-0B3B7F2A-0000-1111-2222-33334444555A"}})
                .device_uuid,
            "0b3b7f2a-0000-1111-2222-33334444555a");
  for (const std::string& device :
       {std::string(), std::string("cpu"), kUuid + "0", "x" + kUuid.substr(1), kUuid.substr(1)}) {
    expect_refused(Allocation{.tensor = {.device = device}}, Code::kInvalid);
  }
}

TEST_P(Handle, IsRefusedWhereverItIsCut) {
  for (const std::string& body :
       {Segment{}.in(form_), Storage{.must_wait = true}.in(form_), Allocation{}.in(form_)}) {
    for (std::size_t size = 0; size < body.size(); ++size) {
      EXPECT_FALSE(read(body.substr(0, size))) << size;
    }
    EXPECT_FALSE(read(body + "x"));
  }
}

TEST_P(Handle, IsNotLargerThanItsLimit) {
  const Result<TensorHandle> handle = read(Segment{}.in(form_) + std::string(1U << 16U, 'x'));
  ASSERT_FALSE(handle);
  EXPECT_EQ(handle.error().code, Code::kTooLarge);
}

INSTANTIATE_TEST_SUITE_P(In, Handle, testing::Bool(), [](const auto& form) {
  return std::string(form.param ? "Pickle" : "Map");
});

std::string pickle_of(const std::string& class_name, const Form::Fields& fields) {
  return object(Form(true), {class_name, ""}, {}, fields);
}

TEST(HandlePickle, OfOtherMemoryIsRefusedByName) {
  for (const std::string name : {"VmmCudaIPCWrapper", "MusaIPCWrapper", "NpuIPCWrapper"}) {
    const Result<TensorHandle> handle = read(pickle_of(name, {}));
    ASSERT_FALSE(handle);
    EXPECT_EQ(handle.error().code, Code::kUnsupported);
    EXPECT_NE(handle.error().detail.find(name), std::string::npos);
  }
}

TEST(HandlePickle, OfAnythingElseIsRefused) {
  const Form form(true);
  EXPECT_EQ(read(pickle_of("system", {})).error().code, Code::kUnsupported);
  EXPECT_FALSE(read("\x80\x04N."));
  EXPECT_FALSE(read("\x80\x04" + form.map({}) + "."));
  EXPECT_FALSE(read("\x80\x04" + form.text("m") + form.text("CpuShmTensorWrapper") + "\x93)\x81."));
  EXPECT_FALSE(read("\x80\x04" + form.dtype("float16") + ")\x81" + form.map({}) + "b."));
}

TEST(HandlePickle, LacksNoAttributeAndMayHaveOthers) {
  const Form form(true);
  const Form::Fields complete = {{"shm_name", form.text("/x")},
                                 {"nbytes", form.number(12)},
                                 {"handle", form.none()},
                                 {"_opens", form.ints({1})}};
  EXPECT_TRUE(read(pickle_of("CpuShmTensorWrapper", complete)));
  EXPECT_FALSE(read(pickle_of("CpuShmTensorWrapper", {complete[0]})));
  EXPECT_FALSE(read(pickle_of("CpuShmTensorWrapper", {complete[1]})));
  EXPECT_FALSE(read(pickle_of("CpuShmTensorWrapper", {complete[0], {"nbytes", form.none()}})));
  EXPECT_FALSE(read(pickle_of("CudaIPCWrapper", complete)));
  EXPECT_FALSE(read(pickle_of("CudaIPCWrapper", {{"handle", form.ints({1, 2, 3})}})));
}

TEST(HandlePickle, OfAnAllocationBefore055HasNoOffset) {
  const Form form(true);
  const Form::Fields fields = {{"_ipc_handle_reserved", form.bytes(counted(0))},
                               {"_nbytes", form.number(12)}};
  const std::string body = object(form, {"RawCudaIPCWrapper", ""}, {.device = kUuid}, fields);
  EXPECT_EQ(cuda_of(read_or_fail(body)).block_offset, 0U);
}

Form::Fields segment_map_fields() {
  const Form form(false);
  return {{"type", form.text("cpu_shm")},
          {"version", form.number(1)},
          {"shm_name", form.text("/x")},
          {"nbytes", form.number(12)},
          {"metadata",
           form.map({{"dtype", form.text("float16")},
                     {"shape", form.ints({2, 3})},
                     {"stride", form.ints({3, 1})},
                     {"storage_offset", form.number(0)},
                     {"device_uuid", form.text("cpu")}})}};
}

TEST(HandleMap, HasAllOfItsFieldsAndNoOthers) {
  const Form form(false);
  const Form::Fields complete = segment_map_fields();
  EXPECT_TRUE(read(form.map(complete)));
  for (std::size_t i = 0; i < complete.size(); ++i) {
    Form::Fields fields = complete;
    fields.erase(fields.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_FALSE(read(form.map(fields))) << complete[i].first;
  }
  Form::Fields fields = complete;
  fields.emplace_back("more", form.number(1));
  EXPECT_FALSE(read(form.map(fields)));
}

TEST(HandleMap, IsOfVersionOne) {
  const Form form(false);
  Form::Fields fields = segment_map_fields();
  fields[1].second = form.number(2);
  const Result<TensorHandle> handle = read(form.map(fields));
  ASSERT_FALSE(handle);
  EXPECT_EQ(handle.error().code, Code::kUnsupported);
}

TEST(HandleMap, OfAnUnknownKindIsRefused) {
  const Form form(false);
  Form::Fields fields = segment_map_fields();
  fields[0].second = form.text("xpu");
  EXPECT_EQ(read(form.map(fields)).error().code, Code::kUnsupported);
  fields[0].second = form.number(3);
  EXPECT_EQ(read(form.map(fields)).error().code, Code::kMalformed);
}

TEST(HandleBody, IsAPickleOrAMap) {
  EXPECT_EQ(read("").error().code, Code::kMalformed);
  EXPECT_EQ(read("\x80").error().code, Code::kMalformed);
  EXPECT_EQ(read("\x93\x01\x02\x03").error().code, Code::kMalformed);
  EXPECT_EQ(read("text").error().code, Code::kMalformed);
}

}  // namespace
}  // namespace larder::devices
