// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Catch2 for every test, version 2.13 or 3: the few names that differ between them are settled here.

#if __has_include(<catch2/catch_all.hpp>)
// 3.x: the headers one by one, since catch_all.hpp is the slow one.
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_all.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#else
#include <catch2/catch.hpp>
#endif

#include <string>

namespace rmsfold::test {

#if __has_include(<catch2/catch_all.hpp>)
template <class T>
using MatcherBase = Catch::Matchers::MatcherBase<T>;
/// Matches text that contains `part`.
inline auto has_text(const std::string& part) { return Catch::Matchers::ContainsSubstring(part); }
#else
template <class T>
using MatcherBase = Catch::MatcherBase<T>;
/// Matches text that contains `part`.
inline auto has_text(const std::string& part) { return Catch::Matchers::Contains(part); }
#endif

}  // namespace rmsfold::test
