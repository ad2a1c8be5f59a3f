// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Element types of stored tensors, by the names safetensors gives them.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include <rmsfold/core/error.hpp>
#include <rmsfold/core/half.hpp>

namespace rmsfold {

/// The element types this library computes with.
enum class Dtype { f64, f32, f16, bf16 };

/// Name in a safetensors header.
[[nodiscard]] constexpr std::string_view name_of(Dtype dtype) noexcept {
  constexpr std::array<std::string_view, 4> names{"F64", "F32", "F16", "BF16"};
  return names[static_cast<std::size_t>(dtype)];
}

/// The element type of that name; nothing when it is one we do not compute with.
[[nodiscard]] constexpr std::optional<Dtype> dtype_from_name(std::string_view name) noexcept {
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::f16, Dtype::bf16}) {
    if (name == name_of(dtype)) return dtype;
  }
  return std::nullopt;
}

/// Bits of one element of any type known to the safetensors format; nothing for a name it does not know.
[[nodiscard]] constexpr std::optional<unsigned> bits_of_element(std::string_view name) noexcept {
  constexpr std::array<std::pair<std::string_view, unsigned>, 22> table{{
      {"BOOL", 8},    {"F4", 4},          {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},   {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8},
      {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16}, {"U16", 16}, {"F16", 16}, {"BF16", 16},   {"I32", 32},
      {"U32", 32},    {"F32", 32},        {"C64", 64},    {"F64", 64},    {"I64", 64}, {"U64", 64},
  }};
  for (const auto& [known, bits] : table) {
    if (name == known) return bits;
  }
  return std::nullopt;
}

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t size_of(Dtype dtype) noexcept { return *bits_of_element(name_of(dtype)) / 8; }

/// Calls `f` with a value-initialised scalar of the dtype: run-time dtype to compile-time `Storage`.
template <class F>
decltype(auto) visit_dtype(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::f64: return f(double{});
    case Dtype::f32: return f(float{});
    case Dtype::f16: return f(F16{});
    case Dtype::bf16: return f(BF16{});
  }
  detail::raise<InvariantError>("not a dtype: {}", static_cast<int>(dtype));
}

}  // namespace rmsfold
