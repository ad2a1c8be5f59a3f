// SPDX-License-Identifier: MIT
/// @file
/// One of two translation units with both umbrellas: the program links only if no header defines anything twice.
#include <rmsfold/model.hpp>
#include <rmsfold/rmsfold.hpp>

rmsfold::Index dimension_from_the_other_unit(const rmsfold::Hadamard& q);

int main() {
  rmsfold::Random random(1);
  return dimension_from_the_other_unit(rmsfold::Hadamard::random(24, random)) == 24 ? 0 : 1;
}
