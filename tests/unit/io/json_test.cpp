// SPDX-License-Identifier: MIT
#include <rmsfold/io/json.hpp>

#include <string>

#include "support/bytes.hpp"
#include "support/catch.hpp"
#include "support/temp_dir.hpp"

namespace {

using rmsfold::FormatError;
using rmsfold::io::Json;
using rmsfold::io::parse_json;
using rmsfold::test::has_text;

/// `open` n times, then `close` n times.
std::string nested(std::size_t depth, const std::string& open, const std::string& close) {
  std::string text;
  for (std::size_t i = 0; i < depth; ++i) text += open;
  for (std::size_t i = 0; i < depth; ++i) text += close;
  return text;
}

}  // namespace

TEST_CASE("json: values, and the order of keys, survive", "[io]") {
  const std::string text =
      R"({"z":1,"a":[true,false,null,{}],"n":-3,"x":1e-05,"t":"é\"\u0001","big":18446744073709551615,"":[[]]})";
  const Json value = parse_json(text, "x.json");
  CHECK(value.dump() == text);
  CHECK(value["big"].get<std::uint64_t>() == 18446744073709551615u);
  CHECK(value["n"].get<int>() == -3);
  CHECK(value["x"].get<double>() == 1e-5);
  CHECK(parse_json(" 7 ", "x").get<int>() == 7);
}

TEST_CASE("json: an integer is exact or refused", "[io]") {
  CHECK(parse_json("9007199254740993", "x").get<std::int64_t>() == 9007199254740993);
  CHECK(parse_json("-9223372036854775808", "x").get<std::int64_t>() == (std::numeric_limits<std::int64_t>::min)());
  // Tokenizers write int(1e30); a double has that very value.
  CHECK(parse_json("1000000000000000019884624838656", "x").get<double>() == 1e30);
  CHECK_THROWS_WITH(parse_json("1000000000000000019884624838657", "x"), has_text("fits neither 64 bits nor a double"));
  CHECK_THROWS_WITH(parse_json("18446744073709551617", "x"), has_text("18446744073709551617"));
  CHECK_THROWS_AS(parse_json("1e400", "x"), FormatError);
}

TEST_CASE("json: what is not JSON names the file and the byte", "[io]") {
  CHECK_THROWS_WITH(parse_json(R"({"a":1,"b":2,"a":3})", "conf.json"),
                    has_text("conf.json: bad JSON before byte 19") && has_text("duplicate key 'a'"));
  CHECK_THROWS_WITH(parse_json(R"([{"k":{"a":1,"a":1}}])", "x"), has_text("duplicate key 'a'"));
  CHECK_NOTHROW(parse_json(R"([{"a":1},{"a":1},{"b":{"a":{"b":2}}}])", "x"));
  CHECK_THROWS_WITH(parse_json("{\"a\":1} x", "x"), has_text("byte 9"));
  const char* const bad[] = {"",
                             " ",
                             "{",
                             "[1,]",
                             "{\"a\":}",
                             "{\"a\"}",
                             "{,}",
                             "{} {}",
                             "nul",
                             "NaN",
                             "Infinity",
                             "01",
                             "1.",
                             "\"",
                             "\"\n\"",
                             "'a'",
                             "// c\n1",
                             "\"\\x\"",
                             "\"\\ud800\"",
                             "\"\xff\"",
                             "\"\xc0\x80\"",
                             "\"\xed\xa0\x80\"",
                             "{\"\xff\":1}",
                             "\xff"};
  for (const char* const text : bad) {
    INFO(text);
    CHECK_THROWS_AS(parse_json(text, "x"), FormatError);
  }
  // A NUL must not hide what follows it.
  CHECK_THROWS_WITH(parse_json(std::string("{}\0garbage", 10), "x"), has_text("NUL"));
}

TEST_CASE("json: messages carry no control characters and stay short", "[io]") {
  try {
    const Json value = parse_json("{\"\\u001b[2J\\n\":1,\"\\u001b[2J\\n\":1}", "x");
    FAIL("accepted " << value);
  } catch (const FormatError& error) {
    CHECK_THAT(error.what(), has_text("\\x1b[2J\\x0a"));
  }
  try {
    const Json value = parse_json("[\"" + std::string(100000, 'x') + "\n\"]", "x");
    FAIL("accepted " << value);
  } catch (const FormatError& error) {
    CHECK(std::string(error.what()).size() < 2000);
  }
}

TEST_CASE("json: nesting has a limit", "[io]") {
  CHECK_NOTHROW(parse_json(nested(64, "[", "]"), "x"));
  CHECK_THROWS_WITH(parse_json(nested(65, "[", "]"), "x"), has_text("nested too deeply"));
  CHECK_THROWS_WITH(parse_json(nested(65, "{\"a\":", "}"), "x"), has_text("nested too deeply"));
  CHECK_THROWS_AS(parse_json(nested(100000, "[", ""), "x"), FormatError);
}

TEST_CASE("json: files have a size limit", "[io]") {
  const rmsfold::test::TempDir dir;
  rmsfold::test::write_bytes(dir / "a.json", "{\"a\": [1, 2]}\n");
  CHECK(rmsfold::io::read_json_file(dir / "a.json")["a"][1] == 2);
  CHECK_NOTHROW(rmsfold::io::read_json_file(dir / "a.json", 14));
  CHECK_THROWS_WITH(rmsfold::io::read_json_file(dir / "a.json", 13), has_text("a.json has 14 bytes"));
  CHECK_THROWS_WITH(rmsfold::io::read_json_file(dir / "b.json"), has_text("b.json: No such file"));
  rmsfold::test::write_bytes(dir / "a.json", "{");
  CHECK_THROWS_WITH(rmsfold::io::read_json_file(dir / "a.json"), has_text((dir / "a.json").native()));
}

TEST_CASE("json: numbers that Python writes as no JSON come back as they were", "[io]") {
  const std::string text = R"({"time_step_limit": [0.0, Infinity], "a": -Infinity, "b": NaN, "name": "Infinity \" NaN"})";
  const std::string quoted = rmsfold::io::quote_python_literals(text);
  const rmsfold::io::Json json = rmsfold::io::parse_json(quoted, "text");
  CHECK(json.at("time_step_limit").at(1) == std::string(rmsfold::io::python_literal) + "Infinity");
  CHECK(json.at("name") == "Infinity \" NaN");
  CHECK(rmsfold::io::unquote_python_literals(quoted) == text);
  CHECK(rmsfold::io::quote_python_literals("") == "");
  CHECK_THROWS_AS(rmsfold::io::parse_json(rmsfold::io::quote_python_literals("{\"a\": Infinit}"), "text"), rmsfold::FormatError);
}
