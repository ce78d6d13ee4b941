#include "protocol/payloads.h"

#include <algorithm>

#include "protocol/key.h"
#include "protocol/short_string.h"

namespace larder::protocol {
namespace {

using codec::MsgpackReader;
using codec::MsgpackType;

constexpr std::int8_t kDeviceMemoryExt = 1;

// Up to 0.5.5 a memory descriptor is a pickle, which starts like this; later it is a msgpack map.
constexpr auto kPickleStart = std::byte{0x80};
constexpr auto kSmallestMap = std::byte{0x81};  // of one pair; a map without any describes nothing
constexpr auto kLargestSmallMap = std::byte{0x8F};
constexpr auto kMap16 = std::byte{0xDE};
constexpr auto kMap32 = std::byte{0xDF};

// Fields of a map and elements of an array that are looked at.
constexpr std::size_t kGlancedMax = 64;

bool is_next(const MsgpackReader& reader, MsgpackType type) {
  const Result<MsgpackType> next = reader.peek();
  return next.has_value() && *next == type;
}

bool is_number(const MsgpackReader& reader) {
  return is_next(reader, MsgpackType::kInt) || is_next(reader, MsgpackType::kFloat);
}

// A registration is some hundred bytes.
constexpr std::size_t kRegistrationBytesMax = 64U << 10U;

// Any release's registration decodes by its names; what only newer ones write tells them apart.
bool fits_registration(MsgpackReader& reader, Release release) {
  const Result<std::size_t> fields = reader.read_map_header();
  bool has_slots = false;
  bool has_groups = false;
  if (reader.input_bytes() > kRegistrationBytesMax) {
    return false;
  }
  for (std::size_t i = 0; fields.has_value() && i < std::min(*fields, kGlancedMax); ++i) {
    const Result<std::string_view> name = read_short_string(reader, kNameBytesMax);
    if (!name) {
      return false;
    }
    has_slots = has_slots || *name == "num_physical_slots";
    has_groups = has_groups || *name == "group_layouts";
    if (!reader.skip()) {
      return false;
    }
  }
  const bool is_since_057 = release >= Release::k057rc3;
  const bool is_too_new = has_slots && release < Release::k055;
  return fields.has_value() && !is_too_new && has_groups == is_since_057;
}

bool fits_tensor(MsgpackReader& reader, Release release) {
  const Result<codec::MsgpackExt> ext = reader.read_ext();
  if (!ext || ext->type != kDeviceMemoryExt || ext->body.empty()) {
    return false;
  }
  const std::byte first = ext->body.front();
  if (release < Release::k056) {
    return first == kPickleStart;
  }
  return (first >= kSmallestMap && first <= kLargestSmallMap) || first == kMap16 || first == kMap32;
}

// The first elements of an array.
template <typename Element>
bool fits_array(MsgpackReader& reader, Element element) {
  const Result<std::size_t> count = reader.read_array_header();
  bool fits_all = count.has_value();
  for (std::size_t i = 0; fits_all && i < std::min(*count, kGlancedMax); ++i) {
    fits_all = element(reader);
  }
  return fits_all;
}

bool fits_ints(MsgpackReader& reader) {
  return fits_array(reader, [](MsgpackReader& element) { return element.read_int().has_value(); });
}

// Arrays of arrays whose inner ones may be long: of the first, its first elements.
bool fits_int_arrays(MsgpackReader& reader) {
  const Result<std::size_t> count = reader.read_array_header();
  return count.has_value() && (*count == 0 || fits_ints(reader));
}

bool fits_spans(MsgpackReader& reader) {
  return fits_array(reader, [](MsgpackReader& element) {
    const Result<std::size_t> ends = element.read_array_header();
    return ends.has_value() && *ends == 2 && element.read_int().has_value() &&
           element.read_int().has_value();
  });
}

bool fits_map_keyed_by(MsgpackReader& reader, MsgpackType type) {
  const Result<std::size_t> pairs = reader.read_map_header();
  return pairs.has_value() && (*pairs == 0 || is_next(reader, type));
}

bool fits_array_of_maps(MsgpackReader& reader) {
  const Result<std::size_t> count = reader.read_array_header();
  return count.has_value() && (*count == 0 || is_next(reader, MsgpackType::kMap));
}

bool fits_structure(MsgpackReader& reader, PayloadKind kind, Release release) {
  switch (kind) {
    case PayloadKind::kKey:
      return fits_key(reader, release, KeyOf::kAny);
    case PayloadKind::kSchedulerKey:
      return fits_key(reader, release, KeyOf::kScheduler);
    case PayloadKind::kWorkerKey:
      return fits_key(reader, release, KeyOf::kWorker);
    case PayloadKind::kTensor:
      return fits_tensor(reader, release);
    case PayloadKind::kTensors:
      return fits_array(
          reader, [release](MsgpackReader& element) { return fits_tensor(element, release); });
    case PayloadKind::kIntArray:
      return fits_ints(reader);
    case PayloadKind::kIntArrays:
      return fits_int_arrays(reader);
    case PayloadKind::kTokenSpans:
      return fits_spans(reader);
    case PayloadKind::kRegistration:
      return fits_registration(reader, release);
    case PayloadKind::kMemoryLayouts:
      return fits_map_keyed_by(reader, MsgpackType::kInt);
    case PayloadKind::kMemoryLayout:
    case PayloadKind::kModuleCall:
    case PayloadKind::kLayoutHints:
      return fits_map_keyed_by(reader, MsgpackType::kString);
    default:
      return fits_array_of_maps(reader);
  }
}

bool fits_frame(Frame frame, PayloadKind kind, Release release) {
  MsgpackReader reader(frame);
  switch (kind) {
    case PayloadKind::kInt:
      return is_next(reader, MsgpackType::kInt);
    case PayloadKind::kOptionalInt:
      return is_next(reader, MsgpackType::kInt) || is_next(reader, MsgpackType::kNil);
    case PayloadKind::kBool:
      return is_next(reader, MsgpackType::kBool);
    case PayloadKind::kFloat:
      return is_number(reader);
    case PayloadKind::kBinary:
      return is_next(reader, MsgpackType::kBinary);
    case PayloadKind::kString:
    case PayloadKind::kEngineType:
      return is_next(reader, MsgpackType::kString);
    default:
      return fits_structure(reader, kind, release);
  }
}

}  // namespace

std::string_view name_of(PayloadKind kind) {
  switch (kind) {
    case PayloadKind::kKey:
      return "Key";
    case PayloadKind::kSchedulerKey:
      return "Key of all workers";
    case PayloadKind::kWorkerKey:
      return "Key of a worker";
    case PayloadKind::kInt:
      return "int";
    case PayloadKind::kOptionalInt:
      return "int or nil";
    case PayloadKind::kBool:
      return "bool";
    case PayloadKind::kFloat:
      return "float";
    case PayloadKind::kBinary:
      return "bin";
    case PayloadKind::kString:
      return "str";
    case PayloadKind::kTensor:
      return "Ext 1";
    case PayloadKind::kTensors:
      return "[Ext 1]";
    case PayloadKind::kIntArray:
      return "[int]";
    case PayloadKind::kIntArrays:
      return "[[int]]";
    case PayloadKind::kTokenSpans:
      return "[[int, int]]";
    case PayloadKind::kEngineType:
      return "EngineType";
    case PayloadKind::kLayoutHints:
      return "LayoutHints";
    case PayloadKind::kEngineGroups:
      return "[EngineGroupInfo]";
    case PayloadKind::kRegistration:
      return "Registration";
    case PayloadKind::kAllocationRecords:
      return "[BlockAllocationRecord]";
    case PayloadKind::kMatches:
      return "[CBMatchResult]";
    case PayloadKind::kPeerKeys:
      return "[ObjectKey]";
    case PayloadKind::kMemoryLayout:
      return "MemoryLayout";
    case PayloadKind::kMemoryLayouts:
      return "{int: MemoryLayout}";
    case PayloadKind::kModuleCall:
      return "ModuleCall";
  }
  LARDER_UNREACHABLE();
}

bool fits(Frames frames, Payloads payloads, Release release) {
  if (frames.size() != payloads.size()) {
    return false;
  }
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    if (!fits_frame(frames[i], payloads[i], release)) {
      return false;
    }
  }
  return true;
}

}  // namespace larder::protocol
