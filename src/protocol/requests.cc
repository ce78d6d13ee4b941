#include "protocol/requests.h"

#include <array>

namespace larder::protocol {
namespace {

using codec::MsgpackReader;
using codec::MsgpackType;

constexpr std::int8_t kDeviceMemoryExt = 1;

Result<void> read_int_array(MsgpackReader& reader, std::vector<std::int64_t>& to) {
  to.clear();
  return read_array(reader, [&to](MsgpackReader& element) -> Result<void> {
    const Result<std::int64_t> value = field_int(element);
    if (!value) {
      return value.error();
    }
    to.push_back(*value);
    return {};
  });
}

// Flat in 0.4.5 and 0.4.6, one list per group since.
Result<BlockIds> whole_block_ids(Frame frame, Release release) {
  return read_whole(frame, [release](MsgpackReader& reader) -> Result<BlockIds> {
    BlockIds groups;
    Result<void> read;
    if (release < Release::k047) {
      read = read_int_array(reader, groups.emplace_back());
    } else {
      read = read_array(reader, [&groups](MsgpackReader& group) {
        return read_int_array(group, groups.emplace_back());
      });
    }
    return read ? Result<BlockIds>(std::move(groups)) : read.error();
  });
}

Result<std::vector<std::span<const std::byte>>> whole_tensors(Frame frame) {
  using Tensors = std::vector<std::span<const std::byte>>;
  return read_whole(frame, [](MsgpackReader& reader) -> Result<Tensors> {
    Tensors tensors;
    const Result<void> read =
        read_array(reader, [&tensors](MsgpackReader& element) -> Result<void> {
          const Result<codec::MsgpackExt> ext = element.read_ext();
          if (!ext) {
            return ext.error();
          }
          if (ext->type != kDeviceMemoryExt) {
            return Error{Code::kMalformed, "unknown ext type"};
          }
          tensors.push_back(ext->body);
          return {};
        });
    return read ? Result<Tensors>(std::move(tensors)) : read.error();
  });
}

Result<std::string> whole_engine_type(Frame frame, Release release) {
  const Result<std::string_view> name = whole_string(frame);
  if (!name) {
    return name.error();
  }
  constexpr std::array<std::string_view, 5> kNames{"vllm", "sglang", "trtllm", "mock", "atom"};
  const std::size_t known = release >= Release::k055 ? kNames.size() : kNames.size() - 1;
  for (std::size_t i = 0; i < known; ++i) {
    if (*name == kNames[i]) {
      return std::string(*name);
    }
  }
  return Error{Code::kMalformed, "engine type"};
}

bool is_kv_layout(std::string_view text, Release release) {
  if (text == "NHD" || text == "HND") {
    return true;
  }
  return release >= Release::k055 && (text == "BLHNC" || text == "BLNHC");
}

// A typed dict: known keys are checked, unknown ones skipped.
Result<void> read_layout_hint(std::string_view name,
                              MsgpackReader& reader,
                              Release release,
                              std::string& kv_layout) {
  if (name == "kv_layout") {
    Result<std::string> text = field_string(reader);
    if (!text || !is_kv_layout(*text, release)) {
      return Error{Code::kMalformed, "kv_layout"};
    }
    kv_layout = std::move(*text);
    return {};
  }
  if (name == "num_kv_heads" || name == "tokens_per_block" || name == "head_dim" ||
      (name == "inference_engine_logical_block_size" && release < Release::k047)) {
    std::int64_t ignored = 0;
    return assign(ignored, field_int(reader));
  }
  if (name == "kv_list_layout" && release >= Release::k055) {
    const Result<std::string> text = field_string(reader);
    if (!text || (*text != "k_v" && !(*text == "unified" && release >= Release::k056))) {
      return Error{Code::kMalformed, "kv_list_layout"};
    }
    return {};
  }
  return reader.skip();
}

Result<std::string> whole_layout_hints(Frame frame, Release release) {
  return read_whole(frame, [release](MsgpackReader& reader) -> Result<std::string> {
    std::string kv_layout;
    const Result<void> read = read_map(reader, [&](std::string_view name, MsgpackReader& value) {
      return read_layout_hint(name, value, release, kv_layout);
    });
    return read ? Result<std::string>(std::move(kv_layout)) : read.error();
  });
}

Result<EngineGroup> read_group(MsgpackReader& reader, Release release) {
  EngineGroup group;
  bool has_id = false;
  const Result<void> read =
      read_map(reader, [&](std::string_view name, MsgpackReader& value) -> Result<void> {
        if (name == "engine_group_id") {
          has_id = true;
          return assign(group.engine_group_id, field_int(value));
        }
        if (name == "layer_indices") {
          return read_int_array(value, group.layer_indices);
        }
        if (name == "tokens_per_block") {
          return assign(group.tokens_per_block, field_int(value));
        }
        if (name == "sw_size_tokens") {
          return assign(group.sliding_window_tokens, field_int(value));
        }
        if (name == "extra_object_group_tag" && release >= Release::k055) {
          std::int64_t ignored = 0;
          return assign(ignored, field_int(value));
        }
        if (name == "recurrent_state" && release >= Release::k055) {
          bool ignored = false;
          return assign(ignored, value.read_bool());
        }
        return value.skip();
      });
  if (!read) {
    return read.error();
  }
  return has_id ? Result<EngineGroup>(std::move(group))
                : Error{Code::kMalformed, "engine_group_id is missing"};
}

Result<std::vector<EngineGroup>> whole_groups(Frame frame, Release release) {
  using Groups = std::vector<EngineGroup>;
  return read_whole(frame, [release](MsgpackReader& reader) -> Result<Groups> {
    Groups groups;
    const Result<void> read = read_array(reader, [&](MsgpackReader& element) -> Result<void> {
      return assign(groups.emplace_back(), read_group(element, release));
    });
    return read ? Result<Groups>(std::move(groups)) : read.error();
  });
}

Result<void> read_allocation_record(MsgpackReader& reader) {
  int seen = 0;
  const Result<void> read =
      read_map(reader, [&seen](std::string_view name, MsgpackReader& value) -> Result<void> {
        std::vector<std::int64_t> ids;
        std::string text;
        if (name == "req_id") {
          seen |= 1;
          return assign(text, field_string(value));
        }
        if (name == "new_block_ids") {
          seen |= 2;
          return read_int_array(value, ids);
        }
        if (name == "new_token_ids") {
          seen |= 4;
          return read_int_array(value, ids);
        }
        return value.skip();
      });
  if (!read) {
    return read;
  }
  return seen == 7 ? Result<void>() : Error{Code::kMalformed, "a field of the record is missing"};
}

// The eight required fields of the engine-driven registration, as bits.
class RegistrationFields {
 public:
  RegistrationFields(RegisterEngineDrivenRequest& to, Release release)
      : to_(to), release_(release) {}

  Result<void> operator()(std::string_view name, MsgpackReader& reader) {
    if (name == "instance_id") {
      return seen(0, read_id(reader));
    }
    if (name == "model_name") {
      return seen(1, assign(to_.model_name, field_name(reader)));
    }
    if (name == "world_size") {
      return seen(2, assign(to_.world_size, field_int(reader)));
    }
    if (name == "block_size") {
      return seen(3, assign(to_.block_size, field_int(reader)));
    }
    if (name == "num_layers") {
      return seen(4, assign(to_.num_layers, field_int(reader)));
    }
    if (name == "hidden_dim_size") {
      return seen(5, assign(to_.hidden_dim_size, field_int(reader)));
    }
    if (name == "dtype_str") {
      return seen(6, assign(to_.dtype_name, field_string(reader)));
    }
    if (name == "use_mla") {
      return seen(7, assign(to_.use_mla, reader.read_bool()));
    }
    if (name == "num_physical_slots" && release_ >= Release::k055) {
      return assign(to_.num_physical_slots, field_optional_int(reader));
    }
    return reader.skip();
  }

  bool complete() const { return seen_ == 0xFFU; }

 private:
  Result<void> read_id(MsgpackReader& reader) {
    const Result<codec::MsgpackInt> id = reader.read_int();
    if (!id) {
      return id.error();
    }
    to_.instance_id = id->bits;
    return {};
  }

  Result<void> seen(unsigned bit, Result<void> read) {
    seen_ |= 1U << bit;
    return read;
  }

  RegisterEngineDrivenRequest& to_;
  Release release_;
  unsigned seen_ = 0;
};

}  // namespace

Result<EmptyRequest> EmptyRequest::decode(Frames frames, Release) {
  const Result<void> counted = expect_count(frames, 0);
  return counted ? Result<EmptyRequest>(EmptyRequest{}) : counted.error();
}

Result<ClearRequest> ClearRequest::decode(Frames frames, Release release) {
  ClearRequest request;
  const bool has_force = release >= Release::k056;
  if (Result<void> counted = expect_count(frames, has_force ? 1 : 0); !counted) {
    return counted.error();
  }
  if (has_force) {
    if (Result<void> read = assign(request.force, whole_bool(frames[0], release)); !read) {
      return read.error();
    }
  }
  return request;
}

Result<PingRequest> PingRequest::decode(Frames frames, Release release) {
  PingRequest request;
  const bool has_instance = release >= Release::k050;
  if (Result<void> counted = expect_count(frames, has_instance ? 1 : 0); !counted) {
    return counted.error();
  }
  if (has_instance) {
    if (Result<void> read = assign(request.instance_id, whole_optional_id(frames[0])); !read) {
      return read.error();
    }
  }
  return request;
}

Result<InstanceRequest> InstanceRequest::decode(Frames frames, Release release) {
  InstanceRequest request;
  Result<void> read = expect_count(frames, 1);
  if (read) {
    read = assign(request.instance_id, whole_id(frames[0], release));
  }
  return read ? Result<InstanceRequest>(request) : read.error();
}

Result<SessionRequest> SessionRequest::decode(Frames frames, Release) {
  SessionRequest request;
  Result<void> read = expect_count(frames, 1);
  if (read) {
    read = assign(request.request_id, whole_name(frames[0]));
  }
  return read ? Result<SessionRequest>(std::move(request)) : read.error();
}

Result<WaitRequest> WaitRequest::decode(Frames frames, Release) {
  WaitRequest request;
  Result<void> read = expect_count(frames, 2);
  if (read) {
    read = assign(request.request_id, whole_name(frames[0]));
  }
  if (read) {
    read = assign(request.timeout_s, whole_float(frames[1]));
  }
  return read ? Result<WaitRequest>(std::move(request)) : read.error();
}

Result<LookupRequest> LookupRequest::decode(Frames frames, Release release) {
  LookupRequest request;
  Result<void> read = expect_count(frames, 2);
  if (read) {
    read = assign(request.key, whole_key(frames[0], release));
  }
  if (read) {
    read = assign(request.tp_size, whole_int(frames[1], release));
  }
  return read ? Result<LookupRequest>(std::move(request)) : read.error();
}

Result<TransferRequest> TransferRequest::decode(Frames frames, Release release) {
  TransferRequest request;
  Result<void> read = expect_count(frames, 2);
  if (read) {
    read = assign(request.key, whole_key(frames[0], release));
  }
  if (read) {
    read = assign(request.instance_id, whole_id(frames[1], release));
  }
  return read ? Result<TransferRequest>(std::move(request)) : read.error();
}

Result<CommitStoreRequest> CommitStoreRequest::decode(Frames frames, Release release) {
  CommitStoreRequest request;
  Result<void> read = expect_count(frames, 3);
  if (read) {
    read = assign(request.key, whole_key(frames[0], release));
  }
  if (read) {
    read = assign(request.instance_id, whole_id(frames[1], release));
  }
  if (read) {
    read = assign(request.payload, whole_binary(frames[2]));
  }
  return read ? Result<CommitStoreRequest>(std::move(request)) : read.error();
}

Result<RegisterEngineDrivenRequest> RegisterEngineDrivenRequest::decode(Frames frames,
                                                                        Release release) {
  if (Result<void> counted = expect_count(frames, 1); !counted) {
    return counted.error();
  }
  return read_whole(
      frames[0], [release](MsgpackReader& reader) -> Result<RegisterEngineDrivenRequest> {
        RegisterEngineDrivenRequest request;
        RegistrationFields fields(request, release);
        const Result<void> read = read_map(
            reader,
            [&fields](std::string_view name, MsgpackReader& value) { return fields(name, value); });
        if (!read) {
          return read.error();
        }
        if (!fields.complete()) {
          return Error{Code::kMalformed, "a required field of the registration is missing"};
        }
        return request;
      });
}

Result<StoreRequest> StoreRequest::decode(Frames frames, Release release) {
  StoreRequest request;
  Result<void> read = expect_count(frames, 4);
  if (read) {
    read = assign(request.key, whole_key(frames[0], release));
  }
  if (read) {
    read = assign(request.instance_id, whole_id(frames[1], release));
  }
  if (read) {
    read = assign(request.block_ids, whole_block_ids(frames[2], release));
  }
  if (read) {
    read = assign(request.event_handle, whole_binary(frames[3]));
  }
  return read ? Result<StoreRequest>(std::move(request)) : read.error();
}

Result<RetrieveRequest> RetrieveRequest::decode(Frames frames, Release release) {
  RetrieveRequest request;
  Result<void> read = expect_count(frames, 5);
  if (read) {
    read = assign(request.key, whole_key(frames[0], release));
  }
  if (read) {
    read = assign(request.instance_id, whole_id(frames[1], release));
  }
  if (read) {
    read = assign(request.block_ids, whole_block_ids(frames[2], release));
  }
  if (read) {
    read = assign(request.event_handle, whole_binary(frames[3]));
  }
  if (read) {
    read = assign(request.skip_first_n_tokens, whole_int(frames[4], release));
  }
  return read ? Result<RetrieveRequest>(std::move(request)) : read.error();
}

Result<RegisterKvCacheRequest> RegisterKvCacheRequest::decode(Frames frames, Release release) {
  RegisterKvCacheRequest request;
  const bool has_groups = release >= Release::k047;
  Result<void> read = expect_count(frames, has_groups ? 7 : 6);
  if (read) {
    read = assign(request.instance_id, whole_id(frames[0], release));
  }
  if (read) {
    read = assign(request.tensors, whole_tensors(frames[1]));
  }
  if (read) {
    read = assign(request.model_name, whole_name(frames[2]));
  }
  if (read) {
    read = assign(request.world_size, whole_int(frames[3], release));
  }
  if (read) {
    read = assign(request.engine_type, whole_engine_type(frames[4], release));
  }
  if (read) {
    read = assign(request.kv_layout, whole_layout_hints(frames[5], release));
  }
  if (read && has_groups) {
    read = assign(request.groups, whole_groups(frames[6], release));
  }
  return read ? Result<RegisterKvCacheRequest>(std::move(request)) : read.error();
}

Result<BlockAllocationRequest> BlockAllocationRequest::decode(Frames frames, Release release) {
  BlockAllocationRequest request;
  Result<void> read = expect_count(frames, 3);
  if (read) {
    read = assign(request.instance_id, whole_id(frames[0], release));
  }
  if (read) {
    read = assign(request.model_name, whole_name(frames[1]));
  }
  if (read) {
    read = assign(request.record_count,
                  read_whole(frames[2], [](MsgpackReader& reader) -> Result<std::size_t> {
                    std::size_t count = 0;
                    const Result<void> records =
                        read_array(reader, [&count](MsgpackReader& record) {
                          ++count;
                          return read_allocation_record(record);
                        });
                    return records ? Result<std::size_t>(count) : records.error();
                  }));
  }
  return read ? Result<BlockAllocationRequest>(std::move(request)) : read.error();
}

}  // namespace larder::protocol
