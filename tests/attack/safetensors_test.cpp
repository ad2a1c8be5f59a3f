// SPDX-License-Identifier: MIT
#include <rmsfold/io/safetensors.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "attack/largest_allocation.hpp"
#include "support/bytes.hpp"
#include "support/catch.hpp"
#include "support/temp_dir.hpp"

namespace {

using rmsfold::FormatError;
using rmsfold::io::SafetensorsFile;
using rmsfold::io::TensorInfo;
using rmsfold::test::entry;
using rmsfold::test::has_text;
using rmsfold::test::largest_allocation;
using rmsfold::test::little_endian;
using rmsfold::test::object;
using rmsfold::test::padded;
using rmsfold::test::pattern;
using rmsfold::test::safetensors;
using rmsfold::test::TempDir;

/// What opening a file of these bytes says; empty when it is accepted. Anything but FormatError gets through and fails
/// the test.
std::string verdict(const std::string& bytes) {
  const TempDir dir;
  rmsfold::test::write_bytes(dir / "x.safetensors", bytes);
  largest_allocation = 0;
  std::string message;
  try {
    const SafetensorsFile file(dir / "x.safetensors");
  } catch (const FormatError& error) {
    message = error.what();
    CHECK_THAT(message, has_text((dir / "x.safetensors").native()));
  }
  CHECK(largest_allocation < 64 * bytes.size() + 10'000);
  return message;
}

/// The verdict on a header with as much data behind it as `data_bytes` says.
std::string verdict(const std::string& header, std::size_t data_bytes) {
  return verdict(safetensors(header, pattern(data_bytes)));
}

/// One header entry with free text in the place of the numbers.
std::string raw(const std::string& shape, const std::string& offsets, const std::string& dtype = "\"F32\"") {
  return object({"\"a\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}"});
}

}  // namespace

TEST_CASE("attack: the length of the header", "[attack]") {
  const std::string header = object({entry("a", "F32", {2}, 0, 8)});
  SECTION("control") { CHECK(verdict(header, 8).empty()); }
  SECTION("control: nothing but an empty header") { CHECK(verdict("{}", 0).empty()); }
  SECTION("K8 empty file") { CHECK_THAT(verdict(""), has_text("0 bytes")); }
  SECTION("seven bytes") { CHECK_THAT(verdict("1234567"), has_text("7 bytes")); }
  SECTION("K8 eight bytes") { CHECK_THAT(verdict(little_endian(0)), has_text("does not begin with '{'")); }
  SECTION("a length without its header") {
    CHECK_THAT(verdict(little_endian(2)), has_text("header of 2 bytes, 0 follow"));
  }
  SECTION("K8 all ones") {
    CHECK_THAT(verdict(little_endian(~std::uint64_t{0}) + header), has_text("18446744073709551615"));
  }
  SECTION("all ones but eight") { CHECK_FALSE(verdict(little_endian(~std::uint64_t{0} - 7) + header).empty()); }
  SECTION("sign bit") { CHECK_FALSE(verdict(little_endian(std::uint64_t{1} << 63) + header).empty()); }
  SECTION("one more than the file") { CHECK_FALSE(verdict(little_endian(header.size() + 1) + header).empty()); }
  SECTION("one less than the text") {
    CHECK_FALSE(verdict(little_endian(header.size() - 1) + header + pattern(7)).empty());
  }
  SECTION("big-endian") {
    CHECK_FALSE(verdict(std::string(7, '\0') + static_cast<char>(header.size()) + header + pattern(8)).empty());
  }
  SECTION("K8 200 MB announced, and there, but not on the disk") {
    const TempDir dir;
    rmsfold::test::write_bytes(dir / "sparse", little_endian(200'000'000) + "{");
    std::filesystem::resize_file(dir / "sparse", 200'000'008);
    largest_allocation = 0;
    CHECK_THROWS_WITH(SafetensorsFile(dir / "sparse"), has_text("200000000 bytes"));
    CHECK(largest_allocation < 10'000);
  }
}

TEST_CASE("attack: not a safetensors file", "[attack]") {
  SECTION("Git LFS pointer") {
    CHECK_THAT(verdict("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"), has_text("git lfs pull"));
  }
  SECTION("zip") { CHECK_FALSE(verdict("PK\x03\x04" + std::string(100, '\1')).empty()); }
  SECTION("zeros") { CHECK_FALSE(verdict(std::string(100, '\0')).empty()); }
  SECTION("K8 leading space") { CHECK_THAT(verdict(" {}", 0), has_text("does not begin with '{'")); }
  SECTION("byte order mark") { CHECK_FALSE(verdict("\xef\xbb\xbf{}", 0).empty()); }
  SECTION("array") { CHECK_FALSE(verdict("[]", 0).empty()); }
  SECTION("directory") {
    CHECK_THROWS_WITH(SafetensorsFile(TempDir().path()), has_text("No such file") || has_text("is a directory"));
  }
  SECTION("pipe") {
    const TempDir dir;
    REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
    CHECK_THROWS_WITH(SafetensorsFile(dir / "pipe"), has_text("pipe"));
  }
}

TEST_CASE("attack: JSON", "[attack]") {
  const std::string good = entry("a", "F32", {2}, 0, 8);
  SECTION("control: spaces") { CHECK(verdict("{ " + good + "\n}\t ", 8).empty()); }
  SECTION("K3 a tensor twice") {
    CHECK_THAT(verdict(object({good, entry("a", "F32", {2}, 8, 16)}), 16), has_text("duplicate tensor 'a'"));
  }
  SECTION("K3 a tensor twice, spelled differently") {
    CHECK_THAT(verdict(object({good, entry("\\u0061", "F32", {2}, 8, 16)}), 16), has_text("duplicate tensor 'a'"));
  }
  SECTION("dtype twice") {
    CHECK_THAT(verdict(R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
               has_text("duplicate key 'dtype'"));
  }
  SECTION("metadata twice") {
    CHECK_THAT(verdict(object({R"("__metadata__":{})", R"("__metadata__":{})"}), 0), has_text("duplicate"));
  }
  SECTION("metadata key twice") {
    CHECK_THAT(verdict(object({R"("__metadata__":{"k":"1","k":"2"})"}), 0), has_text("duplicate key 'k'"));
  }
  SECTION("trailing comma") { CHECK_FALSE(verdict("{" + good + ",}", 8).empty()); }
  SECTION("text behind the header") { CHECK_FALSE(verdict("{" + good + "} {}", 8).empty()); }
  SECTION("NUL behind the header") { CHECK_FALSE(verdict("{" + good + "}" + std::string(4, '\0'), 8).empty()); }
  SECTION("comment") { CHECK_FALSE(verdict("{/* */" + good + "}", 8).empty()); }
  SECTION("not UTF-8") { CHECK_FALSE(verdict(object({entry("\xff", "F32", {2}, 0, 8)}), 8).empty()); }
  SECTION("half a surrogate pair") { CHECK_FALSE(verdict(object({entry("\\ud800", "F32", {2}, 0, 8)}), 8).empty()); }
  SECTION("no name") { CHECK_THAT(verdict(object({entry("", "F32", {2}, 0, 8)}), 8), has_text("without a name")); }
  SECTION("control: odd names are names") {
    CHECK(verdict(object({entry("../\\u0000\\n\\u001b[2J", "F32", {2}, 0, 8)}), 8).empty());
  }
  SECTION("odd names are harmless in messages") {
    const std::string message = verdict(object({entry("\\u001b[2J\\n", "F32", {3}, 0, 8)}), 8);
    CHECK_THAT(message, has_text("'\\x1b[2J\\x0a'"));
    CHECK(message.find('\x1b') == message.npos);
  }
  for (const char* const value : {"null", "true", "3", "\"x\"", "[]", "1.5", "-1"}) {
    SECTION(std::string("a tensor that is ") + value) {
      CHECK_THAT(verdict(object({std::string("\"a\":") + value}), 0), has_text("tensor 'a'"));
    }
    SECTION(std::string("metadata that are ") + value) {
      CHECK_FALSE(verdict(object({std::string("\"__metadata__\":") + value}), 0).empty());
    }
  }
  SECTION("K8 deep nesting") {
    std::string deep = "{\"a\":";
    for (int i = 0; i < 100'000; ++i) deep += "[";
    CHECK_FALSE(verdict(deep, 0).empty());
    deep.clear();
    for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
    CHECK_FALSE(verdict(deep, 0).empty());
  }
  SECTION("a shape without end") {
    std::string shape = "[1";
    for (int i = 0; i < 100'000; ++i) shape += ",1";
    CHECK(verdict(raw(shape + "]", "[0,4]"), 4).empty());
    CHECK_FALSE(verdict(raw(shape + "]", "[0,8]"), 8).empty());
  }
}

TEST_CASE("attack: K6 metadata", "[attack]") {
  SECTION("control") { CHECK(verdict(object({R"("__metadata__":{"n":"0","m":"{}"})"}), 0).empty()); }
  for (const char* const value : {"0", "null", "true", "1.5", "-1", "{}", "[]", "[\"x\"]"}) {
    SECTION(value) {
      CHECK_THAT(verdict(object({std::string("\"__metadata__\":{\"n\":") + value + "}"}), 0),
                 has_text("strings only, 'n'"));
    }
  }
}

TEST_CASE("attack: an entry", "[attack]") {
  SECTION("control") { CHECK(verdict(raw("[2]", "[0,8]"), 8).empty()); }
  SECTION("control: other order of the fields") {
    CHECK(verdict(R"({"a":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"}})", 8).empty());
  }
  SECTION("no dtype") {
    CHECK_THAT(verdict(R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8), has_text("tensor 'a': dtype is missing"));
  }
  SECTION("no shape") {
    CHECK_THAT(verdict(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", 8), has_text("shape is missing"));
  }
  SECTION("no offsets") {
    CHECK_THAT(verdict(R"({"a":{"dtype":"F32","shape":[2]}})", 8), has_text("data_offsets is missing"));
  }
  SECTION("empty") { CHECK_FALSE(verdict(R"({"a":{}})", 0).empty()); }
  SECTION("unknown key") {
    CHECK_THAT(verdict(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"strides":[1]}})", 8),
               has_text("unknown key 'strides'"));
  }
  SECTION("an entry in an entry") {
    CHECK_FALSE(verdict(R"({"a":{"dtype":{"dtype":"F32"},"shape":[2],"data_offsets":[0,8]}})", 8).empty());
  }
  for (const char* const dtype : {"null", "1", "[\"F32\"]", "{}"}) {
    SECTION(std::string("dtype ") + dtype) { CHECK_FALSE(verdict(raw("[2]", "[0,8]", dtype), 8).empty()); }
  }
  for (const char* const shape : {"2", "null", "\"2\"", "{}", "[2.0]", "[2e0]", "[-2]", "[-0]", "[true]", "[null]",
                                  "[\"2\"]", "[[2]]", "[2,18446744073709551616]"}) {
    SECTION(std::string("shape ") + shape) {
      CHECK_THAT(verdict(raw(shape, "[0,8]"), 8), has_text("tensor 'a'") && has_text("shape"));
    }
  }
  for (const char* const offsets : {"8", "null", "[]", "[8]", "[0,4,8]", "[0.0,8]", "[0,8.0]", "[-1,8]", "[0,\"8\"]",
                                    "[0,[8]]", "[0,true]", "[0,18446744073709551616]", "{\"0\":8}"}) {
    SECTION(std::string("offsets ") + offsets) {
      CHECK_THAT(verdict(raw("[2]", offsets), 8), has_text("tensor 'a'") && has_text("data_offsets"));
    }
  }
}

TEST_CASE("attack: K2 size and shape", "[attack]") {
  SECTION("control") { CHECK(verdict(object({entry("a", "F32", {2}, 0, 8)}), 8).empty()); }
  SECTION("half the bytes") {
    CHECK_THAT(verdict(object({entry("a", "F32", {2}, 0, 4)}), 4),
               has_text("tensor 'a'") && has_text("F32 [2] takes 8 bytes"));
  }
  SECTION("twice the bytes") { CHECK_FALSE(verdict(object({entry("a", "F32", {2}, 0, 16)}), 16).empty()); }
  SECTION("wrong type") { CHECK_FALSE(verdict(object({entry("a", "F16", {2}, 0, 8)}), 8).empty()); }
  const std::uint64_t big = std::uint64_t{1} << 40;
  SECTION("product overflows") {
    CHECK_THAT(verdict(object({entry("a", "F32", {big, big}, 0, 8)}), 8),
               has_text("tensor 'a'") && has_text("does not fit 64 bits"));
  }
  SECTION("product overflows to the right size") {
    CHECK_FALSE(verdict(object({entry("a", "U8", {(std::uint64_t{1} << 63) + 4, 2}, 0, 8)}), 8).empty());
  }
  SECTION("product overflows before a zero") {
    CHECK_FALSE(verdict(object({entry("a", "F32", {big, big, 0}, 0, 0)}), 0).empty());
  }
  SECTION("bytes overflow") {
    CHECK_FALSE(verdict(object({entry("a", "F32", {std::uint64_t{1} << 62}, 0, 0)}), 0).empty());
  }
  SECTION("a terabyte") {
    CHECK_THAT(verdict(object({entry("a", "U8", {big}, 0, big)}), 8), has_text("only 8 bytes of data"));
  }
  SECTION("K18 half a byte") {
    CHECK_THAT(verdict(object({entry("a", "F4", {3}, 0, 2)}), 2), has_text("not a whole number of bytes"));
  }
  SECTION("K18 control: F4") { CHECK(verdict(object({entry("a", "F4", {2, 8}, 0, 8)}), 8).empty()); }
  SECTION("K18 F4 counted as whole bytes") {
    CHECK_FALSE(verdict(object({entry("a", "F4", {2, 8}, 0, 16)}), 16).empty());
  }
  SECTION("K1 one element in no bytes") { CHECK_FALSE(verdict(object({entry("a", "F32", {1}, 0, 0)}), 0).empty()); }
}

TEST_CASE("attack: K10 layout of the data", "[attack]") {
  const std::string a = entry("a", "U8", {8}, 0, 8);
  SECTION("control") { CHECK(verdict(object({a, entry("b", "U8", {8}, 8, 16)}), 16).empty()); }
  SECTION("control: backwards") { CHECK(verdict(object({entry("b", "U8", {8}, 8, 16), a}), 16).empty()); }
  SECTION("control: an unknown type with consistent offsets") {
    CHECK(verdict(object({a, entry("b", "X3", {5}, 8, 16)}), 16).empty());
  }
  SECTION("gap") {
    CHECK_THAT(verdict(object({a, entry("b", "U8", {8}, 12, 20)}), 20),
               has_text("tensor 'b'") && has_text("no tensor covers the bytes from 8 on"));
  }
  SECTION("gap at the start") { CHECK_FALSE(verdict(object({entry("b", "U8", {8}, 4, 12)}), 12).empty()); }
  SECTION("overlap") {
    CHECK_THAT(verdict(object({a, entry("b", "U8", {8}, 4, 12)}), 12),
               has_text("tensor 'b'") && has_text("overlap with tensor 'a'"));
  }
  SECTION("B10 alias") {
    CHECK_THAT(verdict(object({a, entry("b", "U8", {8}, 0, 8)}), 8), has_text("overlap with tensor"));
  }
  SECTION("one inside another") { CHECK_FALSE(verdict(object({a, entry("b", "U8", {2}, 2, 4)}), 8).empty()); }
  SECTION("nothing, inside another") { CHECK_FALSE(verdict(object({a, entry("b", "U8", {0}, 2, 2)}), 8).empty()); }
  SECTION("control: nothing, at both ends") {
    CHECK(verdict(object({entry("b", "U8", {0}, 0, 0), a, entry("c", "U8", {0}, 8, 8)}), 8).empty());
  }
  SECTION("nothing, behind the end") { CHECK_FALSE(verdict(object({a, entry("b", "U8", {0}, 9, 9)}), 8).empty()); }
  SECTION("trailing bytes") {
    CHECK_THAT(verdict(object({a}), 12), has_text("no tensor covers the last 4 of 12 bytes"));
  }
  SECTION("data without tensors") { CHECK_FALSE(verdict("{}", 4).empty()); }
  SECTION("missing bytes") { CHECK_THAT(verdict(object({a}), 7), has_text("tensor 'a'") && has_text("only 7 bytes")); }
  SECTION("backwards") {
    CHECK_THAT(verdict(object({entry("a", "U8", {8}, 8, 0)}), 8), has_text("end lies before the begin"));
  }
  SECTION("an unknown type, behind the end") {
    CHECK_FALSE(verdict(object({entry("b", "X3", {5}, 0, 16)}), 8).empty());
  }
  SECTION("an unknown type, backwards") { CHECK_FALSE(verdict(object({entry("b", "X3", {5}, 8, 0)}), 8).empty()); }
  SECTION("offsets at the end of the number line") {
    const std::uint64_t last = ~std::uint64_t{0};
    CHECK_FALSE(verdict(object({entry("b", "X3", {5}, last - 4, last)}), 8).empty());
    CHECK_FALSE(verdict(object({entry("b", "U8", {5}, last - 4, 0)}), 8).empty());
  }
}

TEST_CASE("attack: every prefix of a valid file", "[attack]") {
  const std::string header = object({R"("__metadata__":{"format":"pt"})", entry("a", "F32", {2}, 0, 8),
                                     entry("z", "F16", {0}, 8, 8), entry("b", "BF16", {1, 2}, 8, 12)});
  const std::string bytes = safetensors(padded(header, (header.size() + 7) / 8 * 8), pattern(12));
  CHECK(verdict(bytes).empty());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    INFO(length << " bytes");
    CHECK_FALSE(verdict(bytes.substr(0, length)).empty());
  }
}

TEST_CASE("attack: every bit and every byte of a header", "[attack]") {
  const std::string header =
      object({R"("__metadata__":{"k":"v"})", entry("a", "F32", {2}, 0, 8), entry("b", "F4", {1, 4}, 8, 10)});
  const std::string text = padded(header, (header.size() + 7) / 8 * 8);
  const std::uint64_t data_bytes = 10;
  // Whatever is accepted is checked again here, by the definition and not by the code under test.
  const auto is_consistent = [&](const rmsfold::io::SafetensorsHeader& read) {
    std::vector<int> covered(data_bytes, 0);
    for (const TensorInfo& tensor : read.tensors) {
      if (tensor.name.empty() || tensor.begin > tensor.end || tensor.end > data_bytes) return false;
      for (std::uint64_t i = tensor.begin; i < tensor.end; ++i) ++covered[i];
      std::uint64_t count = 1;
      for (const std::uint64_t extent : tensor.shape) count *= extent;
      const std::vector<std::pair<std::string, std::uint64_t>> bits{{"F4", 4}, {"F16", 16}, {"F32", 32}, {"F64", 64}};
      for (const auto& [dtype, each] : bits) {
        if (tensor.dtype == dtype && count * each != 8 * tensor.bytes()) return false;
      }
    }
    return std::all_of(covered.begin(), covered.end(), [](int times) { return times == 1; });
  };
  int accepted = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string changed = text;
      changed[at] = static_cast<char>(value);
      try {
        const rmsfold::io::SafetensorsHeader read = rmsfold::io::parse_safetensors_header(changed, data_bytes, "x");
        ++accepted;
        if (!is_consistent(read)) FAIL_CHECK("accepted " << changed);
      } catch (const FormatError&) {
      }
    }
  }
  CHECK(accepted > static_cast<int>(text.size()));  // at least the unchanged ones, and the other names
  // The length field.
  for (std::size_t at = 0; at < 8; ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string bytes = safetensors(text, pattern(data_bytes));
      if (bytes[at] == static_cast<char>(value)) continue;
      bytes[at] = static_cast<char>(value);
      INFO("byte " << at << " = " << value);
      CHECK_FALSE(verdict(bytes).empty());
    }
  }
}
