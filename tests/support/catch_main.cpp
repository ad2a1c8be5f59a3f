// SPDX-License-Identifier: MIT
/// @file
/// The main function of the tests where Catch2 brings none.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
