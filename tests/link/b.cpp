// SPDX-License-Identifier: MIT
/// @file
/// The other translation unit of the link test, with the umbrellas in the other order.
#include <rmsfold/rmsfold.hpp>

#include <rmsfold/model.hpp>

rmsfold::Index dimension_from_the_other_unit(const rmsfold::Hadamard& q) { return q.dim(); }
