// The main() of a fuzz target outside libFuzzer: runs every file of a corpus folder, then mutations
// of those files.
//
// The seed of the mutations is printed and can be given in LARDER_TEST_SEED, so a failure can be
// repeated.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;

constexpr int kMutations = 20000;  // a few seconds with sanitizers
constexpr std::size_t kInputBytesMax = 1U << 16;

Input read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<Input> read_corpus(const char* folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());  // so that a seed means the same everywhere
  std::vector<Input> corpus;
  corpus.reserve(paths.size());
  for (const std::filesystem::path& path : paths) {
    corpus.push_back(read_file(path));
  }
  return corpus;
}

// A copy of exactly the input's size, so that the sanitizers see the first byte beyond it.
void run(const Input& input) {
  const Input exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

void mutate(std::mt19937_64& random, const std::vector<Input>& corpus, Input& input) {
  const auto place = [&](const Input& in) {
    return static_cast<std::ptrdiff_t>(random() % (in.size() + 1));
  };
  switch (random() % 6) {
    case 0:  // another byte
      if (!input.empty()) {
        input[random() % input.size()] = static_cast<std::uint8_t>(random());
      }
      return;
    case 1:  // another bit
      if (!input.empty()) {
        input[random() % input.size()] ^= static_cast<std::uint8_t>(1U << (random() % 8));
      }
      return;
    case 2:  // a byte that codecs care about
      if (!input.empty()) {
        constexpr auto kEdges =
            std::to_array<std::uint8_t>({0x00, 0x01, 0x7f, 0x80, 0xfe, 0xff, '.', '('});
        input[random() % input.size()] = kEdges[random() % kEdges.size()];
      }
      return;
    case 3:  // cut
      input.resize(static_cast<std::size_t>(place(input)));
      return;
    case 4:  // one byte more
      input.insert(input.begin() + place(input), static_cast<std::uint8_t>(random()));
      return;
    default: {  // the tail of another input
      const Input& other = corpus[random() % corpus.size()];
      const auto from = other.begin() + place(other);
      input.resize(static_cast<std::size_t>(place(input)));
      input.insert(input.end(), from, other.end());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
    return 2;
  }
  const std::vector<Input> corpus = read_corpus(argv[1]);
  if (corpus.empty()) {
    std::fprintf(stderr, "no files in %s\n", argv[1]);
    return 1;
  }
  for (const Input& input : corpus) {
    run(input);
  }
  const char* given = std::getenv("LARDER_TEST_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::printf("LARDER_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);  // before anything can abort
  std::mt19937_64 random(seed);
  for (int i = 0; i < kMutations; ++i) {
    Input input = corpus[random() % corpus.size()];
    for (std::uint64_t steps = 1 + random() % 4; steps > 0; --steps) {
      mutate(random, corpus, input);
    }
    input.resize(std::min(input.size(), kInputBytesMax));
    run(input);
  }
  std::printf("%zu files, %d mutations\n", corpus.size(), kMutations);
  return 0;
}
