// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Memory that a worker uses again and again: touching fresh pages costs more than most transforms.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace rmsfold {

/// Uninitialised bytes, kept from use to use and grown when need be, without what was in them. In large pages where the system has them.
class WorkBuffer {
 public:
  WorkBuffer() = default;
  /// Takes over.
  WorkBuffer(WorkBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  WorkBuffer(const WorkBuffer&) = delete;
  WorkBuffer& operator=(const WorkBuffer&) = delete;
  ~WorkBuffer() { free(); }

  /// The first `size` bytes, aligned for any scalar; their values are whatever they are. @throws std::bad_alloc.
  [[nodiscard]] std::span<std::byte> first(std::size_t size) {
    if (size > size_) {
      free();
      data_ = static_cast<std::byte*>(::operator new(size, std::align_val_t{page}));
      size_ = size;
#if defined(__linux__)
      if (size >= page) ::madvise(data_, size / page * page, MADV_HUGEPAGE);  // where it fails, pages are small
#endif
    }
    return {data_, size};
  }

  /// `size` bytes at an address that is like `place`, a place in a file, modulo a small page: the system copies between them several times as fast as between others.
  [[nodiscard]] std::span<std::byte> at(std::uint64_t place, std::size_t size) {
    const std::size_t start = static_cast<std::size_t>(place % 4096);
    return first(start + size).subspan(start);
  }

  /// The first `count` elements. @pre T needs no constructor.
  template <class T>
  [[nodiscard]] std::span<T> first_of(std::size_t count) {
    return {reinterpret_cast<T*>(first(count * sizeof(T)).data()), count};
  }

 private:
  static constexpr std::size_t page = std::size_t{1} << 21;

  void free() noexcept {
    ::operator delete(std::exchange(data_, nullptr), std::align_val_t{page});
    size_ = 0;
  }

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace rmsfold
