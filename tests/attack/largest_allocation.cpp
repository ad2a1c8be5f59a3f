// SPDX-License-Identifier: MIT
// In a file of its own: where the compiler sees both a replaced operator and its caller, it takes the pair for a mismatch.
#include "attack/largest_allocation.hpp"

#include <cstdlib>
#include <new>

std::atomic<std::size_t> rmsfold::test::largest_allocation{0};

void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  std::size_t seen = rmsfold::test::largest_allocation;
  while (seen < size && !rmsfold::test::largest_allocation.compare_exchange_weak(seen, size)) {
  }
  return std::malloc(size == 0 ? 1 : size);
}
void* operator new(std::size_t size) {
  if (void* const memory = operator new(size, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
