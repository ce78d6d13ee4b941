// Goal: a tensor list that objects were cut out of while it arrived is read as the whole one is,
// wherever the stream was split; and a list that is refused as a whole is refused in parts as well.
// Method: lists as torch wrote them (tests/fixtures/make_tensor_pickles.py), cut with random splits
// (LARDER_TEST_SEED), against the plain reading of the same bytes; the same with damaged bytes.
#include "tensors/object_cutter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>

#include "base/test_random.h"
#include "tensors/tensor_pickle.h"

namespace larder::tensors {
namespace {

using namespace std::string_literals;

constexpr TensorListLimits kLimits = {.tensors_max = 2000, .storage_bytes_max = 1U << 24};

std::filesystem::path fixtures() {
  return std::filesystem::path(LARDER_FIXTURES) / "tensor_pickles";
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Each tensor's elements, or "refused".
using Elements = std::vector<std::string>;

Elements elements_of(const Result<std::vector<TensorView>>& tensors) {
  if (!tensors) {
    return {"refused"};
  }
  Elements all;
  for (const TensorView& tensor : *tensors) {
    const Layout layout{tensor.dtype, tensor.shape};
    const auto bytes = bytes_of(layout);
    std::string object(bytes ? bytes.value() : 0, '\0');
    if (bytes && object.size() < 100'000) {
      EXPECT_TRUE(
          copy_to_object(tensor, layout, std::as_writable_bytes(std::span(object))).has_value());
    }
    all.push_back(std::string(name_of(tensor.dtype)) + object);
  }
  return all;
}

Elements read_whole(const std::string& pickle) {
  return elements_of(read_tensor_list(std::as_bytes(std::span(pickle)), kLimits));
}

// One list as it arrives, in pieces.
class Arrival {
 public:
  // How many bytes come at a time; and of each object, whether it is cut out.
  Arrival(std::size_t object_bytes, std::function<bool()> cuts)
      : object_bytes_(object_bytes), cutter_(object_bytes), cuts_(std::move(cuts)) {}

  void arrive(std::string_view bytes) {
    while (!bytes.empty()) {
      if (is_in_object()) {
        const std::size_t taken = std::min(bytes.size(), object_bytes_ - objects_.back().size());
        objects_.back() += bytes.substr(0, taken);
        bytes.remove_prefix(taken);
        continue;
      }
      const std::size_t scanned = cutter_.scan(std::as_bytes(std::span(bytes)));
      ASSERT_TRUE(scanned == bytes.size() || cutter_.is_at_object());
      rest_ += bytes.substr(0, scanned);
      bytes.remove_prefix(scanned);
      if (cutter_.is_at_object() && cuts_()) {
        cutter_.cut_object();
        objects_.emplace_back();
      } else if (cutter_.is_at_object()) {
        cutter_.keep_object();
      }
    }
  }

  bool is_in_object() const { return !objects_.empty() && objects_.back().size() < object_bytes_; }

  std::size_t objects_cut() const { return objects_.size(); }

  Elements read() {
    cutter_.put_right(std::as_writable_bytes(std::span(rest_)));
    std::vector<CutBytes> cuts;
    for (std::size_t i = 0; i < objects_.size(); ++i) {
      cuts.push_back({cutter_.cuts()[i].position, std::as_bytes(std::span(objects_[i]))});
    }
    return elements_of(read_tensor_list(std::as_bytes(std::span(rest_)), kLimits, cuts));
  }

 private:
  std::size_t object_bytes_;
  ObjectCutter cutter_;
  std::function<bool()> cuts_;
  std::string rest_;
  std::vector<std::string> objects_;
};

struct Recorded {
  std::string name;
  std::string pickle;
};

std::vector<Recorded> recorded_lists() {
  std::vector<Recorded> all;
  for (const auto& entry : std::filesystem::directory_iterator(fixtures())) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension().empty()) {
      all.push_back({name, read_file(entry.path())});
    }
  }
  std::sort(
      all.begin(), all.end(), [](const Recorded& a, const Recorded& b) { return a.name < b.name; });
  return all;
}

// Of the first tensor's storage.
std::size_t object_bytes_of(const std::string& pickle) {
  const auto tensors = read_tensor_list(std::as_bytes(std::span(pickle)), kLimits);
  return tensors && !tensors->empty() ? std::max<std::size_t>(tensors->front().storage.size(), 1)
                                      : 24;
}

bool always() {
  return true;
}

class CutLists : public testing::Test {
 protected:
  std::size_t below(std::size_t bound) { return random_() % bound; }

  void arrive_in_pieces(Arrival& arrival, std::string_view pickle) {
    const std::size_t most = 1 + below(below(2) == 0 ? 8 : pickle.size() + 1);
    while (!pickle.empty()) {
      const std::string_view piece = pickle.substr(0, 1 + below(most));
      arrival.arrive(piece);
      pickle.remove_prefix(piece.size());
    }
  }

  std::mt19937_64 random_{test_seed()};
};

TEST_F(CutLists, OfEveryDtypeLoseEachTensorsBytesAndAreReadTheSame) {
  std::size_t lists = 0;
  for (const auto& [name, pickle] : recorded_lists()) {
    const bool is_plain = name.starts_with("one_") || name.starts_with("three_");
    const Elements whole = read_whole(pickle);
    if (!is_plain || whole == Elements{"refused"}) {
      continue;
    }
    ++lists;
    Arrival arrival(object_bytes_of(pickle), always);
    arrival.arrive(pickle);
    EXPECT_EQ(arrival.objects_cut(), whole.size()) << name;
    EXPECT_EQ(arrival.read(), whole) << name;
  }
  EXPECT_EQ(lists, 2 * kDtypeCount);
}

TEST_F(CutLists, OfOneSizeAreReadTheSameHoweverTheyArriveAndWhateverIsCut) {
  for (const auto& [name, pickle] : recorded_lists()) {
    if (!name.starts_with("one_") && !name.starts_with("three_")) {
      continue;
    }
    const Elements whole = read_whole(pickle);
    for (int round = 0; round < 40; ++round) {
      Arrival arrival(object_bytes_of(pickle), [this] { return below(4) != 0; });
      arrive_in_pieces(arrival, pickle);
      ASSERT_EQ(arrival.read(), whole) << name << " round " << round;
    }
  }
}

// What is cut of a tensor of another size is not all of its bytes, and then the list is refused.
TEST_F(CutLists, OfOtherSizesAreReadTheSameOrRefused) {
  for (const auto& [name, pickle] : recorded_lists()) {
    const Elements whole = read_whole(pickle);
    for (int round = 0; round < 40; ++round) {
      Arrival arrival(1 + below(2 * object_bytes_of(pickle)), [this] { return below(4) != 0; });
      arrive_in_pieces(arrival, pickle);
      const Elements read = arrival.read();
      ASSERT_TRUE(read == whole || read == Elements{"refused"}) << name << " round " << round;
    }
  }
}

TEST_F(CutLists, ThatAreDamagedAreNeverReadAsAnythingElseThanTheWhole) {
  const std::vector<Recorded> lists = recorded_lists();
  for (int round = 0; round < 4000; ++round) {
    const Recorded& list = lists[below(lists.size())];
    std::string pickle = list.pickle;
    const std::size_t object_bytes = object_bytes_of(pickle);
    for (std::size_t damage = 1 + below(3); damage > 0; --damage) {
      pickle[below(pickle.size())] = static_cast<char>(random_());
    }
    pickle.resize(pickle.size() - (below(4) == 0 ? below(pickle.size()) : 0));
    Arrival arrival(object_bytes, always);
    arrive_in_pieces(arrival, pickle);
    if (arrival.is_in_object()) {
      continue;  // whoever receives it does not read it then
    }
    const Elements read = arrival.read();
    ASSERT_TRUE(read == read_whole(pickle) || read == Elements{"refused"})
        << list.name << " round " << round;
  }
}

std::string blob(std::size_t bytes) {
  std::string length;
  for (std::size_t shift = 0; shift < 32; shift += 8) {
    length.push_back(static_cast<char>(bytes >> shift));
  }
  return "B" + length + std::string(bytes, 'b');
}

TEST_F(CutLists, OnlyBlobsALittleLongerThanAnObjectEndWithOne) {
  constexpr std::size_t kObject = 5000;
  const auto cut = [](std::size_t bytes) {
    Arrival arrival(kObject, always);
    arrival.arrive("\x80\x04]" + blob(bytes) + blob(kObject + 300) + "e.");
    return arrival.objects_cut();
  };
  EXPECT_EQ(cut(kObject + ObjectCutter::kHeadBytesMin - 1), 1U);
  EXPECT_EQ(cut(kObject + ObjectCutter::kHeadBytesMin), 2U);
  EXPECT_EQ(cut(kObject + ObjectCutter::kHeadBytesMax), 2U);
  EXPECT_EQ(cut(kObject + ObjectCutter::kHeadBytesMax + 1), 1U);
  EXPECT_EQ(cut(0), 1U);
}

TEST_F(CutLists, NothingIsCutBehindAStopOrWhatIsNoOpcodeOrMuchElse) {
  constexpr std::size_t kObject = 5000;
  const auto cut = [](const std::string& front) {
    Arrival arrival(kObject, always);
    arrival.arrive("\x80\x04]" + front + blob(kObject + 300));
    return arrival.objects_cut();
  };
  EXPECT_EQ(cut(""), 1U);
  EXPECT_EQ(cut("."), 0U);
  EXPECT_EQ(cut("\xff"), 0U);
  EXPECT_EQ(cut("cmodule\nname\n"), 1U);
  EXPECT_EQ(cut(std::string(ObjectCutter::kLookedAtMax - 100, '(')), 1U);
  EXPECT_EQ(cut(std::string(ObjectCutter::kLookedAtMax + 1, '(')), 0U);
}

TEST_F(CutLists, BytesThatAreNoStoragesMakeTheListInvalid) {
  // A blob of the right size that no tensor is made of: the list is refused either way.
  const std::string pickle = "\x80\x04]" + blob(5300) + "a."s;
  Arrival arrival(5000, always);
  arrival.arrive(pickle);
  EXPECT_EQ(arrival.objects_cut(), 1U);
  EXPECT_EQ(arrival.read(), Elements{"refused"});
  const std::string list = read_file(fixtures() / "one_float32");
  const std::vector<CutBytes> stray{{list.size() - 1, {}}};
  EXPECT_FALSE(read_tensor_list(std::as_bytes(std::span(list)), kLimits, stray).has_value());
}

}  // namespace
}  // namespace larder::tensors
