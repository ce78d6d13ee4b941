#include "protocol/requests.h"

#include <algorithm>

#include "protocol/payload_sequence.h"
#include "protocol/refusals.h"

namespace larder::protocol {
namespace {

using codec::MsgpackReader;

// A request that was looked up again a few times has as many ranges left over.
constexpr std::size_t kTokenRangesMax = 1024;

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

Result<std::vector<TokenRange>> whole_token_ranges(Frame frame) {
  using Ranges = std::vector<TokenRange>;
  return read_whole(frame, [](MsgpackReader& reader) -> Result<Ranges> {
    Ranges ranges;
    std::vector<std::int64_t> ends;
    const Result<void> read = read_array(reader, [&](MsgpackReader& element) -> Result<void> {
      Result<void> pair = read_int_array(element, ends);
      if (pair && ends.size() != 2) {
        return Error{Code::kMalformed, "not a pair"};
      }
      if (pair && ranges.size() == kTokenRangesMax) {
        return Error{Code::kTooLarge, "too many ranges"};
      }
      if (pair) {
        ranges.push_back({ends[0], ends[1]});
      }
      return pair;
    });
    return read ? Result<Ranges>(std::move(ranges)) : read.error();
  });
}

Result<void> read_allocation_record(MsgpackReader& reader) {
  int seen = 0;
  Result<void> read =
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

// How many there are.
Result<std::size_t> whole_allocation_records(Frame frame) {
  return read_whole(frame, [](MsgpackReader& reader) -> Result<std::size_t> {
    std::size_t count = 0;
    const Result<void> records = read_array(reader, [&count](MsgpackReader& record) {
      ++count;
      return read_allocation_record(record);
    });
    return records ? Result<std::size_t>(count) : records.error();
  });
}

}  // namespace

Result<EmptyRequest> EmptyRequest::decode(Frames frames, Release) {
  const Result<void> counted = expect_count(frames, 0);
  return counted ? Result<EmptyRequest>(EmptyRequest{}) : counted.error();
}

Result<NegotiateRequest> NegotiateRequest::decode(Frames frames, Release release) {
  NegotiateRequest request;
  PayloadSequence sequence(frames, 1);
  sequence.next(request.alignment_tokens, release, whole_int);
  return sequence.finish(request);
}

Result<ModuleCallRequest> ModuleCallRequest::decode(Frames frames, Release) {
  if (Result<void> counted = expect_count(frames, 1); !counted) {
    return counted.error();
  }
  return read_whole(frames[0], [](MsgpackReader& reader) -> Result<ModuleCallRequest> {
    ModuleCallRequest request;
    bool has_method = false;
    bool has_payload = false;
    const Result<void> read =
        read_map(reader, [&](std::string_view name, MsgpackReader& value) -> Result<void> {
          if (name == "method") {
            has_method = true;
            return assign(request.method, value.read_string());
          }
          if (name == "payload") {
            has_payload = true;
            return assign(request.payload, value.read_binary());
          }
          return value.skip();
        });
    if (!read) {
      return read.error();
    }
    return has_method && has_payload ? Result<ModuleCallRequest>(request)
                                     : Error{Code::kMalformed, "a field of the call is missing"};
  });
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
  request.is_of_connection = !has_instance;
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
  PayloadSequence sequence(frames, 1);
  sequence.next(request.instance_id, release, whole_id);
  return sequence.finish(request);
}

Result<SessionRequest> SessionRequest::decode(Frames frames, Release) {
  SessionRequest request;
  PayloadSequence sequence(frames, 1);
  sequence.next(request.request_id, whole_name);
  return sequence.finish(std::move(request));
}

Result<WaitRequest> WaitRequest::decode(Frames frames, Release) {
  WaitRequest request;
  PayloadSequence sequence(frames, 2);
  sequence.next(request.request_id, whole_name).next(request.timeout_s, whole_float);
  return sequence.finish(std::move(request));
}

Result<LookupRequest> LookupRequest::decode(Frames frames, Release release) {
  LookupRequest request;
  PayloadSequence sequence(frames, 2);
  sequence.next(request.key, release, whole_key).next(request.tp_size, release, whole_int);
  return sequence.finish(std::move(request));
}

Result<FreeLookupLocksRequest> FreeLookupLocksRequest::decode(Frames frames, Release release) {
  FreeLookupLocksRequest request;
  PayloadSequence sequence(frames, payloads(release).size());
  sequence.next(request.key, release, whole_key).next(request.tp_size, release, whole_int);
  if (release >= Release::k057rc3) {
    sequence.next(request.extra_ranges, whole_token_ranges);
  }
  return sequence.finish(std::move(request));
}

Result<PrepareStoreRequest> PrepareStoreRequest::decode(Frames frames, Release release) {
  PrepareStoreRequest request;
  PayloadSequence sequence(frames, payloads(release).size());
  sequence.next(request.key, release, whole_key).next(request.instance_id, release, whole_id);
  if (release >= Release::k057rc3) {
    BlockIds skipped;
    sequence.next(skipped, release, whole_block_ids);
    request.skips_chunks = std::any_of(
        skipped.begin(), skipped.end(), [](const auto& group) { return !group.empty(); });
  }
  return sequence.finish(std::move(request));
}

Result<TransferRequest> TransferRequest::decode(Frames frames, Release release) {
  TransferRequest request;
  PayloadSequence sequence(frames, 2);
  sequence.next(request.key, release, whole_key).next(request.instance_id, release, whole_id);
  return sequence.finish(std::move(request));
}

Result<CommitStoreRequest> CommitStoreRequest::decode(Frames frames, Release release) {
  CommitStoreRequest request;
  PayloadSequence sequence(frames, 3);
  sequence.next(request.key, release, whole_key)
      .next(request.instance_id, release, whole_id)
      .next(request.payload, whole_binary);
  return sequence.finish(std::move(request));
}

Result<StoreRequest> StoreRequest::decode(Frames frames, Release release) {
  StoreRequest request;
  PayloadSequence sequence(frames, 4);
  sequence.next(request.key, release, whole_key)
      .next(request.instance_id, release, whole_id)
      .next(request.block_ids, release, whole_block_ids)
      .next(request.event_handle, whole_binary);
  request.has_no_refusal = is_unanswerable(request.event_handle, release);
  request.has_one_list = release < Release::k047;
  return sequence.finish(std::move(request));
}

Result<RetrieveRequest> RetrieveRequest::decode(Frames frames, Release release) {
  RetrieveRequest request;
  PayloadSequence sequence(frames, 5);
  sequence.next(request.key, release, whole_key)
      .next(request.instance_id, release, whole_id)
      .next(request.block_ids, release, whole_block_ids)
      .next(request.event_handle, whole_binary)
      .next(request.skip_first_n_tokens, release, whole_int);
  request.has_no_refusal = is_unanswerable(request.event_handle, release);
  request.has_one_list = release < Release::k047;
  return sequence.finish(std::move(request));
}

Result<BlockAllocationRequest> BlockAllocationRequest::decode(Frames frames, Release release) {
  BlockAllocationRequest request;
  PayloadSequence sequence(frames, 3);
  sequence.next(request.instance_id, release, whole_id)
      .next(request.model_name, whole_name)
      .next(request.record_count, whole_allocation_records);
  return sequence.finish(std::move(request));
}

}  // namespace larder::protocol
