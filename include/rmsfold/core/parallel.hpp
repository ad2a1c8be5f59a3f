// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Splitting independent work over threads; results never depend on how many there are.

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <rmsfold/core/concepts.hpp>

namespace rmsfold {

/// Calls `body(i)` for i = 0 … count-1 on up to `threads` threads, in no particular order; the first exception is rethrown when all have stopped.
///
/// @param threads  0 means one per processor.
template <class Body>
void parallel_for(Index count, unsigned threads, const Body& body) {
  if (threads == 0) threads = (std::max)(1u, std::thread::hardware_concurrency());
  threads = static_cast<unsigned>((std::min)(static_cast<Index>(threads), count));
  if (threads <= 1) {
    for (Index i = 0; i < count; ++i) body(i);
    return;
  }
  std::atomic<Index> next{0};
  std::exception_ptr failure;
  std::mutex failure_guard;
  const auto work = [&] {
    try {
      for (Index i = next++; i < count; i = next++) body(i);
    } catch (...) {
      const std::lock_guard lock(failure_guard);
      if (!failure) failure = std::current_exception();
      next = count;
    }
  };
  {
    std::vector<std::jthread> workers;
    workers.reserve(threads - 1);
    for (unsigned t = 1; t < threads; ++t) workers.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace rmsfold
