// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Kernels of the fast Hadamard transform: the additions of the textbook loops in their order, arranged so that each pass over memory does as many as
/// fit into registers and L1.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <rmsfold/kernel/registers.hpp>
#include <rmsfold/kernel/simd.hpp>

namespace rmsfold::kernel {

/// The unsigned integer with the bits of S.
template <std::floating_point S>
using Bits = std::conditional_t<sizeof(S) == 4, std::uint32_t, std::uint64_t>;

/// One factor of the Kronecker product, or up to six factors 2: it acts on rows b, b + after, b + 2 after, …
template <std::floating_point S>
struct Step {
  Index order = 1;       ///< rows that are combined
  Index after = 1;       ///< distance between them
  std::vector<S> signs;  ///< a block by ±1: for every four columns j, for every i, entries (i, j) … (i, j+3); empty for twos
};

/// \f$Q = L\,sH\,R\f$ as kernels see it: the steps of H, and signed moves at both ends. Built once for a rotation, factor by factor.
template <std::floating_point S>
class Transform {
 public:
  /// Of dimension n, times `scale`.
  Transform(Index n, S factor)
      : dim(n),
        scale(factor),
        from(static_cast<std::size_t>(n)),
        flip_from(from.size()),
        to(from.size()),
        flip_to(from.size()),
        of(from.size()),
        rest_(n) {}

  /// L: entry i of the operand of H is entry j of x, negated if need be.
  void take(Index i, Index j, bool negated) {
    move(from, flip_from, i, j, negated);
    takes_moves = takes_moves || i != j;
    takes_signs = takes_signs || negated;
  }
  /// R: entry i of sH is entry j of the result, negated if need be.
  void put(Index i, Index j, bool negated) {
    move(to, flip_to, i, j, negated);
    of[static_cast<std::size_t>(j)] = static_cast<std::int32_t>(i);
    puts_moves = puts_moves || i != j;
    puts_signs = puts_signs || negated;
  }

  /// The next factor: a block of f. @param positive  whether entry (i, j) is +1.
  template <class Positive>
  void add_block(Index f, const Positive& positive) {
    rest_ /= f;
    std::vector<S> signs;
    for (Index j = 0; j < f; j += 4) {
      for (Index i = 0; i < f; ++i) {
        for (Index k = j; k < j + 4; ++k) signs.push_back(positive(i, k) ? S(1) : S(-1));
      }
    }
    steps.push_back({f, rest_, std::move(signs)});
  }

  /// The last factors: `count` twos, in steps of at most six and much the same size.
  void add_twos(int count) {
    twos = Index{1} << count;
    for (int parts = (count + 5) / 6; parts > 0; --parts) {
      const int now = (count + parts - 1) / parts;
      count -= now;
      rest_ >>= now;
      steps.push_back({Index{1} << now, rest_, {}});
    }
  }

  Index dim;                       ///< n
  S scale;                         ///< s
  std::vector<Step<S>> steps;      ///< from the first factor to the last
  Index twos = 1;                  ///< the power of two that the last steps make up
  std::vector<std::int32_t> from;  ///< entry i of the operand of H is entry `from[i]` of x …
  std::vector<Bits<S>> flip_from;  ///< … with these bits flipped: the sign or none
  std::vector<std::int32_t> to;    ///< entry i of sH becomes entry `to[i]` of the result …
  std::vector<Bits<S>> flip_to;    ///< … with these bits flipped
  std::vector<std::int32_t> of;    ///< the inverse of `to`
  bool takes_moves = false;        ///< whether `from` is not the identity
  bool takes_signs = false;        ///< whether `flip_from` flips
  bool puts_moves = false;         ///< whether `to` is not the identity
  bool puts_signs = false;         ///< whether `flip_to` flips

 private:
  static void move(std::vector<std::int32_t>& index, std::vector<Bits<S>>& flip, Index i, Index j, bool negated) {
    index[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(j);
    flip[static_cast<std::size_t>(i)] = negated ? Bits<S>(1) << (8 * sizeof(S) - 1) : 0;
  }

  Index rest_;
};

#ifdef RMSFOLD_VECTORS

namespace detail {

/// Reverses the sign where `flip` has the sign bit.
template <class S, int bytes>
[[gnu::always_inline]] inline void flip_signs(Vec<S, bytes>& vector, const Vec<Bits<S>, bytes>& flip) {
  vector = reinterpret_cast<Vec<S, bytes>>(reinterpret_cast<Vec<Bits<S>, bytes>>(vector) ^ flip);
}

}  // namespace detail

namespace detail {

/// Where rows of something are: `index` and `flip` may be null.
template <class S>
struct Place {
  S* base;
  Index stride;
  const std::int32_t* index;
  const Bits<S>* flip;

  [[gnu::always_inline]] inline S* row(Index i) const { return base + (index != nullptr ? index[i] : i) * stride; }
  [[gnu::always_inline]] inline Bits<S> flip_of(Index i) const { return flip != nullptr ? flip[i] : Bits<S>(0); }
};

/// One block of a Kronecker product.
template <std::floating_point S>
struct Block {
  /// A block of order f: four outputs by two vectors are in registers while the inputs go by, each times ±1, which is exact.
  template <int bytes>
  [[gnu::always_inline]] static inline void run(const Step<S>& step, Index after, const Place<S>& in, const Place<S>& out, Index row, Index width,
                                                S* tile, S scale) {
    constexpr Index vector = lanes<S, bytes>;
    constexpr Index line = 64 / static_cast<Index>(sizeof(S));
    const Index f = step.order;
    Index panel = line;  // so that f rows of it stay in L1
    while (2 * panel <= width && 2 * panel * f * static_cast<Index>(sizeof(S)) <= 16384) panel *= 2;
    for (Index start = 0; start < width; start += panel) {
      const Index now = (std::min)(panel, width - start);
      for (Index i = 0; i < f; ++i) {
        const S* const from = in.row(row + i * after) + start;
        const Bits<S> flip = in.flip_of(row + i * after);
        for (Index k = 0; k < now; k += vector) {
          Vec<S, bytes> x;
          load(x, from + k);
          detail::flip_signs<S, bytes>(x, Vec<Bits<S>, bytes>{} + flip);
          store(tile + i * panel + k, x);
        }
      }
      const S* signs = step.signs.data();
      for (Index j = 0; j < f; j += 4, signs += 4 * f) {
        const Index to = row + j * after;
        for (Index k = 0; k < now; k += 2 * vector) {
          Vec<S, bytes> a0{}, a1{}, b0{}, b1{}, c0{}, c1{}, d0{}, d1{};
          for (Index i = 0; i < f; ++i) {
            Vec<S, bytes> x0, x1;
            load(x0, tile + i * panel + k);
            load(x1, tile + i * panel + k + vector);
            const S* const sign = signs + 4 * i;
            multiply_add(a0, x0, sign[0]);
            multiply_add(a1, x1, sign[0]);
            multiply_add(b0, x0, sign[1]);
            multiply_add(b1, x1, sign[1]);
            multiply_add(c0, x0, sign[2]);
            multiply_add(c1, x1, sign[2]);
            multiply_add(d0, x0, sign[3]);
            multiply_add(d1, x1, sign[3]);
          }
          put<bytes>(a0, a1, out, to, start + k, scale);
          put<bytes>(b0, b1, out, to + after, start + k, scale);
          put<bytes>(c0, c1, out, to + 2 * after, start + k, scale);
          put<bytes>(d0, d1, out, to + 3 * after, start + k, scale);
        }
      }
    }
  }

 private:
  template <int bytes>
  [[gnu::always_inline]] static inline void put(Vec<S, bytes>& x0, Vec<S, bytes>& x1, const Place<S>& out, Index row, Index k, S scale) {
    const Vec<Bits<S>, bytes> flip = Vec<Bits<S>, bytes>{} + out.flip_of(row);
    detail::flip_signs<S, bytes>(x0 *= scale, flip);
    detail::flip_signs<S, bytes>(x1 *= scale, flip);
    store(out.row(row) + k, x0);
    store(out.row(row) + k + lanes<S, bytes>, x1);
  }
};

}  // namespace detail

/// Transforms each row of `[rows, n]` where the factors end in a power of two that is long enough.
///
/// Passes of three stages with eight vectors in registers, while strides are long; then eight vectors in a row are finished at once: the stages
/// between them, and those within a vector as \f$swap(x) \pm x\f$, a shuffle and a product by ±1. 4096 floats are three passes over L1.
template <std::floating_point S>
struct Rows {
  static constexpr bool exact_products = true;  ///< see `multiply_add`
  /// Shortest power of two.
  static constexpr Index least = 8 * 32 / static_cast<Index>(sizeof(S));

  /// Row by row, in place; by way of a buffer where entries move.
  template <int bytes>
  [[gnu::always_inline]] static inline void run(const Transform<S>* transform, S* data, Index rows) {
    const Index n = transform->dim;
    const Index twos = transform->twos;
    const Bits<S>* const flip_from = transform->takes_signs ? transform->flip_from.data() : nullptr;
    const Bits<S>* const flip_to = transform->puts_signs ? transform->flip_to.data() : nullptr;
    S* const buffer = transform->takes_moves || transform->puts_moves ? detail::scratch<S, 0>(n) : nullptr;
    S* const tile = n > twos ? detail::scratch<S, 1>(largest_tile) : nullptr;
    for (Index r = 0; r < rows; ++r, data += n) {
      S* const x = transform->takes_moves ? buffer : data;
      S* const y = transform->puts_moves ? buffer : data;
      if (transform->takes_moves) gather(data, transform->from.data(), buffer, n);
      if (flip_from != nullptr) flip<bytes>(x, flip_from, n);
      for (const Step<S>& step : transform->steps) {
        if (step.signs.empty()) break;
        for (Index start = 0; start < n; start += step.order * step.after) {
          const detail::Place<S> place{x + start, step.after, nullptr, nullptr};
          detail::Block<S>::template run<bytes>(step, 1, place, place, 0, step.after, tile, S(1));
        }
      }
      Index block = twos;
      while (block > in_l1) block >>= passes<bytes>(x, n, block);
      for (Index start = 0; start < n; start += block) {
        for (Index size = block; size > tail<bytes>;) size >>= passes<bytes>(x + start, block, size);
        for (Index k = start; k < start + block; k += tail<bytes>) {
          flip_to != nullptr ? finish<bytes, true>(x + k, y + k, transform->scale, flip_to + k, data + n + k)
                             : finish<bytes, false>(x + k, y + k, transform->scale, nullptr, data + n + k);
        }
      }
      if (transform->puts_moves) gather(buffer, transform->of.data(), data, n);
    }
  }

 private:
  static constexpr Index largest_tile = 256 * 128 / static_cast<Index>(sizeof(S)) + 16384 / static_cast<Index>(sizeof(S));

  /// Four loads before four stores: a compiler that may not reorder them takes half as long again.
  [[gnu::always_inline]] static inline void gather(const S* from, const std::int32_t* index, S* to, Index n) {
    for (Index j = 0; j < n; j += 4) {
      const S a = from[index[j]], b = from[index[j + 1]], c = from[index[j + 2]], d = from[index[j + 3]];
      to[j] = a;
      to[j + 1] = b;
      to[j + 2] = c;
      to[j + 3] = d;
    }
  }

  static constexpr Index in_l1 = 8192 / static_cast<Index>(sizeof(S));
  template <int bytes>
  static constexpr int registers = bytes == 64 ? 16 : 8;
  template <int bytes>
  static constexpr Index tail = registers<bytes>* lanes<S, bytes>;

  /// The next stages of `[n / size, size]`. @returns how many.
  template <int bytes>
  [[gnu::always_inline]] static inline int passes(S* data, Index n, Index size) {
    int left = 0;
    while (tail<bytes> << left < size) ++left;
    if (bytes == 64 && (left == 4 || left >= 7)) {
      pass<bytes, 16>(data, n, size / 16);
      return 4;
    }
    if (left == 3 || left >= 5) {
      pass<bytes, 8>(data, n, size / 8);
      return 3;
    }
    if (left == 2 || left == 4) {
      pass<bytes, 4>(data, n, size / 4);
      return 2;
    }
    pass<bytes, 2>(data, n, size / 2);
    return 1;
  }

  template <int bytes>
  [[gnu::always_inline]] static inline void flip(S* data, const Bits<S>* bits, Index n) {
    for (Index k = 0; k < n; k += lanes<S, bytes>) {
      Vec<S, bytes> x;
      Vec<Bits<S>, bytes> mask;
      load(x, data + k);
      load(mask, bits + k);
      detail::flip_signs<S, bytes>(x, mask);
      store(data + k, x);
    }
  }

  template <int bytes, int radix>
  [[gnu::always_inline]] static inline void pass(S* data, Index n, Index stride) {
    for (Index start = 0; start < n; start += radix * stride) {
      for (S *x = data + start, *end = x + stride; x < end; x += lanes<S, bytes>) {
        detail::Group<S, bytes, radix> group;
        group.load(x, stride);
        group.butterflies();
        group.store(x, stride);
      }
    }
  }

  /// The last stages, of `tail` elements in a row, scale and signs; asks for the same place of the next row meanwhile.
  template <int bytes, bool flips>
  [[gnu::always_inline]] static inline void finish(const S* x, S* y, S scale, const Bits<S>* flip_to, const S* next) {
    for (Index k = 0; k < tail<bytes>; k += 64 / static_cast<Index>(sizeof(S))) __builtin_prefetch(next + k, 0, sizeof(S) == 4 ? 3 : 2);
    detail::Group<S, bytes, registers<bytes>> group;
    group.load(x, lanes<S, bytes>);
    group.butterflies();
    put_all<bytes, flips>(group, y, scale, flip_to, std::make_integer_sequence<int, registers<bytes>>());
  }
  template <int bytes, bool flips, int... k>
  [[gnu::always_inline]] static inline void put_all(detail::Group<S, bytes, registers<bytes>>& group, S* y, S scale, const Bits<S>* flip_to,
                                                    std::integer_sequence<int, k...>) {
    (put<bytes, flips>(group.v[k], y + k * lanes<S, bytes>, scale, flips ? flip_to + k * lanes<S, bytes> : nullptr), ...);
  }

  template <int bytes, bool flips>
  [[gnu::always_inline]] static inline void put(Vec<S, bytes>& x, S* to, S scale, [[maybe_unused]] const Bits<S>* flip_to) {
    constexpr int count = static_cast<int>(lanes<S, bytes>);
    if constexpr (count >= 16) within<8, bytes>(x, std::make_integer_sequence<int, count>());
    if constexpr (count >= 8) within<4, bytes>(x, std::make_integer_sequence<int, count>());
    if constexpr (count >= 4) within<2, bytes>(x, std::make_integer_sequence<int, count>());
    within<1, bytes>(x, std::make_integer_sequence<int, count>());
    x *= scale;
    if constexpr (flips) {
      Vec<Bits<S>, bytes> mask;
      load(mask, flip_to);
      detail::flip_signs<S, bytes>(x, mask);
    }
    store(to, x);
  }

  /// The stage of this stride within a vector: the lower of two gets high + low, the higher low - high.
  template <int stride, int bytes, int... k>
  [[gnu::always_inline]] static inline void within(Vec<S, bytes>& x, std::integer_sequence<int, k...>) {
    constexpr Vec<S, bytes> sign{S((k & stride) == 0 ? 1 : -1)...};
    Vec<S, bytes> result = __builtin_shufflevector(x, x, (k ^ stride)...);
    multiply_add(result, x, sign);
    x = result;
  }
};

/// Transforms columns of `[n, columns]`, in strips that are narrow enough for caches and wide enough for memory.
///
/// A step of up to six stages reads 64 rows of the strip, wherever they are, does three stages on the way into a tile in L1 and three on the way out.
/// The first step reads the matrix, with L's moves and signs; the last one writes it, with the scale and R's; between them the strip is in a buffer
/// whose rows are a cache line longer than they need be: at a power of two all rows would share a few sets of the cache.
template <std::floating_point S>
struct Columns {
  static constexpr bool exact_products = true;  ///< see `multiply_add`
  /// Columns come in whole cache lines.
  static constexpr Index line = 64 / static_cast<Index>(sizeof(S));
  /// Columns of a strip.
  static constexpr Index strip = 512 / static_cast<Index>(sizeof(S));

  /// Distance between the rows of tile and buffer.
  static constexpr Index padded = strip + line;

  /// @param stride  distance between rows. @param columns  a multiple of `line`.
  template <int bytes>
  [[gnu::always_inline]] static inline void run(const Transform<S>* transform, S* data, Index stride, Index columns) {
    const Index n = transform->dim;
    Index largest = 64;
    for (const Step<S>& step : transform->steps) largest = (std::max)(largest, step.order);
    const Index width = (std::min)(strip, columns);
    S* const tile = detail::scratch<S, 0>(largest * padded);
    S* const buffer = transform->steps.size() > 1 ? detail::scratch<S, 1>(n * padded) : nullptr;
    for (Index start = 0; start < columns; start += width) {
      const Index now = (std::min)(width, columns - start);
      for (std::size_t k = 0; k < transform->steps.size(); ++k) {
        const Step<S>& step = transform->steps[k];
        const bool first = k == 0;
        const bool last = k + 1 == transform->steps.size();
        const detail::Place<S> in = first ? detail::Place<S>{data + start, stride, transform->from.data(), transform->flip_from.data()}
                                          : detail::Place<S>{buffer, padded, nullptr, nullptr};
        const detail::Place<S> out = last ? detail::Place<S>{data + start, stride, transform->to.data(), transform->flip_to.data()}
                                          : detail::Place<S>{buffer, padded, nullptr, nullptr};
        for (Index row = 0; row < n; row += step.order * step.after) {
          for (Index r = row; r < row + step.after; ++r) {
            if (!step.signs.empty()) {
              detail::Block<S>::template run<bytes>(step, step.after, in, out, r, now, tile, last ? transform->scale : S(1));
            } else {
              twos<bytes>(step, in, out, r, now, tile, first, last, transform->scale);
            }
          }
        }
      }
    }
  }

 private:
  /// What one pass combines.
  template <int radix>
  struct Ends {
    S* in[static_cast<std::size_t>(radix)];
    S* out[static_cast<std::size_t>(radix)];
    Bits<S> flip_in[static_cast<std::size_t>(radix)];
    Bits<S> flip_out[static_cast<std::size_t>(radix)];
  };

  template <int bytes>
  [[gnu::always_inline]] static inline void twos(const Step<S>& step, const detail::Place<S>& in, const detail::Place<S>& out, Index row, Index width,
                                                 S* tile, bool first, bool last, S scale) {
    if (step.order <= 8) {
      const bool ends = first || last;
      const S factor = last ? scale : S(1);
      switch (step.order) {
        case 2:
          ends ? through<bytes, 2, true>(in, out, row, step.after, width, factor) : through<bytes, 2, false>(in, out, row, step.after, width, factor);
          break;
        case 4:
          ends ? through<bytes, 4, true>(in, out, row, step.after, width, factor) : through<bytes, 4, false>(in, out, row, step.after, width, factor);
          break;
        default:
          ends ? through<bytes, 8, true>(in, out, row, step.after, width, factor) : through<bytes, 8, false>(in, out, row, step.after, width, factor);
          break;
      }
      return;
    }
    switch (step.order) {
      case 16:
        tiled<bytes, 2>(in, out, row, step.after, width, tile, first, last, scale);
        break;
      case 32:
        tiled<bytes, 4>(in, out, row, step.after, width, tile, first, last, scale);
        break;
      default:
        tiled<bytes, 8>(in, out, row, step.after, width, tile, first, last, scale);
        break;
    }
  }

  template <int bytes, Index rest>
  [[gnu::always_inline]] static inline void tiled(const detail::Place<S>& in, const detail::Place<S>& out, Index row, Index after, Index width,
                                                  S* tile, bool first, bool last, S scale) {
    first ? enter<bytes, rest, true>(in, row, after, width, tile) : enter<bytes, rest, false>(in, row, after, width, tile);
    last ? leave<bytes, rest, true>(tile, out, row, after, width, scale) : leave<bytes, rest, false>(tile, out, row, after, width, scale);
  }

  /// All stages of a step of 2, 4 or 8.
  template <int bytes, int radix, bool ends>
  [[gnu::always_inline]] static inline void through(const detail::Place<S>& in, const detail::Place<S>& out, Index row, Index after, Index width,
                                                    S scale) {
    Ends<radix> rows;
    for (int i = 0; i < radix; ++i) {
      rows.in[i] = in.row(row + i * after);
      rows.out[i] = out.row(row + i * after);
      rows.flip_in[i] = in.flip_of(row + i * after);
      rows.flip_out[i] = out.flip_of(row + i * after);
    }
    pass<bytes, radix, ends, ends>(rows, width, scale);
  }

  /// Three stages on the way into the tile; asks for the rows that follow in memory.
  template <int bytes, Index rest, bool first>
  [[gnu::always_inline]] static inline void enter(const detail::Place<S>& in, Index row, Index after, Index width, S* tile) {
    for (Index q = 0; q < rest; ++q) {
      Ends<8> rows;
      for (Index t = 0; t < 8; ++t) {
        const Index i = row + (q + t * rest) * after;
        rows.in[t] = in.row(i);
        rows.out[t] = tile + (q + t * rest) * padded;
        rows.flip_in[t] = in.flip_of(i);
        if (first) {
          const S* const next = in.row(row + 1 < after ? i + 1 : i);
          for (Index k = 0; k < width; k += line) __builtin_prefetch(next + k);
        }
      }
      pass<bytes, 8, first, false>(rows, width, S(1));
    }
  }

  /// The other stages on the way out of the tile.
  template <int bytes, Index radix, bool last>
  [[gnu::always_inline]] static inline void leave(S* tile, const detail::Place<S>& out, Index row, Index after, Index width, S scale) {
    for (Index p = 0; p < 8; ++p) {
      Ends<radix> rows;
      for (Index t = 0; t < radix; ++t) {
        const Index i = p * radix + t;
        rows.in[t] = tile + i * padded;
        rows.out[t] = out.row(row + i * after);
        rows.flip_out[t] = out.flip_of(row + i * after);
      }
      pass<bytes, radix, false, last>(rows, width, scale);
    }
  }

  template <int bytes, int radix, bool first, bool last>
  [[gnu::always_inline]] static inline void pass(const Ends<radix>& rows, Index width, S scale) {
    for (Index k = 0; k < width; k += lanes<S, bytes>) {
      detail::Group<S, bytes, radix> group;
      read<bytes, radix, first>(group, rows, k, std::make_integer_sequence<int, radix>());
      group.butterflies();
      write<bytes, radix, last>(group, rows, k, scale, std::make_integer_sequence<int, radix>());
    }
  }

  template <int bytes, int radix, bool first, int... i>
  [[gnu::always_inline]] static inline void read(detail::Group<S, bytes, radix>& group, const Ends<radix>& rows, Index k,
                                                 std::integer_sequence<int, i...>) {
    (load(group.v[i], rows.in[i] + k), ...);
    if constexpr (first) (detail::flip_signs<S, bytes>(group.v[i], Vec<Bits<S>, bytes>{} + rows.flip_in[i]), ...);
  }

  template <int bytes, int radix, bool last, int... i>
  [[gnu::always_inline]] static inline void write(detail::Group<S, bytes, radix>& group, const Ends<radix>& rows, Index k, S scale,
                                                  std::integer_sequence<int, i...>) {
    if constexpr (last) (detail::flip_signs<S, bytes>(group.v[i] *= scale, Vec<Bits<S>, bytes>{} + rows.flip_out[i]), ...);
    (store(rows.out[i] + k, group.v[i]), ...);
  }
};

/// Rows to columns and back: `count` rows of n, a distance apart, to `[n, width]`.
template <std::floating_point S>
struct Transpose {
  /// `to[j * width + i] = from[i * n + j]`, or with `back` the other way. @param count  rows, at most `width`.
  template <int bytes>
  [[gnu::always_inline]] static inline void run(S* rows, Index count, Index n, S* columns, Index width, bool back) {
    constexpr Index l = lanes<S, bytes>;
    Index i = 0;
    for (; i + l <= count; i += l) {
      Index j = 0;
      for (; j + l <= n; j += l) {
        S* const row = rows + i * n + j;
        S* const column = columns + j * width + i;
        detail::Group<S, bytes, static_cast<int>(l)> group;
        back ? group.load(column, width) : group.load(row, n);
        group.transpose();
        back ? group.store(row, n) : group.store(column, width);
      }
      rest(rows, i, i + l, j, n, columns, width, back);
    }
    rest(rows, i, count, 0, n, columns, width, back);
  }

 private:
  static void rest(S* rows, Index first, Index last, Index start, Index n, S* columns, Index width, bool back) {
    for (Index i = first; i < last; ++i) {
      for (Index j = start; j < n; ++j) {
        S& in_row = rows[i * n + j];
        S& in_column = columns[j * width + i];
        back ? in_row = in_column : in_column = in_row;
      }
    }
  }
};

#endif

/// Multiplies the middle axis of `[outer, n, inner]` by Q, in place, on this thread. @returns false, and does nothing, where the reference is to be
/// used.
template <std::floating_point S>
[[nodiscard]] bool apply([[maybe_unused]] const Transform<S>& transform, [[maybe_unused]] S* data, [[maybe_unused]] Index outer, [[maybe_unused]] Index inner) {
#ifdef RMSFOLD_VECTORS
  const Index n = transform.dim;
  const Transform<S>* const q = &transform;
  if (target() == Target::scalar || n < 2) return false;
  if (inner == 1 && transform.twos >= Rows<S>::least) {
    dispatch<Rows<S>>(q, data, outer);
    return true;
  }
  constexpr Index line = Columns<S>::line;
  if (outer * inner < 4) return false;
  if (inner == 1) {  // rows are turned into columns
    const Index width = (std::min)(Columns<S>::strip, (outer + line - 1) / line * line);
    S* const columns = detail::scratch<S, 2>(n * width);
    for (Index o = 0; o < outer; o += width) {
      const Index count = (std::min)(width, outer - o);
      dispatch<Transpose<S>>(data + o * n, count, n, columns, width, false);
      for (Index j = 0; count < width && j < n; ++j) std::fill(columns + j * width + count, columns + (j + 1) * width, S(0));
      dispatch<Columns<S>>(q, columns, width, width);
      dispatch<Transpose<S>>(data + o * n, count, n, columns, width, true);
    }
    return true;
  }
  const Index whole = inner / line * line;
  for (Index o = 0; o < outer; ++o, data += n * inner) {
    if (whole > 0) dispatch<Columns<S>>(q, data, inner, whole);
    if (whole == inner) continue;
    const Index count = inner - whole;  // the last columns are less than a line
    S* const columns = detail::scratch<S, 2>(n * line);
    for (Index j = 0; j < n; ++j) std::fill(std::copy_n(data + j * inner + whole, count, columns + j * line), columns + (j + 1) * line, S(0));
    dispatch<Columns<S>>(q, columns, line, line);
    for (Index j = 0; j < n; ++j) std::copy_n(columns + j * line, count, data + j * inner + whole);
  }
  return true;
#else
  return false;
#endif
}

}  // namespace rmsfold::kernel
