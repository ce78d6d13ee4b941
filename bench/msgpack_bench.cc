// Claim: a lookup of 128k tokens is decoded about three times faster by our reader than by
// msgpack-cxx, which is why we keep a reader of our own. Method: the same bytes, an
// eight-key map as LOOKUP carries it, decoded into the same struct; msgpack-cxx unpacks into its
// zone first and is then copied out, as its documentation does it.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <msgpack.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "codec/msgpack_reader.h"
#include "codec/msgpack_writer.h"

namespace {

using larder::codec::Bytes;
using larder::codec::MsgpackReader;
using larder::codec::MsgpackWriter;

struct Key {
  std::string model_name;
  std::int64_t world_size = 0;
  std::int64_t worker_id = -1;
  std::vector<std::uint32_t> token_ids;
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::string request_id;
  std::string cache_salt;

  bool operator==(const Key&) const = default;
};

Bytes encoded_key(std::size_t tokens) {
  constexpr std::uint32_t kVocabulary = 150000;
  std::mt19937_64 random(1);
  Bytes bytes;
  MsgpackWriter writer(bytes);
  writer.write_map_header(8);
  writer.write_string("model_name");
  writer.write_string("an-organisation/a-model-of-some-size");
  writer.write_string("world_size");
  writer.write_int(1);
  writer.write_string("worker_id");
  writer.write_nil();
  writer.write_string("token_ids");
  writer.write_array_header(tokens);
  for (std::size_t i = 0; i < tokens; ++i) {
    writer.write_uint(random() % kVocabulary);
  }
  writer.write_string("start");
  writer.write_int(0);
  writer.write_string("end");
  writer.write_uint(tokens);
  writer.write_string("request_id");
  writer.write_string("cmpl-0123456789abcdef0123456789abcdef-0");
  writer.write_string("cache_salt");
  writer.write_string("");
  return bytes;
}

void read_field(std::string_view name, MsgpackReader& reader, Key& key) {
  bool out_of_range = false;
  if (name == "token_ids") {
    LARDER_CHECK(reader.read_token_array(key.token_ids, out_of_range).has_value() && !out_of_range);
  } else if (name == "model_name") {
    key.model_name = reader.read_string().value();
  } else if (name == "request_id") {
    key.request_id = reader.read_string().value();
  } else if (name == "cache_salt") {
    key.cache_salt = reader.read_string().value();
  } else if (name == "world_size") {
    key.world_size = reader.read_int64().value();
  } else if (name == "start") {
    key.start = reader.read_int64().value();
  } else if (name == "end") {
    key.end = reader.read_int64().value();
  } else {
    LARDER_CHECK(reader.skip().has_value());
  }
}

Key decode_with_reader(const Bytes& bytes) {
  Key key;
  MsgpackReader reader(bytes);
  for (std::size_t pairs = reader.read_map_header().value(); pairs > 0; --pairs) {
    read_field(reader.read_string().value(), reader, key);
  }
  return key;
}

void convert_field(std::string_view name, const msgpack::object& value, Key& key) {
  if (name == "token_ids") {
    value.convert(key.token_ids);
  } else if (name == "model_name") {
    value.convert(key.model_name);
  } else if (name == "request_id") {
    value.convert(key.request_id);
  } else if (name == "cache_salt") {
    value.convert(key.cache_salt);
  } else if (name == "world_size") {
    value.convert(key.world_size);
  } else if (name == "start") {
    value.convert(key.start);
  } else if (name == "end") {
    value.convert(key.end);
  }
}

Key decode_with_msgpack_cxx(const Bytes& bytes) {
  Key key;
  const msgpack::object_handle handle =
      msgpack::unpack(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const msgpack::object_map& map = handle.get().via.map;
  for (std::uint32_t i = 0; i < map.size; ++i) {
    const msgpack::object_str& name = map.ptr[i].key.via.str;
    convert_field(std::string_view(name.ptr, name.size), map.ptr[i].val, key);
  }
  return key;
}

template <Key (*kDecode)(const Bytes&)>
void decode_key(benchmark::State& state) {
  const auto tokens = static_cast<std::size_t>(state.range(0));
  const Bytes bytes = encoded_key(tokens);
  LARDER_CHECK(decode_with_reader(bytes) == decode_with_msgpack_cxx(bytes));
  for (auto _ : state) {
    benchmark::DoNotOptimize(kDecode(bytes));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes.size()));
}

BENCHMARK(decode_key<decode_with_reader>)->Name("decode_key/reader")->Arg(1024)->Arg(128 * 1024);
BENCHMARK(decode_key<decode_with_msgpack_cxx>)
    ->Name("decode_key/msgpack_cxx")
    ->Arg(1024)
    ->Arg(128 * 1024);

}  // namespace
