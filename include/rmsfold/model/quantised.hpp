// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Weights that are stored as codes beside a scale for each block, and the numbers they stand for.

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rmsfold/io/checkpoint.hpp>
#include <rmsfold/tensor/convert.hpp>
#include <rmsfold/tensor/float4.hpp>
#include <rmsfold/tensor/float8.hpp>

namespace rmsfold::model {

/// A weight that is stored as codes and scales. As numbers it is a tensor of `shape()`, of which `read` gives a rectangle: rows are those of all slabs, columns the
/// last axis.
class QuantisedTensor {
 public:
  /// @param name  of the weight. @param codes  stored tensor with the codes. @param scales  with the scales. @param shape  of the numbers
  QuantisedTensor(std::string name, std::string codes, std::string scales, Shape shape)
      : name_(std::move(name)), codes_(std::move(codes)), scales_(std::move(scales)), shape_(std::move(shape)) {}
  virtual ~QuantisedTensor() = default;
  QuantisedTensor(const QuantisedTensor&) = delete;
  QuantisedTensor& operator=(const QuantisedTensor&) = delete;

  /// Name of the weight.
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Stored tensor with the codes.
  [[nodiscard]] const std::string& codes() const noexcept { return codes_; }
  /// Stored tensor with the scales.
  [[nodiscard]] const std::string& scales() const noexcept { return scales_; }
  /// Shape of the numbers.
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  /// The numbers of a rectangle, exactly, as bytes of F64, row by row.
  /// @throws IoError; RefusedError when a scale is infinite or NaN. @pre it lies in the tensor, and `out` has 8 bytes for each number
  virtual void read(const io::Checkpoint& checkpoint, std::uint64_t row, std::uint64_t col, std::uint64_t rows, std::uint64_t cols, std::span<std::byte> out) const = 0;

 protected:
  /// Puts a number at its place.
  static void put(std::span<std::byte> out, std::uint64_t at, double value) { std::memcpy(&out[static_cast<std::size_t>(at) * sizeof value], &value, sizeof value); }
  /// @throws RefusedError always
  [[noreturn]] void refuse_scale(const io::Checkpoint& checkpoint) const {
    rmsfold::detail::raise<RefusedError>("{}: tensor {} has a scale that is infinite or NaN", checkpoint.file_of(scales_), scales_);
  }

 private:
  std::string name_;
  std::string codes_;
  std::string scales_;
  Shape shape_;
};

/// F8_E4M3 codes, and in `NAME_scale_inv` an F32 for each block of 128 x 128 (DeepSeek-V3, arXiv:2412.19437, section 3.3.2). The scales, a 4096th of the codes'
/// bytes, are held.
class Float8Blocks final : public QuantisedTensor {
 public:
  /// Rows, and columns, of a block.
  static constexpr std::uint64_t block = 128;

  /// @param name  tensor of type F8_E4M3. @throws FormatError when its scales are missing or of another shape; RefusedError when one is infinite or NaN; IoError.
  Float8Blocks(const io::Checkpoint& checkpoint, const std::string& name) : QuantisedTensor(name, name, name + "_scale_inv", checkpoint.find(name)->info->shape) {
    const io::TensorPlace* stored = checkpoint.find(scales());
    if (stored == nullptr || shape().size() != 2) {
      rmsfold::detail::raise<FormatError>("{}: tensor {} is stored as F8_E4M3 {}, but there is no {} with a scale for each block", checkpoint.file_of(name), name,
                                          to_string(shape()), scales());
    }
    const Shape wanted{blocks(shape()[0]), blocks(shape()[1])};
    if (stored->info->dtype != name_of(Dtype::f32) || stored->info->shape != wanted) {
      rmsfold::detail::raise<FormatError>("{}: tensor {} is {} {}, but the scales of {} are F32 {}: one for each block of {} x {}", checkpoint.file_of(scales()),
                                          scales(), stored->info->dtype, to_string(stored->info->shape), name, to_string(wanted), block, block);
    }
    values_.resize(static_cast<std::size_t>(element_count(wanted)));
    load_as_double(Dtype::f32, checkpoint.read(scales()), values_);
    if (!std::all_of(values_.begin(), values_.end(), [](double value) { return is_finite(value); })) refuse_scale(checkpoint);
  }

  void read(const io::Checkpoint& checkpoint, std::uint64_t row, std::uint64_t col, std::uint64_t rows, std::uint64_t cols, std::span<std::byte> out) const override {
    const std::uint64_t width = shape()[1];
    std::vector<std::byte> line(static_cast<std::size_t>(cols));
    for (std::uint64_t i = 0; i < rows; ++i) {
      checkpoint.read(codes(), (row + i) * width + col, line);
      for (std::uint64_t j = 0; j < cols; ++j) {
        const double scale = values_[static_cast<std::size_t>((row + i) / block * blocks(width) + (col + j) / block)];
        put(out, i * cols + j, value_of_e4m3(line[static_cast<std::size_t>(j)]) * scale);
      }
    }
  }

 private:
  [[nodiscard]] static std::uint64_t blocks(std::uint64_t extent) { return (extent + block - 1) / block; }

  std::vector<double> values_;
};

/// A stack of experts `NAME` `[E, in, out]` as gpt-oss stores it: transposed and in blocks of 32 inputs, `NAME_blocks` `[E, out, in/32, 16]` with two FP4 codes in a
/// byte, the lower half first, and `NAME_scales` `[E, out, in/32]` with a shared exponent for each (OCP Microscaling Formats 1.0). Scales are read with the codes.
class Mxfp4Stack final : public QuantisedTensor {
 public:
  /// Codes of a block.
  static constexpr std::uint64_t block = 32;

  /// The stack behind a stored tensor, when this is its codes. @throws FormatError when its scales are missing or do not match.
  [[nodiscard]] static std::unique_ptr<QuantisedTensor> behind(const io::Checkpoint& checkpoint, const std::string& codes) {
    const io::TensorInfo& info = *checkpoint.find(codes)->info;
    if (info.dtype != "U8" || !codes.ends_with(suffix) || info.shape.size() != 4 || info.shape[3] != block / 2) return nullptr;
    const std::string name = codes.substr(0, codes.size() - suffix.size());
    const std::string scales = name + "_scales";
    const io::TensorPlace* place = checkpoint.find(scales);
    const Shape wanted(info.shape.begin(), info.shape.end() - 1);
    if (place == nullptr || place->info->dtype != "U8" || place->info->shape != wanted) {
      rmsfold::detail::raise<FormatError>("{}: tensor {} is stored as U8 {}, but there is no {} of U8 {} with a scale for each block", checkpoint.file_of(codes), codes,
                                          to_string(info.shape), scales, to_string(wanted));
    }
    return std::make_unique<Mxfp4Stack>(name, codes, scales, Shape{wanted[0], wanted[2] * block, wanted[1]});
  }

  using QuantisedTensor::QuantisedTensor;

  void read(const io::Checkpoint& checkpoint, std::uint64_t row, std::uint64_t col, std::uint64_t rows, std::uint64_t cols, std::span<std::byte> out) const override {
    const std::uint64_t height = shape()[1], width = shape()[2];
    std::vector<std::byte> bytes, exponents;
    for (std::uint64_t done = 0, count = 0; done < rows; done += count) {  // what lies in one slab
      const std::uint64_t slab = (row + done) / height, first = (row + done) % height;
      count = (std::min)(rows - done, height - first);
      const std::uint64_t first_block = first / block, blocks = (first + count - 1) / block - first_block + 1;
      bytes.resize(static_cast<std::size_t>(blocks * block / 2));
      exponents.resize(static_cast<std::size_t>(blocks));
      for (std::uint64_t j = 0; j < cols; ++j) {
        const std::uint64_t at = (slab * width + col + j) * (height / block) + first_block;
        checkpoint.read(codes(), at * block / 2, bytes);
        checkpoint.read(scales(), at, exponents);
        for (std::uint64_t i = 0; i < count; ++i) {
          const std::uint64_t k = first + i - first_block * block;
          const unsigned pair = std::to_integer<unsigned>(bytes[static_cast<std::size_t>(k / 2)]);
          const double scale = value_of_e8m0(exponents[static_cast<std::size_t>(k / block)]);
          if (!is_finite(scale)) refuse_scale(checkpoint);
          put(out, (done + i) * cols + j, value_of_e2m1(k % 2 == 0 ? pair & 15u : pair >> 4) * scale);
        }
      }
    }
  }

 private:
  static constexpr std::string_view suffix = "_blocks";
};

/// Everything that a checkpoint stores as codes, in the order of the headers.
/// @throws FormatError, RefusedError, IoError as their constructors do.
[[nodiscard]] inline std::vector<std::unique_ptr<QuantisedTensor>> find_quantised(const io::Checkpoint& checkpoint) {
  std::vector<std::unique_ptr<QuantisedTensor>> found;
  for (const std::string& name : checkpoint.tensor_names()) {
    if (checkpoint.find(name)->info->dtype == "F8_E4M3") {
      found.push_back(std::make_unique<Float8Blocks>(checkpoint, name));
    } else if (std::unique_ptr<QuantisedTensor> stack = Mxfp4Stack::behind(checkpoint, name)) {
      found.push_back(std::move(stack));
    }
  }
  return found;
}

}  // namespace rmsfold::model
