// SPDX-License-Identifier: MIT
#include <rmsfold/group/gauge.hpp>

#include <string>

#include "support/catch.hpp"

namespace rmsfold {
namespace {

// Order: identity, permutation, permutation up to sign, signed permutation, fixes ones, orthogonal. Written by hand
// from the lattice's two chains.
constexpr Gauge all[] = {Gauge::identity,           Gauge::permutation, Gauge::permutation_up_to_sign,
                         Gauge::signed_permutation, Gauge::fixes_ones,  Gauge::orthogonal};
constexpr const char* meet_table[] = {"iiiiii", "ippppp", "ipuuuu", "ipusus", "ipuuff", "ipusfo"};
constexpr const char* join_table[] = {"ipusfo", "ppusfo", "uuusfo", "ssssoo", "fffofo", "oooooo"};

Gauge from_letter(char letter) {
  switch (letter) {
    case 'i':
      return Gauge::identity;
    case 'p':
      return Gauge::permutation;
    case 'u':
      return Gauge::permutation_up_to_sign;
    case 's':
      return Gauge::signed_permutation;
    case 'f':
      return Gauge::fixes_ones;
    default:
      return Gauge::orthogonal;
  }
}

}  // namespace

TEST_CASE("gauge: all pairs against the table", "[group]") {
  for (std::size_t a = 0; a < 6; ++a) {
    for (std::size_t b = 0; b < 6; ++b) {
      CAPTURE(a, b);
      const Gauge expected = from_letter(meet_table[a][b]);
      CHECK(intersect(all[a], all[b]) == expected);
      CHECK(contains(all[a], all[b]) == (expected == all[b]));
      CHECK(join(all[a], all[b]) == from_letter(join_table[a][b]));
    }
  }
}

TEST_CASE("gauge: intersect is the meet of the order that contains defines", "[group]") {
  for (const Gauge a : all) {
    CHECK(contains(a, a));
    for (const Gauge b : all) {
      const Gauge meet = intersect(a, b);
      CHECK(meet == intersect(b, a));
      CHECK((contains(a, meet) && contains(b, meet)));
      CHECK((a == b || !contains(a, b) || !contains(b, a)));
      for (const Gauge c : all) {
        CHECK((!(contains(a, c) && contains(b, c)) || contains(meet, c)));  // the largest of the lower bounds
        CHECK((!(contains(a, b) && contains(b, c)) || contains(a, c)));
        CHECK(intersect(intersect(a, b), c) == intersect(a, intersect(b, c)));
      }
    }
  }
}

TEST_CASE("gauge: join is the least upper bound", "[group]") {
  for (const Gauge a : all) {
    for (const Gauge b : all) {
      const Gauge both = join(a, b);
      CHECK((contains(both, a) && contains(both, b)));
      CHECK(intersect(a, both) == a);
      for (const Gauge c : all) CHECK((!(contains(c, a) && contains(c, b)) || contains(c, both)));
    }
  }
}

TEST_CASE("gauge: names differ", "[group]") {
  for (const Gauge a : all) {
    for (const Gauge b : all) CHECK((name_of(a) == name_of(b)) == (a == b));
  }
  CHECK(name_of(Gauge::orthogonal) == "any rotation");
}

}  // namespace rmsfold
