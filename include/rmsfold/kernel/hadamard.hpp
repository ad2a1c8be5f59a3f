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

/// Four inputs of a block by ±1 enter every output as one of the eight \f$\pm((a\pm b)\pm(c\pm d))\f$, which are computed once for all outputs: f/4
/// additions each then take the place of f-1 ("four Russians": Arlazarov, Dinic, Kronrod and Faradzhev, 1970).
/// @returns which one has these signs, times a's: bit 0 for \f$a-b\f$, bit 1 for the second pair subtracted, bit 2 for \f$c-d\f$.
[[nodiscard]] constexpr int combination(bool a, bool b, bool c, bool d) noexcept {
  return (a != b ? 1 : 0) + (a != c ? 2 : 0) + (c != d ? 4 : 0);
}

/// What an output of a block adds.
template <std::floating_point S>
struct Term {
  std::int32_t entry;  ///< 8 times the place of the four in the table, plus their `combination`
  S sign;              ///< ±1, a's
};

/// One factor of the Kronecker product, or up to six factors 2: it acts on rows b, b + after, b + 2 after, …
template <std::floating_point S>
struct Step {
  /// Inputs whose combinations are in the table together: those of panels of 256 bytes take half of L1.
  static constexpr Index at_once = 32;

  Index order = 1;             ///< rows that are combined
  Index after = 1;             ///< distance between them
  std::vector<Term<S>> terms;  ///< for every `at_once` inputs, for every output, one for each four of these inputs; empty for twos
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
    std::vector<Term<S>> terms;
    for (Index first = 0; first < f; first += Step<S>::at_once) {
      for (Index j = 0; j < f; ++j) {
        for (Index i = first; i < (std::min)(f, first + Step<S>::at_once); i += 4) {
          const bool sign = positive(i, j);
          const int which = combination(sign, positive(i + 1, j), positive(i + 2, j), positive(i + 3, j));
          terms.push_back({static_cast<std::int32_t>(2 * (i - first)) + which, sign ? S(1) : S(-1)});
        }
      }
    }
    steps.push_back({f, rest_, std::move(terms)});
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
  S minus = -1;                    ///< what kernels multiply by to subtract
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
RMSFOLD_INLINE inline void flip_signs(Vec<S, bytes>& vector, const Vec<Bits<S>, bytes>& flip) {
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

  RMSFOLD_INLINE inline S* row(Index i) const { return base + (index != nullptr ? index[i] : i) * stride; }
  RMSFOLD_INLINE inline Bits<S> flip_of(Index i) const { return flip != nullptr ? flip[i] : Bits<S>(0); }
};

/// One block of a Kronecker product, in panels whose combinations stay in L1.
template <std::floating_point S>
struct Block {
  /// Elements of scratch that are needed: the table, and a sum for each output.
  static constexpr Index space = (2 * Step<S>::at_once + 256) * 256 / static_cast<Index>(sizeof(S));

  /// @param width  a multiple of 64 bytes. @param scratch  `space` elements.
  template <int bytes>
  RMSFOLD_INLINE static inline void run(const Step<S>& step, Index after, const Place<S>& in, const Place<S>& out, Index row, Index width,
                                                S* scratch, S scale) {
    constexpr Index narrow = 64 / static_cast<Index>(sizeof(S));
    constexpr Index wide = bytes == 16 ? narrow : 4 * narrow;  // sums of a panel are in registers
    Index start = 0;
    for (; start + wide <= width; start += wide) panel<bytes, wide>(step, after, in, out, row, start, scratch, scale);
    for (; start < width; start += narrow) panel<bytes, narrow>(step, after, in, out, row, start, scratch, scale);
  }

 private:
  template <int bytes, Index width>
  using Panel = Group<S, bytes, static_cast<int>(width / lanes<S, bytes>)>;

  template <int bytes, Index width>
  RMSFOLD_INLINE static inline void panel(const Step<S>& step, Index after, const Place<S>& in, const Place<S>& out, Index row, Index start,
                                                  S* table, S scale) {
    constexpr Index vector = lanes<S, bytes>;
    constexpr std::make_integer_sequence<int, static_cast<int>(width / vector)> each{};
    S* const sums = table + 2 * Step<S>::at_once * width;
    const Index f = step.order;
    const Term<S>* term = step.terms.data();
    for (Index first = 0; first < f; first += Step<S>::at_once) {
      const Index last = (std::min)(f, first + Step<S>::at_once);
      for (Index i = first; i < last; i += 4) {
        for (Index k = 0; k < width; k += vector) combine<bytes, width>(in, row + i * after, after, start + k, table + 2 * (i - first) * width + k);
      }
      for (Index j = 0; j < f; ++j) {
        Panel<bytes, width> sum{};
        if (first > 0) sum.load(sums + j * width, vector);
        for (Index i = first; i < last; i += 4, ++term) add<bytes, width>(sum, table + term->entry * width, term->sign, each);
        last < f ? sum.store(sums + j * width, vector) : put<bytes, width>(sum, out, row + j * after, start, scale, each);
      }
    }
  }

  /// The eight combinations of four vectors.
  template <int bytes, Index width>
  RMSFOLD_INLINE static inline void combine(const Place<S>& in, Index row, Index after, Index k, S* to) {
    Vec<S, bytes> a, b, c, d;
    take<bytes>(a, in, row, k);
    take<bytes>(b, in, row + after, k);
    take<bytes>(c, in, row + 2 * after, k);
    take<bytes>(d, in, row + 3 * after, k);
    const Vec<S, bytes> first[2]{a + b, a - b};
    const Vec<S, bytes> second[2]{c + d, c - d};
    for (int which = 0; which < 2; ++which) {
      store(to + (4 * which) * width, first[0] + second[which]);
      store(to + (4 * which + 1) * width, first[1] + second[which]);
      store(to + (4 * which + 2) * width, first[0] - second[which]);
      store(to + (4 * which + 3) * width, first[1] - second[which]);
    }
  }

  template <int bytes>
  RMSFOLD_INLINE static inline void take(Vec<S, bytes>& x, const Place<S>& in, Index row, Index k) {
    load(x, in.row(row) + k);
    flip_signs<S, bytes>(x, Vec<Bits<S>, bytes>{} + in.flip_of(row));
  }

  template <int bytes, Index width, int... k>
  RMSFOLD_INLINE static inline void add(Panel<bytes, width>& sum, const S* from, S sign, std::integer_sequence<int, k...>) {
    Panel<bytes, width> x;
    x.load(from, lanes<S, bytes>);
    (multiply_add(sum.v[k], x.v[k], sign), ...);
  }

  template <int bytes, Index width, int... k>
  RMSFOLD_INLINE static inline void put(Panel<bytes, width>& sum, const Place<S>& out, Index row, Index start, S scale,
                                                std::integer_sequence<int, k...>) {
    const Vec<Bits<S>, bytes> flip = Vec<Bits<S>, bytes>{} + out.flip_of(row);
    (flip_signs<S, bytes>(sum.v[k] *= scale, flip), ...);
    sum.store(out.row(row) + start, lanes<S, bytes>);
  }
};

}  // namespace detail

/// Transforms each row of `[rows, n]` where the factors end in a power of two that is long enough.
///
/// Passes of three stages with eight vectors in registers, while strides are long; then eight vectors in a row are finished at once: the stages
/// between them, and those within a vector as \f$swap(x) \pm x\f$, a shuffle and a product by ±1. 4096 floats are three passes over L1; two with
/// vectors of 64 bytes, sixteen of which are in registers.
template <std::floating_point S>
struct Rows {
  static constexpr bool exact_products = true;  ///< see `multiply_add`
  /// Shortest power of two.
  static constexpr Index least = 8 * 32 / static_cast<Index>(sizeof(S));

  /// Row by row, in place; by way of a buffer where entries move.
  template <int bytes>
  RMSFOLD_INLINE static inline void run(const Transform<S>* transform, S* data, Index rows) {
    const Index n = transform->dim;
    const Index twos = transform->twos;
    const S minus = transform->minus;
    if constexpr (bytes == 64) {
      if (twos < tail<bytes>) return run<32>(transform, data, rows);  // too short for sixteen
    }
    const Bits<S>* const flip_from = transform->takes_signs ? transform->flip_from.data() : nullptr;
    const Bits<S>* const flip_to = transform->puts_signs ? transform->flip_to.data() : nullptr;
    S* const buffer = transform->takes_moves || transform->puts_moves ? detail::scratch<S, 0>(n) : nullptr;
    S* const space = n > twos ? detail::scratch<S, 1>(detail::Block<S>::space) : nullptr;
    for (Index r = 0; r < rows; ++r, data += n) {
      S* const x = transform->takes_moves ? buffer : data;
      S* const y = transform->puts_moves ? buffer : data;
      if (transform->takes_moves) gather(data, transform->from.data(), buffer, n);
      if (flip_from != nullptr) flip<bytes>(x, flip_from, n);
      for (const Step<S>& step : transform->steps) {
        if (step.terms.empty()) break;
        for (Index start = 0; start < n; start += step.order * step.after) {
          const detail::Place<S> place{x + start, step.after, nullptr, nullptr};
          detail::Block<S>::template run<bytes>(step, 1, place, place, 0, step.after, space, S(1));
        }
      }
      Index block = twos;
      while (block > in_l1) block >>= passes<bytes>(x, n, block, minus);
      for (Index start = 0; start < n; start += block) {
        for (Index size = block; size > tail<bytes>;) size >>= passes<bytes>(x + start, block, size, minus);
        for (Index k = start; k < start + block; k += tail<bytes>) {
          flip_to != nullptr ? finish<bytes, true>(x + k, y + k, transform->scale, flip_to + k, data + n + k, minus)
                             : finish<bytes, false>(x + k, y + k, transform->scale, nullptr, data + n + k, minus);
        }
      }
      if (transform->puts_moves) gather(buffer, transform->of.data(), data, n);
    }
  }

 private:
  /// Four loads before four stores: a compiler that may not reorder them takes half as long again.
  RMSFOLD_INLINE static inline void gather(const S* from, const std::int32_t* index, S* to, Index n) {
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
  RMSFOLD_INLINE static inline int passes(S* data, Index n, Index size, S minus) {
    int left = 0;
    while (tail<bytes> << left < size) ++left;
    if (bytes == 64 && left == 4) {  // the stride is a constant: sixteen addresses would take more registers than there are
      pass<bytes, 16>(data, n, tail<bytes>, minus);
      return 4;
    }
    if (left == 3 || left >= 5) {
      pass<bytes, 8>(data, n, size / 8, minus);
      return 3;
    }
    if (left == 2 || left == 4) {
      pass<bytes, 4>(data, n, size / 4, minus);
      return 2;
    }
    pass<bytes, 2>(data, n, size / 2, minus);
    return 1;
  }

  template <int bytes>
  RMSFOLD_INLINE static inline void flip(S* data, const Bits<S>* bits, Index n) {
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
  RMSFOLD_INLINE static inline void pass(S* data, Index n, Index stride, S minus) {
    for (Index start = 0; start < n; start += radix * stride) {
      for (S *x = data + start, *end = x + stride; x < end; x += lanes<S, bytes>) {
        detail::Group<S, bytes, radix> group;
        group.load(x, stride);
        group.butterflies(minus);
        group.store(x, stride);
      }
    }
  }

  /// The last stages, of `tail` elements in a row, scale and signs; asks for the same place of the next row meanwhile.
  template <int bytes, bool flips>
  RMSFOLD_INLINE static inline void finish(const S* x, S* y, S scale, const Bits<S>* flip_to, const S* next, S minus) {
    for (Index k = 0; k < tail<bytes>; k += 64 / static_cast<Index>(sizeof(S))) __builtin_prefetch(next + k, 0, 2);
    detail::Group<S, bytes, registers<bytes>> group;
    group.load(x, lanes<S, bytes>);
    group.butterflies(minus);
    put_all<bytes, flips>(group, y, scale, flip_to, std::make_integer_sequence<int, registers<bytes>>());
  }
  template <int bytes, bool flips, int... k>
  RMSFOLD_INLINE static inline void put_all(detail::Group<S, bytes, registers<bytes>>& group, S* y, S scale, const Bits<S>* flip_to,
                                                    std::integer_sequence<int, k...>) {
    (put<bytes, flips>(group.v[k], y + k * lanes<S, bytes>, scale, flips ? flip_to + k * lanes<S, bytes> : nullptr), ...);
  }

  template <int bytes, bool flips>
  RMSFOLD_INLINE static inline void put(Vec<S, bytes>& x, S* to, S scale, [[maybe_unused]] const Bits<S>* flip_to) {
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
  RMSFOLD_INLINE static inline void within(Vec<S, bytes>& x, std::integer_sequence<int, k...>) {
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
  RMSFOLD_INLINE static inline void run(const Transform<S>* transform, S* data, Index stride, Index columns) {
    const Index n = transform->dim;
    const Index width = (std::min)(strip, columns);
    S* const tile = detail::scratch<S, 0>((std::max)(64 * padded, detail::Block<S>::space));
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
            if (!step.terms.empty()) {
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
  RMSFOLD_INLINE static inline void twos(const Step<S>& step, const detail::Place<S>& in, const detail::Place<S>& out, Index row, Index width,
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
  RMSFOLD_INLINE static inline void tiled(const detail::Place<S>& in, const detail::Place<S>& out, Index row, Index after, Index width,
                                                  S* tile, bool first, bool last, S scale) {
    first ? enter<bytes, rest, true>(in, row, after, width, tile) : enter<bytes, rest, false>(in, row, after, width, tile);
    last ? leave<bytes, rest, true>(tile, out, row, after, width, scale) : leave<bytes, rest, false>(tile, out, row, after, width, scale);
  }

  /// All stages of a step of 2, 4 or 8.
  template <int bytes, int radix, bool ends>
  RMSFOLD_INLINE static inline void through(const detail::Place<S>& in, const detail::Place<S>& out, Index row, Index after, Index width,
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
  RMSFOLD_INLINE static inline void enter(const detail::Place<S>& in, Index row, Index after, Index width, S* tile) {
    for (Index q = 0; q < rest; ++q) {
      Ends<8> rows;
      for (Index t = 0; t < 8; ++t) {
        const Index i = row + (q + t * rest) * after;
        rows.in[t] = in.row(i);
        rows.out[t] = tile + (q + t * rest) * padded;
        rows.flip_in[t] = in.flip_of(i);
        if (first) {
          const S* const next = in.row(row + 1 < after ? i + 1 : i);
          for (Index k = 0; k < width; k += line) __builtin_prefetch(next + k, 0, 2);
        }
      }
      pass<bytes, 8, first, false>(rows, width, S(1));
    }
  }

  /// The other stages on the way out of the tile.
  template <int bytes, Index radix, bool last>
  RMSFOLD_INLINE static inline void leave(S* tile, const detail::Place<S>& out, Index row, Index after, Index width, S scale) {
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
  RMSFOLD_INLINE static inline void pass(const Ends<radix>& rows, Index width, S scale) {
    for (Index k = 0; k < width; k += lanes<S, bytes>) {
      detail::Group<S, bytes, radix> group;
      read<bytes, radix, first>(group, rows, k, std::make_integer_sequence<int, radix>());
      group.butterflies(S(-1));  // memory is slower than adders here
      write<bytes, radix, last>(group, rows, k, scale, std::make_integer_sequence<int, radix>());
    }
  }

  template <int bytes, int radix, bool first, int... i>
  RMSFOLD_INLINE static inline void read(detail::Group<S, bytes, radix>& group, const Ends<radix>& rows, Index k,
                                                 std::integer_sequence<int, i...>) {
    (load(group.v[i], rows.in[i] + k), ...);
    if constexpr (first) (detail::flip_signs<S, bytes>(group.v[i], Vec<Bits<S>, bytes>{} + rows.flip_in[i]), ...);
  }

  template <int bytes, int radix, bool last, int... i>
  RMSFOLD_INLINE static inline void write(detail::Group<S, bytes, radix>& group, const Ends<radix>& rows, Index k, S scale,
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
  RMSFOLD_INLINE static inline void run(S* rows, Index count, Index n, S* columns, Index width, bool back) {
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
