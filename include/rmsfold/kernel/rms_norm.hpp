// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Kernels of RMSNorm: the sum of the squares of a row, and the row times its scale and its gain.

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <rmsfold/core/half.hpp>
#include <rmsfold/kernel/registers.hpp>
#include <rmsfold/kernel/simd.hpp>

namespace rmsfold::kernel {

/// A type that the kernels read and write rows of.
template <class T>
concept RowElement = std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, BF16>;

/// What products of entries are formed in before they are rounded to T: the next wider type, where there is one.
template <RowElement T>
using Product = std::conditional_t<std::same_as<T, BF16>, float, double>;

namespace detail {

/// See `multiply_add`: the square of a float is exact in double. That of a BF16 is in float, but for subnormals.
template <RowElement T>
struct ExactSquares {};
template <>
struct ExactSquares<float> {
  static constexpr bool exact_products = true;
};

#ifdef RMSFOLD_VECTORS

/// Two vectors of entries. Those of BF16 hold the first and the last four of every eight: that is one interleaving, within 16 bytes, each way.
template <RowElement T, int bytes>
struct Entries {
  using P = Product<T>;
  using V = Vec<P, bytes>;
  using Half = Vec<float, bytes / 2>;
  using Words = Vec<std::uint32_t, bytes>;
  using Shorts = Vec<std::uint16_t, bytes>;
  static constexpr Index count = 2 * lanes<P, bytes>;

  V first{}, last{};

  RMSFOLD_INLINE inline void read(const BF16* from) noexcept {
    Shorts stored;
    load(stored, from);
    interleave<0>(first, stored, std::make_integer_sequence<int, bytes / 2>());
    interleave<4>(last, stored, std::make_integer_sequence<int, bytes / 2>());
  }
  RMSFOLD_INLINE inline void read(const float* from) noexcept {
    if constexpr (std::same_as<P, double>) {
      Half a, b;
      load(a, from);
      load(b, from + count / 2);
      convert<double>(first, a);
      convert<double>(last, b);
    } else if constexpr (bytes == 16) {
      load(first, from);
      load(last, from + 4);
    } else {
      Half a, b;
      load(a, from);
      load(b, from + 8);
      first = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
      load(a, from + 4);
      load(b, from + 12);
      last = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
    }
  }
  RMSFOLD_INLINE inline void read(const double* from) noexcept {
    load(first, from);
    load(last, from + count / 2);
  }

  /// Rounded to nearest, ties to even.
  RMSFOLD_INLINE inline void write(BF16* to) const noexcept {
    Words a, b;
    round(a, first);
    round(b, last);
    Shorts packed;
    upper(packed, reinterpret_cast<Shorts>(a), reinterpret_cast<Shorts>(b), std::make_integer_sequence<int, bytes / 2>());
    store(to, packed);
  }
  RMSFOLD_INLINE inline void write(float* to) const noexcept {
    store(to, __builtin_convertvector(first, Half));
    store(to + count / 2, __builtin_convertvector(last, Half));
  }
  RMSFOLD_INLINE inline void write(double* to) const noexcept {
    store(to, first);
    store(to + count / 2, last);
  }

 private:
  template <int start, int... k>
  RMSFOLD_INLINE static inline void interleave(V& to, const Shorts& x, std::integer_sequence<int, k...>) noexcept {
    to = reinterpret_cast<V>(__builtin_shufflevector(Shorts{}, x, (start + k / 8 * 8 + k % 8 / 2 + k % 2 * (bytes / 2))...));
  }
  RMSFOLD_INLINE static inline void round(Words& to, const V& x) noexcept {
    const Words word = reinterpret_cast<Words>(x);
    to = word + 0x7fffu + (word >> 16 & 1u);
  }
  template <int... k>
  RMSFOLD_INLINE static inline void upper(Shorts& to, const Shorts& a, const Shorts& b, std::integer_sequence<int, k...>) noexcept {
    to = __builtin_shufflevector(a, b, (k / 8 * 8 + k % 4 * 2 + 1 + k % 8 / 4 * (bytes / 2))...);
  }
};

#endif

}  // namespace detail

/// \f$\sum_j x_j^2\f$. Partial sum j mod 16 is the sum in double of sums in `Product<T>` of four entries; in the end halves are added to halves.
template <RowElement T>
struct SumOfSquares : detail::ExactSquares<T> {
  /// The reference.
  static double scalar(const T* x, Index n) noexcept {
    double sums[partial] = {};
    return total(sums, x, 0, n);
  }

#ifdef RMSFOLD_VECTORS
  /// The same, partial sums in vectors.
  template <int bytes>
  RMSFOLD_INLINE static inline double run(const T* x, Index n) noexcept {
    constexpr auto pairs = std::make_integer_sequence<int, static_cast<int>(partial / detail::Entries<T, bytes>::count)>();
    constexpr auto all = std::make_integer_sequence<int, static_cast<int>(partial / lanes<double, bytes>)>();
    Sums<double, bytes> sums{};
    Index j = 0;
    for (; j + block <= n; j += block) {
      Sums<P, bytes> squares{};
      add<bytes>(squares, x + j, pairs);
      add<bytes>(squares, x + j + partial, pairs);
      add<bytes>(squares, x + j + 2 * partial, pairs);
      add<bytes>(squares, x + j + 3 * partial, pairs);
      add_up<bytes>(sums, squares, all);
    }
    double stored[partial];
    sums.store(stored, lanes<double, bytes>);
    return total(stored, x, j, n);
  }
#endif

 private:
  using P = Product<T>;
  static constexpr Index partial = 16;
  static constexpr Index block = 4 * partial;

  static double total(double* sums, const T* x, Index start, Index n) noexcept {
    for (; start < n; start += block) {
      for (Index k = 0; k < partial; ++k) {
        P squares = 0;
        for (Index j = start + k; j < (std::min)(start + block, n); j += partial) {
          const P value = static_cast<P>(to_double(x[j]));
          squares += value * value;
        }
        sums[k] += static_cast<double>(squares);
      }
    }
    for (Index half = partial / 2; half > 0; half /= 2) {
      for (Index k = 0; k < half; ++k) sums[k] += sums[k + half];
    }
    return sums[0];
  }

#ifdef RMSFOLD_VECTORS
  template <class S, int bytes>
  using Sums = detail::Group<S, bytes, static_cast<int>(partial / lanes<S, bytes>)>;

  template <int bytes, int... k>
  RMSFOLD_INLINE static inline void add(Sums<P, bytes>& squares, const T* x, std::integer_sequence<int, k...>) noexcept {
    (add_pair<bytes>(squares.v[2 * k], squares.v[2 * k + 1], x + k * detail::Entries<T, bytes>::count), ...);
  }
  template <int bytes>
  RMSFOLD_INLINE static inline void add_pair(Vec<P, bytes>& first, Vec<P, bytes>& last, const T* x) noexcept {
    detail::Entries<T, bytes> entries;
    entries.read(x);
    if constexpr (requires { SumOfSquares::exact_products; }) {
      multiply_add(first, entries.first, entries.first);
      multiply_add(last, entries.last, entries.last);
    } else {
      first += entries.first * entries.first;
      last += entries.last * entries.last;
    }
  }
  template <int bytes, int... k>
  RMSFOLD_INLINE static inline void add_up(Sums<double, bytes>& sums, const Sums<P, bytes>& squares,
                                                   std::integer_sequence<int, k...>) noexcept {
    if constexpr (std::same_as<P, double>) {
      ((sums.v[k] += squares.v[k]), ...);
    } else {
      P stored[partial];
      squares.store(stored, lanes<P, bytes>);
      (add_halves<bytes>(sums.v[k], stored + (bytes == 16 ? k * 2 : k % 2 * 8 + k / 2 * 4)), ...);
    }
  }
  template <int bytes>
  RMSFOLD_INLINE static inline void add_halves(Vec<double, bytes>& sum, const P* squares) noexcept {
    Vec<P, bytes / 2> half;
    Vec<double, bytes> value;
    load(half, squares);
    convert<double>(value, half);
    sum += value;
  }
#endif
};

/// \f$y_j = (x_j s)\,g_j\f$: products in `Product<T>`, rounded to T once. y may be x.
/// @tparam G  type of the gain.
/// @pre s and all \f$x_j s\f$ are finite; a NaN of the gain is the default one, without a payload.
template <RowElement T, std::floating_point G>
requires(sizeof(G) <= sizeof(Product<T>)) struct Normalise {
  /// The reference. @param gain  may be null: all 1. @param next  the row that will be read next: it is fetched meanwhile.
  static void scalar(const T* x, double s, const G* gain, T* y, Index n, [[maybe_unused]] const T* next) noexcept {
    const P scale = static_cast<P>(s);
    for (Index j = 0; j < n; ++j) {
      P value = static_cast<P>(to_double(x[j])) * scale;
      if (gain != nullptr) value *= static_cast<P>(gain[j]);
      y[j] = round_to<T>(static_cast<double>(value));
    }
  }

#ifdef RMSFOLD_VECTORS
  /// The same by vectors.
  template <int bytes>
  RMSFOLD_INLINE static inline void run(const T* x, double s, const G* gain, T* y, Index n, const T* next) noexcept {
    gain != nullptr ? run_with<bytes, true>(x, s, gain, y, n, next) : run_with<bytes, false>(x, s, gain, y, n, next);
  }
#endif

 private:
  using P = Product<T>;

#ifdef RMSFOLD_VECTORS
  template <int bytes, bool has_gain>
  RMSFOLD_INLINE static inline void run_with(const T* x, double s, const G* gain, T* y, Index n, const T* next) noexcept {
    using Entries = detail::Entries<T, bytes>;
    const P scale = static_cast<P>(s);
    Index j = 0;
    for (; j + Entries::count <= n; j += Entries::count) {
      if constexpr (sizeof(T) < 8) __builtin_prefetch(next + j, 0, 2);  // rows of doubles are so long that it costs more than it saves
      Entries entries;
      entries.read(x + j);
      entries.first *= scale;
      entries.last *= scale;
      if constexpr (has_gain) {
        Entries by;
        by.read(gain + j);
        entries.first *= by.first;
        entries.last *= by.last;
      }
      entries.write(y + j);
    }
    scalar(x + j, s, has_gain ? gain + j : nullptr, y + j, n - j, next);
  }
#endif
};

}  // namespace rmsfold::kernel
