// SPDX-License-Identifier: MIT
#include <rmsfold/io/safetensors.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/bytes.hpp"
#include "support/catch.hpp"
#include "support/temp_dir.hpp"

namespace {

using rmsfold::FormatError;
using rmsfold::InvariantError;
using rmsfold::ShapeError;
using rmsfold::io::make_tensor;
using rmsfold::io::Metadata;
using rmsfold::io::SafetensorsFile;
using rmsfold::io::SafetensorsWriter;
using rmsfold::io::TensorInfo;
using rmsfold::test::entry;
using rmsfold::test::has_text;
using rmsfold::test::object;
using rmsfold::test::padded;
using rmsfold::test::pattern;
using rmsfold::test::safetensors;
using rmsfold::test::TempDir;

std::string text_of(const std::vector<std::byte>& bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

/// Reads all of `from` and writes it again to `to`.
void rewrite(const std::filesystem::path& from, const std::filesystem::path& to) {
  const SafetensorsFile in(from);
  SafetensorsWriter out(to, in.tensors(), in.header().metadata, rmsfold::io::data_order(in.tensors()));
  for (std::size_t i = 0; i < in.tensors().size(); ++i) out.write(i, 0, in.read(in.tensors()[i]));
  out.finish(false);
}

}  // namespace

static_assert(std::is_nothrow_move_constructible_v<SafetensorsFile> && !std::is_copy_constructible_v<SafetensorsFile>);
static_assert(!std::is_convertible_v<std::string, SafetensorsFile>);

TEST_CASE("safetensors: what a file says is what is read", "[io]") {
  const TempDir dir;
  const std::string data = pattern(24 + 6);
  rmsfold::test::write_bytes(
      dir / "a", safetensors(object({R"("__metadata__":{"format":"pt","a":""})", entry("w", "F32", {2, 3}, 0, 24),
                                     entry("b", "BF16", {3}, 24, 30)}),
                             data));
  SafetensorsFile opened(dir / "a");
  const SafetensorsFile file = std::move(opened);
  REQUIRE(file.tensors().size() == 2);
  CHECK(file.tensors()[0] == TensorInfo{"w", "F32", {2, 3}, 0, 24});
  CHECK(file.has_metadata());
  CHECK((file.metadata() == Metadata{{"format", "pt"}, {"a", ""}}));
  CHECK(file.path() == dir / "a");
  REQUIRE(file.find("b") != nullptr);
  CHECK(file.find("b") == &file.tensors()[1]);
  CHECK(file.find("") == nullptr);
  CHECK(file.find("c") == nullptr);
  CHECK(file.find("__metadata__") == nullptr);
  CHECK(text_of(file.read(*file.find("b"))) == data.substr(24));
  std::string middle(4, '?');
  file.read(file.tensors()[0], std::as_writable_bytes(std::span<char>(middle)), 5);
  CHECK(middle == data.substr(5, 4));
  std::vector<std::byte> much(20);
  CHECK_THROWS_AS(file.read(file.tensors()[0], much, 5), ShapeError);
  CHECK_THROWS_AS(file.read(file.tensors()[0], much, ~std::uint64_t{0} - 3), ShapeError);
  CHECK_THROWS_AS(file.read(TensorInfo{"x", "U8", {40}, 20, 60}, much), ShapeError);
}

TEST_CASE("safetensors: K1 tensors without elements, and scalars, are tensors", "[io]") {
  const TempDir dir;
  const std::string header =
      object({entry("z", "F32", {0}, 8, 8), entry("y", "F32", {2, 0}, 0, 0), entry("a", "F64", {}, 0, 8)});
  rmsfold::test::write_bytes(dir / "a", safetensors(padded(header, (header.size() + 7) / 8 * 8), pattern(8)));
  const SafetensorsFile file(dir / "a");
  CHECK(file.find("z")->bytes() == 0);
  CHECK(file.read(*file.find("z")).empty());
  CHECK(file.find("a")->shape.empty());
  CHECK(file.read(*file.find("a")).size() == 8);
  rewrite(dir / "a", dir / "b");
  CHECK(rmsfold::test::read_bytes(dir / "b") == rmsfold::test::read_bytes(dir / "a"));
  rmsfold::test::write_bytes(dir / "c", safetensors(object({entry("a", "F32", {1}, 0, 0)}), ""));
  CHECK_THROWS_WITH(SafetensorsFile(dir / "c"), has_text("'a'") && has_text("takes 4 bytes"));
}

TEST_CASE("safetensors: K4 no tensors at all", "[io]") {
  const TempDir dir;
  SafetensorsWriter(dir / "a", {}, Metadata{{"k", "v"}}).finish(true);
  CHECK(rmsfold::test::read_bytes(dir / "a") == safetensors(padded(R"({"__metadata__":{"k":"v"}})", 32), ""));
  SafetensorsWriter(dir / "b", {}, Metadata{}).finish(false);
  CHECK(rmsfold::test::read_bytes(dir / "b") == safetensors(padded(R"({"__metadata__":{}})", 24), ""));
  SafetensorsWriter(dir / "c", {}).finish(false);
  CHECK(rmsfold::test::read_bytes(dir / "c") == safetensors(padded("{}", 8), ""));
  CHECK(SafetensorsFile(dir / "a").metadata() == Metadata{{"k", "v"}});
  CHECK(SafetensorsFile(dir / "b").has_metadata());
  CHECK(!SafetensorsFile(dir / "c").has_metadata());
}

TEST_CASE("safetensors: K7 headers around 100000 bytes", "[io]") {
  const TempDir dir;
  for (const std::size_t length : {99'992u, 99'999u, 100'000u, 100'001u, 100'008u}) {
    INFO(length);
    rmsfold::test::write_bytes(dir / "a",
                               safetensors(padded(object({entry("a", "F32", {2}, 0, 8)}), length), pattern(8)));
    const SafetensorsFile file(dir / "a");
    CHECK(text_of(file.read(file.tensors()[0])) == pattern(8));
  }
}

TEST_CASE("safetensors: K9 data at any alignment", "[io]") {
  const TempDir dir;
  const std::string header = object({entry("a", "F32", {2}, 0, 8)});
  REQUIRE(header.size() <= 57);
  for (std::size_t length = 57; length < 73; ++length) {
    INFO(length);
    const float values[2] = {1.5f, -2.25f};
    std::string data(sizeof values, '\0');
    std::memcpy(data.data(), values, sizeof values);
    rmsfold::test::write_bytes(dir / "a", safetensors(padded(header, length), data));
    const SafetensorsFile file(dir / "a");
    const std::vector<std::byte> bytes = file.read(file.tensors()[0]);
    float read[2];
    REQUIRE(bytes.size() == sizeof read);
    std::memcpy(read, bytes.data(), sizeof read);
    CHECK(read[0] == 1.5f);
    CHECK(read[1] == -2.25f);
  }
  // The shortest headers there are hold no tensor.
  for (std::size_t length = 2; length < 24; ++length) {
    rmsfold::test::write_bytes(dir / "a", safetensors(padded("{}", length), ""));
    CHECK(SafetensorsFile(dir / "a").tensors().empty());
  }
}

TEST_CASE("safetensors: K9 the writer aligns the data to 8, whatever the names", "[io]") {
  const TempDir dir;
  for (std::size_t length = 1; length < 10; ++length) {
    const std::filesystem::path path = dir / std::to_string(length);
    SafetensorsWriter out(path, {make_tensor(std::string(length, 'n'), "U8", {1})});
    out.write(0, 0, rmsfold::io::bytes_of("x"));
    out.finish(false);
    const std::string bytes = rmsfold::test::read_bytes(path);
    CHECK(bytes.size() % 8 == 1);
    CHECK(bytes.back() == 'x');
    CHECK(SafetensorsFile(path).tensors()[0].name.size() == length);
  }
}

TEST_CASE("safetensors: K10 the orders of header and data may differ, and both are kept", "[io]") {
  const TempDir dir;
  const std::string header =
      object({R"("__metadata__":{"format":"pt","b":"2","a":"1"})", entry("c", "U8", {3}, 5, 8),
              entry("a", "U8", {5}, 0, 5), entry("e", "U8", {0}, 5, 5), entry("b", "U8", {2}, 8, 10)});
  rmsfold::test::write_bytes(dir / "a", safetensors(padded(header, (header.size() + 7) / 8 * 8), pattern(10)));
  const SafetensorsFile file(dir / "a");
  CHECK((rmsfold::io::data_order(file.tensors()) == std::vector<std::size_t>{1, 2, 0, 3}));
  CHECK(text_of(file.read(*file.find("c"))) == pattern(10).substr(5, 3));
  rewrite(dir / "a", dir / "b");
  CHECK(rmsfold::test::read_bytes(dir / "b") == rmsfold::test::read_bytes(dir / "a"));
  // Without an order, the data follow the header.
  const SafetensorsWriter plain(dir / "c", file.tensors());
  CHECK(plain.tensors()[0].begin == 0);
  CHECK(plain.tensors()[1].begin == 3);
  CHECK(plain.tensors()[3].end == 10);
}

TEST_CASE("safetensors: the header is spelled as the reference implementation spells it", "[io]") {
  const TempDir dir;
  std::vector<TensorInfo> tensors{make_tensor("a\"\\/\b\f\n\r\t\x01\x7f é", "F32", {2, 3}),
                                  make_tensor("s", "BF16", {})};
  const SafetensorsWriter out(dir / "a", std::move(tensors), Metadata{{"format", "pt"}});
  const std::string expected =
      R"({"__metadata__":{"format":"pt"},"a\"\\/\b\f\n\r\t\u0001)"
      "\x7f é"
      R"(":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"s":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}})";
  CHECK(rmsfold::test::read_bytes(dir / "a") == safetensors(padded(expected, (expected.size() + 7) / 8 * 8), ""));
}

TEST_CASE("safetensors: K18 types that are not computed with keep every byte", "[io]") {
  const TempDir dir;
  const std::string header = object({entry("e", "F8_E8M0", {3}, 0, 3), entry("f", "F4", {2, 8}, 3, 11),
                                     entry("g", "F6_E2M3", {4}, 11, 14), entry("q", "Q9_FUTURE", {7, 7}, 14, 19),
                                     entry("c", "C64", {1}, 19, 27), entry("t", "BOOL", {1}, 27, 28)});
  rmsfold::test::write_bytes(dir / "a", safetensors(padded(header, (header.size() + 7) / 8 * 8), pattern(28)));
  rewrite(dir / "a", dir / "b");
  CHECK(rmsfold::test::read_bytes(dir / "b") == rmsfold::test::read_bytes(dir / "a"));
  CHECK(SafetensorsFile(dir / "b").find("q")->bytes() == 5);
  CHECK_THROWS_WITH(make_tensor("x", "F4", {3}), has_text("not a whole number of bytes"));
  CHECK_THROWS_WITH(make_tensor("x", "Q9_FUTURE", {3}), has_text("unknown type"));
}

TEST_CASE("safetensors: K21 pieces in any order, from several threads", "[io]") {
  const TempDir dir;
  const std::string data = pattern(100'000);
  SafetensorsWriter out(dir / "a", {make_tensor("a", "U8", {60'000}), make_tensor("b", "U8", {40'000})});
  {
    std::vector<std::jthread> workers;
    for (std::size_t start = 0; start < 4; ++start) {
      workers.emplace_back([&, start] {
        for (std::size_t piece = 100; piece-- > 0;) {
          if (piece % 4 != start) continue;
          const std::size_t at = piece * 1000;
          const bool is_b = at >= 60'000;
          out.write(is_b ? "b" : "a", is_b ? at - 60'000 : at,
                    rmsfold::io::bytes_of(std::string_view(data).substr(at, 1000)));
        }
      });
    }
  }
  out.finish(false);
  const SafetensorsFile file(dir / "a");
  CHECK((text_of(file.read(file.tensors()[0])) + text_of(file.read(file.tensors()[1])) == data));
}

TEST_CASE("safetensors: the writer is told when a tensor is not filled exactly once", "[io]") {
  const TempDir dir;
  SafetensorsWriter out(dir / "a", {make_tensor("full", "U8", {4}), make_tensor("part", "U8", {4})});
  out.write("full", 0, rmsfold::io::bytes_of("1234"));
  out.write("part", 0, rmsfold::io::bytes_of("12"));
  CHECK_THROWS_WITH(out.finish(false), has_text("'part' is incomplete: 2 of 4"));
  CHECK_THROWS_AS(out.write("part", 2, rmsfold::io::bytes_of("345")), ShapeError);
  CHECK_THROWS_AS(out.write("part", ~std::uint64_t{0}, rmsfold::io::bytes_of("3")), ShapeError);
  CHECK_THROWS_AS(out.write("none", 0, rmsfold::io::bytes_of("3")), ShapeError);
  CHECK_THROWS_AS(out.write(2, 0, rmsfold::io::bytes_of("3")), ShapeError);
  CHECK_THROWS_WITH(out.write("full", 3, rmsfold::io::bytes_of("4")), has_text("'full' was written twice"));
  CHECK_THROWS_AS(out.write("full", 3, rmsfold::io::bytes_of("4")), InvariantError);
}

TEST_CASE("safetensors: the writer refuses what a reader would", "[io]") {
  const TempDir dir;
  const TensorInfo good = make_tensor("a", "U8", {1});
  CHECK_THROWS_WITH(SafetensorsWriter(dir / "x", {good, good}), has_text("duplicate tensor 'a'"));
  CHECK_THROWS_AS(SafetensorsWriter(dir / "x", {make_tensor("", "U8", {1})}), FormatError);
  CHECK_THROWS_AS(SafetensorsWriter(dir / "x", {make_tensor("__metadata__", "U8", {1})}), FormatError);
  CHECK_THROWS_WITH(SafetensorsWriter(dir / "x", {make_tensor("\xff", "U8", {1})}), has_text("UTF-8"));
  CHECK_THROWS_AS(SafetensorsWriter(dir / "x", {good}, Metadata{{"k", "1"}, {"k", "2"}}), FormatError);
  CHECK_THROWS_AS(SafetensorsWriter(dir / "x", {good}, Metadata{{"k", "\xff"}}), FormatError);
  CHECK_THROWS_AS(SafetensorsWriter(dir / "x", {good}, {}, {1}), InvariantError);
  CHECK_THROWS_AS(SafetensorsWriter(dir / "x", {good}, {}, {0, 0}), InvariantError);
  CHECK(!std::filesystem::exists(dir / "x"));
  CHECK_NOTHROW(SafetensorsWriter(dir / "x", {good}));
  CHECK_THROWS_AS(SafetensorsWriter(dir / "x", {good}), rmsfold::IoError);
}

TEST_CASE("safetensors: B10 what is written never aliases", "[io]") {
  const TempDir dir;
  SafetensorsWriter out(dir / "a", {TensorInfo{"head", "U8", {4}, 0, 4}, TensorInfo{"embed", "U8", {4}, 0, 4}});
  CHECK(out.tensors()[0].end == 4);
  CHECK(out.tensors()[1].begin == 4);
}

TEST_CASE("safetensors: a file that shrinks after it was opened is an exception", "[io]") {
  const TempDir dir;
  rmsfold::test::write_bytes(dir / "a", rmsfold::test::good_safetensors({{"a", 1000}}));
  const SafetensorsFile file(dir / "a");
  std::filesystem::resize_file(dir / "a", 200);
  CHECK_THROWS_WITH(file.read(file.tensors()[0]), has_text("was truncated while being read"));
}

TEST_CASE("safetensors: a large header takes no more than linear time", "[io]") {
  // 91,000 tensors with the names of a large mixture of experts. Quadratic work would take minutes.
  std::vector<std::string> members;
  std::uint64_t end = 0;
  for (int i = 0; i < 91'000; ++i) {
    members.push_back(entry(
        "model.layers." + std::to_string(i % 61) + ".mlp.experts." + std::to_string(i) + ".down_proj.weight_scale_inv",
        "F32", {16, 56}, end, end + 3584));
    end += 3584;
  }
  const std::string header = object(members);
  const auto start = std::chrono::steady_clock::now();
  CHECK(rmsfold::io::parse_safetensors_header(header, end, "x").tensors.size() == 91'000);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  INFO(header.size() << " bytes in " << seconds << " s");
  CHECK(seconds < 20);  // a hundred times what a release build takes
}
