// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Kernels of signed permutations of rows and of columns, on elements of 2, 4 and 8 bytes: only bits move.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <rmsfold/kernel/registers.hpp>
#include <rmsfold/kernel/simd.hpp>

namespace rmsfold::kernel {

#ifdef RMSFOLD_VECTORS

/// Permutes the entries of each row of `[rows, n]`, several rows at a time: they are transposed, so that an entry of all of them is one vector, which
/// is moved as a whole, and transposed back on the way out. One load and one store take the place of eight.
template <std::unsigned_integral Word>
struct PermuteEntries {
  /// Entry j becomes entry `source[j]`, with its highest bit flipped where `sign[j]` is negative. @param sign  may be null.
  template <int bytes>
  RMSFOLD_INLINE static inline void run(std::byte* data, Index rows, Index n, const Index* source, const int* sign) {
    constexpr int vector = sizeof(Word) == 2 ? 16 : bytes;  // eight rows of halves, and of floats and four of doubles with 32 bytes
    constexpr Index l = lanes<Word, vector>;
    using Group = detail::Group<Word, vector, static_cast<int>(l)>;
    Word* const tile = detail::scratch<Word, 0>(n * l);
    Word* const flips = detail::scratch<Word, 1>(n);
    for (Index j = 0; j < n; ++j) flips[j] = static_cast<Word>(static_cast<Word>(sign != nullptr && sign[j] < 0) << (8 * sizeof(Word) - 1));
    const Index whole = n / l * l;
    for (Index r = 0; r < rows; r += l, data += l * n * size) {
      const Index now = (std::min)(l, rows - r);
      if (now == l) {
        for (Index j = 0; j < whole; j += l) {
          Group group;
          group.load_bytes(data + j * size, n * size);
          group.transpose();
          group.store(tile + j * l, l);
        }
      }
      for (Index i = 0; i < now; ++i) {
        for (Index j = now == l ? whole : 0; j < n; ++j) std::memcpy(tile + j * l + i, data + (i * n + j) * size, sizeof(Word));
      }
      if (now == l) {
        for (Index j = 0; j < whole; j += l) {
          const std::byte* const next = data + (n + j) * l * size;  // of the rows that follow
          for (Index k = 0; k < l * l * size; k += 64) __builtin_prefetch(next + k, 0, 2);
          Group group;
          pick(group, tile, source + j, std::make_integer_sequence<int, static_cast<int>(l)>());
          group.transpose();
          flip(group, flips + j, std::make_integer_sequence<int, static_cast<int>(l)>());
          group.store_bytes(data + j * size, n * size);
        }
      }
      for (Index i = 0; i < now; ++i) {
        for (Index j = now == l ? whole : 0; j < n; ++j) {
          const Word word = static_cast<Word>(tile[source[j] * l + i] ^ flips[j]);
          std::memcpy(data + (i * n + j) * size, &word, sizeof(Word));
        }
      }
    }
  }

 private:
  static constexpr Index size = static_cast<Index>(sizeof(Word));
  template <class Group, int... k>
  RMSFOLD_INLINE static inline void pick(Group& group, const Word* tile, const Index* source, std::integer_sequence<int, k...>) {
    (load(group.v[k], tile + source[k] * static_cast<Index>(sizeof...(k))), ...);
  }
  template <class Group, int... k>
  RMSFOLD_INLINE static inline void flip(Group& group, const Word* flips, std::integer_sequence<int, k...>) {
    typename Group::V bits;
    load(bits, flips);
    ((group.v[k] ^= bits), ...);
  }
};

/// Permutes the rows of `[n, inner]` along the cycles of the permutation: each is read once and written once.
template <std::unsigned_integral Word>
struct PermuteRows {
  /// Row j becomes row `source[j]`, with the highest bits flipped where `sign[j]` is negative. @param sign  may be null.
  template <int bytes>
  RMSFOLD_INLINE static inline void run(std::byte* data, Index n, Index inner, const Index* source, const int* sign) {
    const Index row = inner * static_cast<Index>(sizeof(Word));
    std::byte* const spare = detail::scratch<std::byte, 0>(row);
    std::vector<bool> done(static_cast<std::size_t>(n), false);
    for (Index first = 0; first < n; ++first) {
      if (done[static_cast<std::size_t>(first)]) continue;
      if (source[first] != first) std::memcpy(spare, data + first * row, static_cast<std::size_t>(row));
      Index j = first;
      for (; source[j] != first; j = source[j]) {
        done[static_cast<std::size_t>(j)] = true;
        copy<bytes>(data + source[j] * row, data + j * row, row, sign != nullptr && sign[j] < 0);
      }
      done[static_cast<std::size_t>(j)] = true;
      copy<bytes>(source[first] == first ? data + first * row : spare, data + j * row, row, sign != nullptr && sign[j] < 0);
    }
  }

 private:
  template <int bytes>
  RMSFOLD_INLINE static inline void copy(const std::byte* from, std::byte* to, Index row, bool flip) {
    constexpr Word bit = static_cast<Word>(Word(1) << (8 * sizeof(Word) - 1));
    if (!flip) {
      if (from != to) std::memcpy(to, from, static_cast<std::size_t>(row));
      return;
    }
    Index k = 0;
    for (; k + bytes <= row; k += bytes) {
      Vec<Word, bytes> words;
      load(words, from + k);
      store(to + k, words ^ bit);
    }
    for (; k < row; k += static_cast<Index>(sizeof(Word))) {
      Word word;
      std::memcpy(&word, from + k, sizeof(Word));
      word = static_cast<Word>(word ^ bit);
      std::memcpy(to + k, &word, sizeof(Word));
    }
  }
};

#endif

/// Multiplies the middle axis of `[outer, n, inner]` of elements of `Word`'s size by a signed permutation, in place.
/// @param sign  may be null. @returns false, and does nothing, where the reference is to be used.
template <std::unsigned_integral Word>
[[nodiscard]] bool permute([[maybe_unused]] void* elements, [[maybe_unused]] Index outer, [[maybe_unused]] Index n, [[maybe_unused]] Index inner,
                           [[maybe_unused]] const Index* source, [[maybe_unused]] const int* sign) {
#ifdef RMSFOLD_VECTORS
  std::byte* data = static_cast<std::byte*>(elements);
  if (target() == Target::scalar) return false;
  if (inner == 1) {
    dispatch<PermuteEntries<Word>>(data, outer, n, source, sign);
    return true;
  }
  constexpr Index size = static_cast<Index>(sizeof(Word));
  if (inner * size < 128) return false;
  for (Index o = 0; o < outer; ++o, data += n * inner * size) dispatch<PermuteRows<Word>>(data, n, inner, source, sign);
  return true;
#else
  return false;
#endif
}

}  // namespace rmsfold::kernel
