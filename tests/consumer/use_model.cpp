// SPDX-License-Identifier: MIT
/// @file
/// A stranger's program on rmsfold::model: everything is there, and what is not a model is refused.
#include <rmsfold/model.hpp>

int main() { return 0; }
