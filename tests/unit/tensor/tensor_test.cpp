// SPDX-License-Identifier: MIT
// The headers of the tensor floor in one translation unit.
#include <rmsfold/tensor/convert.hpp>
#include <rmsfold/tensor/dtype.hpp>
#include <rmsfold/tensor/matrix.hpp>
#include <rmsfold/tensor/shape.hpp>

#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/compare.hpp"

namespace rmsfold {

using test::has_text;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("dtype: names both ways", "[tensor]") {
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::f16, Dtype::bf16})
    CHECK(dtype_from_name(name_of(dtype)) == dtype);
  CHECK(name_of(Dtype::bf16) == "BF16");
  CHECK_FALSE(dtype_from_name("F8_E4M3").has_value());
  CHECK_FALSE(dtype_from_name("f32").has_value());
  CHECK_FALSE(dtype_from_name("").has_value());
}

TEST_CASE("dtype: sizes, of those we only carry as well", "[tensor]") {
  CHECK(size_of(Dtype::f64) == 8);
  CHECK(size_of(Dtype::f32) == 4);
  CHECK(size_of(Dtype::f16) == 2);
  CHECK(size_of(Dtype::bf16) == 2);
  CHECK(bits_of_element("F4") == 4u);
  CHECK(bits_of_element("F6_E2M3") == 6u);
  CHECK(bits_of_element("F8_E8M0") == 8u);
  CHECK(bits_of_element("BOOL") == 8u);
  CHECK(bits_of_element("C64") == 64u);
  CHECK_FALSE(bits_of_element("F128").has_value());
}

TEST_CASE("dtype: visit gives the scalar of the dtype", "[tensor]") {
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::f16, Dtype::bf16}) {
    CHECK(visit_dtype(dtype, [](auto scalar) { return sizeof(scalar); }) == size_of(dtype));
  }
  CHECK(visit_dtype(Dtype::bf16, [](auto scalar) { return std::same_as<decltype(scalar), BF16>; }));
  CHECK(visit_dtype(Dtype::f16, [](auto scalar) { return std::same_as<decltype(scalar), F16>; }));
}

TEST_CASE("shape: element counts", "[tensor]") {
  CHECK(element_count({}) == 1);
  CHECK(element_count({3, 0, 5}) == 0);
  CHECK(element_count({3, 4, 5}) == 60);
  CHECK_THROWS_AS(element_count({std::uint64_t{1} << 40, std::uint64_t{1} << 40}), RangeError);
  CHECK(to_string(Shape{32, 64}) == "[32, 64]");
  CHECK(to_string(Shape{}) == "[]");
}

TEMPLATE_TEST_CASE("convert: stored numbers come back bit for bit, at any alignment", "[tensor]", double, float, F16,
                   BF16) {
  const std::vector<double> values{1, -0.0, 0.5, -3, largest_finite<TestType>(), inf};
  for (std::size_t shift = 0; shift < 8; ++shift) {
    std::vector<std::byte> bytes(shift + values.size() * sizeof(TestType));
    const std::span<std::byte> place = std::span(bytes).subspan(shift);
    CHECK(store_rounded<TestType>(values, place) == -1);  // an infinity that was there is no overflow
    std::vector<double> back(values.size());
    load_as_double<TestType>(place, back);
    CHECK(back == values);
    CHECK(std::signbit(back[1]));
  }
}

TEST_CASE("convert: the first overflow is reported", "[tensor]") {
  std::vector<std::byte> bytes(8);
  const std::vector<double> values{1, 70000, 1e300, 2};
  CHECK(store_rounded<F16>(values, bytes) == 1);
  CHECK(store_rounded<BF16>(values, bytes) == 2);
  CHECK(store_rounded(Dtype::f16, values, bytes) == 1);
  const std::vector<double> nan{std::numeric_limits<double>::quiet_NaN()};
  CHECK(store_rounded<F16>(nan, bytes) == -1);
}

TEST_CASE("convert: by run-time dtype, sizes checked", "[tensor]") {
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::f16, Dtype::bf16}) {
    const std::vector<double> values{1.5, -2};
    std::vector<std::byte> bytes(2 * size_of(dtype));
    CHECK(store_rounded(dtype, values, bytes) == -1);
    std::vector<double> back(2);
    load_as_double(dtype, bytes, back);
    CHECK(back == values);
    bytes.pop_back();
    CHECK_THROWS_AS(load_as_double(dtype, bytes, back), ShapeError);
    CHECK_THROWS_AS(store_rounded(dtype, values, bytes), ShapeError);
  }
}

TEMPLATE_TEST_CASE("matrix: widened is exact, rounded undoes it", "[tensor]", double, float, F16, BF16) {
  const Matrix<double> values = test::rows({{1, -2.5, 0.125}, {-0.0, 3, 96}});
  CHECK(test::same_bits(widened(rounded<TestType>(values)), values));
  const RowVector<double> row = values.row(1);
  CHECK(test::same_bits(widened(rounded<TestType>(row)), row));
  CHECK(rounded<TestType>(Matrix<double>(0, 3)).cols() == 3);
}

TEST_CASE("matrix: E3, an overflow is an error that says where", "[tensor]") {
  const Matrix<double> values = test::rows({{1, 2}, {3, 90000}});
  CHECK_THROWS_AS(rounded<F16>(values), RangeError);
  CHECK_THROWS_WITH(rounded<F16>(values), has_text("(1, 1) = 90000") && has_text("65504"));
  CHECK(widened(rounded<BF16>(values))(1, 1) == 90112);
  CHECK(widened(rounded<F16>(test::rows({{inf, 1}})))(0, 0) == inf);  // was infinite before
}

}  // namespace rmsfold
