// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Vectors of a fixed number of bytes, by the vector extensions of GCC and clang, and the choice of an instruction set at run time.
///
/// A kernel is a type with two functions of the same arguments: `scalar`, the reference, in plain C++; and `run<bytes>`, the same operations on
/// vectors of that many bytes. It is written once and compiled for each instruction set by the wrappers below, so no user has to set `-march`.
/// Bits do not depend on the choice: a kernel keeps the order of additions of its reference, and nothing is fused that would round otherwise.

#include <atomic>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include <rmsfold/core/concepts.hpp>

#if defined(__GNUC__) && !defined(RMSFOLD_NO_VECTORS)
#define RMSFOLD_VECTORS 1
#if defined(__x86_64__)
#define RMSFOLD_VECTORS_X86 1
#endif
#endif

// What a kernel consists of is compiled for the instruction set of the function that it is inlined into. Without optimisation, where inlining would make hundreds of copies,
// it stays apart: the same bits, by the instruction set that the program is compiled for.
#ifdef __OPTIMIZE__
#define RMSFOLD_INLINE [[gnu::always_inline]]
#else
#define RMSFOLD_INLINE
#endif

/// Kernels of the loops that a checkpoint passes through: the same bits as their scalar references, at the speed of memory.
namespace rmsfold::kernel {

/// An instruction set that kernels are compiled for.
enum class Target {
  scalar,    ///< the references, in plain C++
  baseline,  ///< vectors of 16 bytes, of the instruction set that the program is compiled for
  avx2,      ///< vectors of 32 bytes, x86
  avx512     ///< vectors of 64 bytes, x86, in kernels with `exact_products`, for it comes with fused operations; the others as with avx2
};

/// Name for reports.
[[nodiscard]] constexpr std::string_view name_of(Target target) noexcept {
  switch (target) {
    case Target::scalar:
      return "scalar";
    case Target::baseline:
      return "baseline";
    case Target::avx2:
      return "avx2";
    case Target::avx512:
      break;
  }
  return "avx512";
}

/// What this compiler and this machine can run, the fastest last.
[[nodiscard]] inline std::vector<Target> supported_targets() {
  std::vector<Target> result{Target::scalar};
#ifdef RMSFOLD_VECTORS
  result.push_back(Target::baseline);
#endif
#ifdef RMSFOLD_VECTORS_X86
  if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("fma") == 0) return result;
  result.push_back(Target::avx2);
  const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512bw") != 0;
  if (has_avx512) result.push_back(Target::avx512);
#endif
  return result;
}

namespace detail {

[[nodiscard]] inline std::atomic<Target>& chosen_target() {
  static std::atomic<Target> target = supported_targets().back();
  return target;
}

}  // namespace detail

/// The instruction set in use: the fastest supported one.
[[nodiscard]] inline Target target() { return detail::chosen_target().load(std::memory_order_relaxed); }

/// Lets tests and benchmarks run every target: in its lifetime the whole program uses the given one. @pre it is supported.
class WithTarget {
 public:
  /// Switches to `target`.
  explicit WithTarget(Target target) : before_(detail::chosen_target().exchange(target)) {}
  /// Switches back.
  ~WithTarget() { detail::chosen_target() = before_; }
  WithTarget(const WithTarget&) = delete;
  WithTarget& operator=(const WithTarget&) = delete;

 private:
  Target before_;
};

namespace detail {

#ifdef RMSFOLD_VECTORS
template <class Kernel, class... Args>
auto run_baseline(Args... args) {
  return Kernel::template run<16>(args...);
}
#endif

#ifdef RMSFOLD_VECTORS_X86
template <class Kernel, class... Args>
[[gnu::target("avx2")]] auto run_avx2(Args... args) {
  return Kernel::template run<32>(args...);
}

// GCC has to be told that it may fuse, see multiply_add.
#ifdef __clang__
#define RMSFOLD_MAY_FUSE
#else
#define RMSFOLD_MAY_FUSE [[gnu::optimize("fp-contract=fast")]]
#endif

template <class Kernel, class... Args>
RMSFOLD_MAY_FUSE [[gnu::target("avx2,fma")]] auto run_fma(Args... args) {
  return Kernel::template run<32>(args...);
}

template <class Kernel, class... Args>
RMSFOLD_MAY_FUSE [[gnu::target("avx2,fma,avx512f,avx512dq,avx512bw")]] auto run_avx512(Args... args) {
  return Kernel::template run<64>(args...);
}

#undef RMSFOLD_MAY_FUSE
#endif

}  // namespace detail

/// Runs a kernel by the instruction set in use. Arguments are small and passed by value. A kernel whose reference is its caller's has no `scalar`.
template <class Kernel, class... Args>
auto dispatch(Args... args) {
#ifdef RMSFOLD_VECTORS
  constexpr bool has_scalar = requires { Kernel::scalar(args...); };
#ifdef RMSFOLD_VECTORS_X86
  if (target() >= Target::avx2) {
    if constexpr (requires { Kernel::exact_products; }) {
      return target() == Target::avx2 ? detail::run_fma<Kernel>(args...) : detail::run_avx512<Kernel>(args...);
    } else {
      return detail::run_avx2<Kernel>(args...);
    }
  }
#endif
  if (!has_scalar || target() == Target::baseline) return detail::run_baseline<Kernel>(args...);
  if constexpr (has_scalar) return Kernel::scalar(args...);
#else
  return Kernel::scalar(args...);
#endif
}

#ifdef RMSFOLD_VECTORS

namespace detail {

template <class S, int bytes>
struct VectorOf {
  typedef S type __attribute__((vector_size(bytes)));
};

}  // namespace detail

/// A vector of `bytes` bytes of S. Kernels hand vectors on by reference: by value they would need an ABI that the program does not have.
template <class S, int bytes>
using Vec = typename detail::VectorOf<S, bytes>::type;

/// Elements of a vector.
template <class S, int bytes>
inline constexpr Index lanes = bytes / static_cast<int>(sizeof(S));

/// Reads a vector from any address.
template <class V>
RMSFOLD_INLINE inline void load(V& vector, const void* from) {
  std::memcpy(&vector, from, sizeof(V));
}

/// Writes a vector to any address.
template <class V>
RMSFOLD_INLINE inline void store(void* to, const V& vector) {
  std::memcpy(to, &vector, sizeof(V));
}

namespace detail {

template <class S, class To, class From, int... k>
RMSFOLD_INLINE inline void convert_each(To& to, const From& from, std::integer_sequence<int, k...>) {
  to = To{static_cast<S>(from[k])...};
}

}  // namespace detail

/// `sum += x * sign` for signs ±1. The product is exact, so it does not matter to the bits whether the two operations are fused: in kernels that
/// declare `exact_products`, because all products that are added to anything are of this kind, they may be, and are where the machine can.
template <class V, class Sign>
RMSFOLD_INLINE inline void multiply_add(V& sum, const V& x, const Sign& sign) {
#ifdef __clang__
#pragma clang fp contract(fast)
#endif
  sum = sum + x * sign;
}

/// Converts each element to S. GCC 12 converts to a vector of 32 bytes by halves, but sees through the elements one by one.
template <class S, class To, class From>
RMSFOLD_INLINE inline void convert(To& to, const From& from) {
#ifndef __clang__
  if constexpr (sizeof(To) > 16) {
    detail::convert_each<S>(to, from, std::make_integer_sequence<int, sizeof(To) / sizeof(S)>());
    return;
  }
#endif
  to = __builtin_convertvector(from, To);
}

#endif

}  // namespace rmsfold::kernel
