// The two registrations: engine-driven contexts, and KV caches that the server reads itself.
#include <array>

#include "protocol/payload_sequence.h"
#include "protocol/requests.h"

namespace larder::protocol {
namespace {

using codec::MsgpackReader;

constexpr std::int8_t kDeviceMemoryExt = 1;

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

bool is_kv_list_layout(std::string_view text, Release release) {
  return text == "k_v" || (text == "unified" && release >= Release::k056);
}

std::optional<std::int64_t>* int_hint(std::string_view name, LayoutHints& hints) {
  if (name == "num_kv_heads") {
    return &hints.num_kv_heads;
  }
  if (name == "tokens_per_block") {
    return &hints.tokens_per_block;
  }
  return name == "head_dim" ? &hints.head_dim : nullptr;
}

// A typed dict: known keys are checked, unknown ones skipped.
Result<void> read_layout_hint(std::string_view name,
                              MsgpackReader& reader,
                              Release release,
                              LayoutHints& hints) {
  if (name == "kv_layout") {
    Result<std::string> text = field_string(reader);
    if (!text || !is_kv_layout(*text, release)) {
      return Error{Code::kMalformed, "kv_layout"};
    }
    hints.kv_layout = std::move(*text);
    return {};
  }
  if (name == "kv_list_layout" && release >= Release::k055) {
    Result<std::string> text = field_string(reader);
    if (!text || !is_kv_list_layout(*text, release)) {
      return Error{Code::kMalformed, "kv_list_layout"};
    }
    hints.kv_list_layout = std::move(*text);
    return {};
  }
  if (std::optional<std::int64_t>* const number = int_hint(name, hints); number != nullptr) {
    return assign(*number, field_int(reader));
  }
  if (name == "inference_engine_logical_block_size" && release < Release::k047) {
    std::int64_t ignored = 0;
    return assign(ignored, field_int(reader));
  }
  return reader.skip();
}

Result<LayoutHints> whole_layout_hints(Frame frame, Release release) {
  return read_whole(frame, [release](MsgpackReader& reader) -> Result<LayoutHints> {
    LayoutHints hints;
    const Result<void> read = read_map(reader, [&](std::string_view name, MsgpackReader& value) {
      return read_layout_hint(name, value, release, hints);
    });
    return read ? Result<LayoutHints>(std::move(hints)) : read.error();
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
          return assign(group.object_group_tag, field_int(value));
        }
        if (name == "recurrent_state" && release >= Release::k055) {
          return assign(group.is_recurrent, value.read_bool());
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

Result<void> read_id(MsgpackReader& reader, std::uint64_t& to) {
  const Result<codec::MsgpackInt> id = reader.read_int();
  if (!id) {
    return id.error();
  }
  to = id->bits;
  return {};
}

// The eight required fields of the engine-driven registration, as bits.
class RegistrationFields {
 public:
  RegistrationFields(RegisterEngineDrivenRequest& to, Release release)
      : to_(to), release_(release) {}

  Result<void> operator()(std::string_view name, MsgpackReader& reader) {
    if (name == "instance_id") {
      return seen(0, read_id(reader, to_.instance_id));
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
    if (name == "group_layouts" && release_ >= Release::k057rc3) {
      to_.group_count = 0;
      return read_array(reader, [this](MsgpackReader& group) { return read_group_layout(group); });
    }
    return reader.skip();
  }

  bool complete() const { return seen_ == 0xFFU; }

 private:
  // Only what decides whether the layout can be served; its sizes repeat the registration's.
  Result<void> read_group_layout(MsgpackReader& reader) {
    ++to_.group_count;
    return read_map(reader, [this](std::string_view name, MsgpackReader& value) -> Result<void> {
      if (name != "recurrent") {
        return value.skip();
      }
      bool recurrent = false;
      Result<void> read = assign(recurrent, value.read_bool());
      to_.is_recurrent = to_.is_recurrent || recurrent;
      return read;
    });
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

Result<RegisterEngineDrivenRequest> RegisterEngineDrivenRequest::decode(Frames frames,
                                                                        Release release) {
  if (Result<void> counted = expect_count(frames, 1); !counted) {
    return counted.error();
  }
  return read_whole(
      frames[0], [release](MsgpackReader& reader) -> Result<RegisterEngineDrivenRequest> {
        RegisterEngineDrivenRequest request;
        request.can_map_pool = release >= Release::k047;
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

std::optional<RegistrationNames> names_in_registration(Frame frame) {
  MsgpackReader reader(frame);
  RegistrationNames names;
  unsigned seen = 0;
  const auto note = [&seen](unsigned field, Result<void> read) {
    seen |= read ? 1U << field : 0U;
    return read;
  };
  const Result<void> read =
      read_map(reader, [&](std::string_view name, MsgpackReader& value) -> Result<void> {
        if (name == "instance_id") {
          return note(0, read_id(value, names.instance_id));
        }
        if (name == "model_name") {
          return note(1, assign(names.model_name, field_name(value)));
        }
        if (name == "world_size") {
          return note(2, assign(names.world_size, field_int(value)));
        }
        return value.skip();
      });
  static_cast<void>(read);  // what follows these may be broken
  return seen == 0b111U ? std::optional(std::move(names)) : std::nullopt;
}

Result<RegisterKvCacheRequest> RegisterKvCacheRequest::decode(Frames frames, Release release) {
  RegisterKvCacheRequest request;
  const bool has_groups = release >= Release::k047;
  request.is_since_055 = release >= Release::k055;
  PayloadSequence sequence(frames, has_groups ? 7 : 6);
  sequence.next(request.instance_id, release, whole_id)
      .next(request.tensors, whole_tensors)
      .next(request.model_name, whole_name)
      .next(request.world_size, release, whole_int)
      .next(request.engine_type, release, whole_engine_type)
      .next(request.hints, release, whole_layout_hints);
  if (has_groups) {
    sequence.next(request.groups, release, whole_groups);
  }
  return sequence.finish(std::move(request));
}

}  // namespace larder::protocol
