// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Building blocks that kernels share: groups of vectors in registers, and buffers that a thread keeps.

#include <cstddef>
#include <memory>
#include <new>
#include <utility>

#include <rmsfold/kernel/simd.hpp>

namespace rmsfold::kernel::detail {

/// Memory of this thread that is kept for the next call. Every use of one tag and type shares it.
template <class S, int tag>
[[nodiscard]] inline S* scratch(Index count) {
  constexpr std::align_val_t alignment{64};
  struct Free {
    void operator()(S* memory) const { ::operator delete[](memory, alignment); }
  };
  thread_local std::unique_ptr<S[], Free> memory;
  thread_local Index capacity = 0;
  if (capacity < count) {
    capacity = 0;
    memory.reset();
    memory.reset(static_cast<S*>(::operator new[](static_cast<std::size_t>(count) * sizeof(S), alignment)));
    capacity = count;
  }
  return memory.get();
}

#ifdef RMSFOLD_VECTORS

/// Vectors that are in registers together, one index each: all loops over them are unrolled here, at any level of optimisation.
template <class S, int bytes, int count>
struct Group {
  using V = Vec<S, bytes>;
  V v[static_cast<std::size_t>(count)];

  /// Vector k from or to `k * stride` elements further on.
  RMSFOLD_INLINE inline void load(const S* from, Index stride) { load_each(from, stride, std::make_integer_sequence<int, count>()); }
  RMSFOLD_INLINE inline void store(S* to, Index stride) const { store_each(to, stride, std::make_integer_sequence<int, count>()); }

  /// The same from and to bytes of any address, strides in bytes.
  RMSFOLD_INLINE inline void load_bytes(const std::byte* from, Index stride) {
    load_each(from, stride, std::make_integer_sequence<int, count>());
  }
  RMSFOLD_INLINE inline void store_bytes(std::byte* to, Index stride) const {
    store_each(to, stride, std::make_integer_sequence<int, count>());
  }

  /// All stages between the vectors, the largest stride first. @param minus  -1, from where the compiler does not see it: `butterfly`
  RMSFOLD_INLINE inline void butterflies(S minus) {
    if constexpr (count >= 16) stage<8>(minus, std::make_integer_sequence<int, count / 2>());
    if constexpr (count >= 8) stage<4>(minus, std::make_integer_sequence<int, count / 2>());
    if constexpr (count >= 4) stage<2>(minus, std::make_integer_sequence<int, count / 2>());
    stage<1>(minus, std::make_integer_sequence<int, count / 2>());
  }

  /// `count` vectors of as many elements: element j of vector i becomes element i of vector j. Sixteen bytes have interleaving instructions; in
  /// longer vectors blocks of 4, 2 and 1 are exchanged.
  RMSFOLD_INLINE inline void transpose() {
    if constexpr (bytes == 16) {
      interleave(std::make_integer_sequence<int, count / 2>());
      if constexpr (count >= 4) interleave(std::make_integer_sequence<int, count / 2>());
      if constexpr (count >= 8) interleave(std::make_integer_sequence<int, count / 2>());
    } else {
      if constexpr (count >= 8) swap_blocks<4>(std::make_integer_sequence<int, count / 2>());
      if constexpr (count >= 4) swap_blocks<2>(std::make_integer_sequence<int, count / 2>());
      swap_blocks<1>(std::make_integer_sequence<int, count / 2>());
    }
  }

 private:
  template <int... k>
  RMSFOLD_INLINE inline void interleave(std::integer_sequence<int, k...>) {
    const Group before = *this;
    (interleave_two(v[2 * k], v[2 * k + 1], before.v[k], before.v[k + count / 2]), ...);
  }
  RMSFOLD_INLINE static inline void interleave_two(V& low, V& high, const V& a, const V& b) {
    interleave_from<0>(low, a, b, std::make_integer_sequence<int, count>());
    interleave_from<count / 2>(high, a, b, std::make_integer_sequence<int, count>());
  }
  template <int first, int... k>
  RMSFOLD_INLINE static inline void interleave_from(V& result, const V& a, const V& b, std::integer_sequence<int, k...>) {
    result = __builtin_shufflevector(a, b, (first + k / 2 + k % 2 * count)...);
  }
  template <int size, int... k>
  RMSFOLD_INLINE inline void swap_blocks(std::integer_sequence<int, k...>) {
    (swap_blocks_of<size>(v[k / size * 2 * size + k % size], v[k / size * 2 * size + k % size + size], std::make_integer_sequence<int, count>()),
     ...);
  }
  /// Exchanges the odd blocks of one with the even ones of the other.
  template <int size, int... k>
  RMSFOLD_INLINE static inline void swap_blocks_of(V& low, V& high, std::integer_sequence<int, k...>) {
    const V even = __builtin_shufflevector(low, high, ((k & size) == 0 ? k : count + k - size)...);
    high = __builtin_shufflevector(low, high, ((k & size) == 0 ? k + size : count + k)...);
    low = even;
  }
  template <class T, int... k>
  RMSFOLD_INLINE inline void load_each(const T* from, Index stride, std::integer_sequence<int, k...>) {
    (kernel::load(v[k], from + k * stride), ...);
  }
  template <class T, int... k>
  RMSFOLD_INLINE inline void store_each(T* to, Index stride, std::integer_sequence<int, k...>) const {
    (kernel::store(to + k * stride, v[k]), ...);
  }
  template <int stride, int... k>
  RMSFOLD_INLINE inline void stage(S minus, std::integer_sequence<int, k...>) {
    (butterfly(v[k / stride * 2 * stride + k % stride], v[k / stride * 2 * stride + k % stride + stride], minus), ...);
  }
  /// With fused operations in all registers the difference is one: adders and multipliers are different units, and both are kept busy.
  RMSFOLD_INLINE static inline void butterfly(V& low, V& high, [[maybe_unused]] S minus) {
    const V first = low;
    low = first + high;
    if constexpr (bytes == 64) {
      V difference = first;
      multiply_add(difference, high, minus);
      high = difference;
    } else {
      high = first - high;
    }
  }
};

#endif

}  // namespace rmsfold::kernel::detail
