// reuse_table.h - what a policy learns about who comes back: how much an object is worth keeping,
// by how often its prompt was found before (its kind) and how long it has been unused (its age).
//
// Each time an object is found again, or is given up for good, that is one observation of its kind
// at that age. An object's worth is the best ratio, over all times one could go on keeping it, of
// the chance that it is found until then to the time it takes up room until then. So what seldom
// comes back is worth little at once, and what comes back after a while is worth more shortly
// before than right after its last use. Old observations fade.
//
// Ages are counted in uses of any object, and told apart by powers of two. Before anything is
// observed, older is worth less and what was found more often is worth more. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace larder::cache {

class ReuseTable {
 public:
  static constexpr std::size_t kKinds = 4;
  static constexpr std::size_t kAges = 28;

  struct Cell {
    std::size_t kind;
    std::size_t age;
  };

  ReuseTable();

  static std::size_t kind_of(std::uint32_t found);  // 0, 1, 2 to 3, 4 and more times
  static std::size_t age_of(std::uint64_t uses);
  static std::uint64_t first_use_of(std::size_t age);  // the least number of uses in it
  static std::uint64_t last_use_of(std::size_t age);   // the most; the last age has no end

  void observe(std::size_t kind, std::uint64_t uses, bool found_again);

  // Works the observations into the worths, and lets them fade a little.
  void learn();

  double worth(Cell cell) const { return worths_.at(cell.kind).at(cell.age); }

  // All cells, the one worth least first.
  const std::vector<Cell>& cells() const { return cells_; }

 private:
  using ByAge = std::array<double, kAges>;

  ByAge chances_of(std::size_t kind) const;

  std::array<ByAge, kKinds> found_{};
  std::array<ByAge, kKinds> lost_{};
  std::array<ByAge, kKinds> worths_{};
  std::vector<Cell> cells_;
};

}  // namespace larder::cache
