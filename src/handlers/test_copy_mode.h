// test_copy_mode.h - for tests: what a copy-mode client of 0.5.2 sends, by hand.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "handlers/test_services.h"
#include "protocol/requests.h"
#include "tensors/tensor_pickle.h"

namespace larder::handlers {

inline protocol::RegisterEngineDrivenRequest registration_of(std::uint64_t instance,
                                                             std::int64_t hidden) {
  protocol::RegisterEngineDrivenRequest request;
  request.instance_id = instance;
  request.model_name = "model";
  request.world_size = 1;
  request.block_size = kTestChunkTokens;
  request.num_layers = 1;
  request.hidden_dim_size = hidden;
  request.dtype_name = "float16";
  return request;
}

// Of each object of that registration.
inline std::size_t object_bytes_of(std::int64_t hidden) {
  constexpr std::size_t kKeysAndValues = 2;
  constexpr std::size_t kItemBytes = 2;
  return kKeysAndValues * kTestChunkTokens * static_cast<std::size_t>(hidden) * kItemBytes;
}

inline protocol::Key key_of(const std::string& request, std::uint32_t prompt, std::size_t chunks) {
  protocol::Key key;
  key.model_name = "model";
  key.world_size = 1;
  key.worker_id = 0;
  for (std::size_t i = 0; i < chunks * kTestChunkTokens; ++i) {
    key.token_ids.push_back(prompt * 1000 + static_cast<std::uint32_t>(i));
  }
  key.end = static_cast<std::int64_t>(key.token_ids.size());
  key.request_id = request;
  return key;
}

inline std::vector<std::byte> packed(const protocol::Key& key) {
  codec::Bytes written;
  codec::MsgpackWriter writer(written);
  writer.write_map_header(8);
  writer.write_string("model_name");
  writer.write_string(key.model_name);
  writer.write_string("world_size");
  writer.write_int(key.world_size);
  writer.write_string("worker_id");
  writer.write_int(*key.worker_id);
  writer.write_string("token_ids");
  writer.write_array_header(key.token_ids.size());
  for (const std::uint32_t token : key.token_ids) {
    writer.write_int(token);
  }
  writer.write_string("start");
  writer.write_int(key.start);
  writer.write_string("end");
  writer.write_int(key.end);
  writer.write_string("request_id");
  writer.write_string(key.request_id);
  writer.write_string("cache_salt");
  writer.write_string("");
  return bytes_of(written);
}

inline std::vector<std::byte> binary(std::span<const std::byte> bytes) {
  codec::Bytes written;
  codec::MsgpackWriter(written).write_binary(bytes);
  return bytes_of(written);
}

using Objects = std::vector<std::vector<std::byte>>;

inline Objects objects_of(std::uint32_t prompt, std::size_t chunks, std::size_t object_bytes) {
  Objects objects(chunks, std::vector<std::byte>(object_bytes));
  std::mt19937 random(prompt);
  for (std::vector<std::byte>& object : objects) {
    for (std::byte& byte : object) {
      byte = static_cast<std::byte>(random());
    }
  }
  return objects;
}

// As clients pickle: each tensor with a storage of its own.
inline std::vector<std::byte> list_of(const tensors::Layout& layout, const Objects& objects) {
  constexpr std::size_t kFront = 4;  // "\x80\x04]("
  constexpr std::size_t kBack = 2;   // "e."
  codec::Bytes list;
  for (const std::vector<std::byte>& object : objects) {
    codec::Bytes one;
    const std::span<const std::byte> bytes(object);
    tensors::write_tensor_list(layout, {&bytes, 1}, one);
    if (!list.empty()) {
      list.resize(list.size() - kBack);
      one.erase(one.begin(), one.begin() + kFront);
    }
    list.insert(list.end(), one.begin(), one.end());
  }
  return bytes_of(list);
}

}  // namespace larder::handlers
