// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Watches operator new: a hostile number must not become an allocation.

#include <atomic>
#include <cstddef>

namespace rmsfold::test {

/// The largest piece of memory asked for since it was last set to 0.
extern std::atomic<std::size_t> largest_allocation;

}  // namespace rmsfold::test
