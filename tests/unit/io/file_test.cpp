// SPDX-License-Identifier: MIT
#include <rmsfold/io/file.hpp>

#include <csignal>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>

#include "support/bytes.hpp"
#include "support/catch.hpp"
#include "support/temp_dir.hpp"

namespace {

using rmsfold::FormatError;
using rmsfold::IoError;
using rmsfold::io::File;
using rmsfold::io::printable;
using rmsfold::test::has_text;
using rmsfold::test::TempDir;

std::string read(const File& file, std::uint64_t offset, std::size_t count) {
  std::string text(count, '?');
  file.read_exact(offset, std::as_writable_bytes(std::span<char>(text)));
  return text;
}

}  // namespace

static_assert(std::is_nothrow_move_constructible_v<File> && !std::is_copy_constructible_v<File>);

TEST_CASE("file: reads and writes at offsets", "[io]") {
  const TempDir dir;
  File out = File::create(dir / "a");
  out.write_exact(4, rmsfold::io::bytes_of("5678"));
  out.write_exact(0, rmsfold::io::bytes_of("1234"));
  out.sync();
  out.close();
  const File in = File::open(dir / "a");
  CHECK(in.size() == 8);
  CHECK(read(in, 2, 4) == "3456");
  CHECK(read(in, 8, 0).empty());
  CHECK_THROWS_AS(read(in, ~std::uint64_t{0}, 1), rmsfold::Error);
}

TEST_CASE("file: one that ends too soon is an exception", "[io]") {
  const TempDir dir;
  rmsfold::test::write_bytes(dir / "a", "12345678");
  const File file = File::open(dir / "a");
  std::filesystem::resize_file(dir / "a", 6);
  CHECK(read(file, 0, 6) == "123456");
  CHECK_THROWS_AS(read(file, 4, 4), rmsfold::FormatError);
  CHECK_THROWS_WITH(read(file, 4, 4), has_text("was truncated while being read") && has_text((dir / "a").native()));
}

TEST_CASE("file: whatever is not a regular file is refused, without waiting", "[io]") {
  const TempDir dir;
  CHECK_THROWS_WITH(File::open(dir.path()), has_text("is a directory"));
  CHECK_THROWS_AS(File::open(dir.path()), FormatError);
  REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(File::open(dir / "pipe"), has_text("pipe"));
  CHECK_THROWS_AS(File::open("/dev/null"), FormatError);
  CHECK_THROWS_WITH(File::open(dir / "none"), has_text("none: No such file"));
  std::filesystem::create_symlink("none", dir / "dangling");
  CHECK_THROWS_AS(File::open(dir / "dangling"), IoError);
}

TEST_CASE("file: creating never replaces", "[io]") {
  const TempDir dir;
  rmsfold::io::write_text_file(dir / "a", "old");
  CHECK_THROWS_AS(File::create(dir / "a"), IoError);
  CHECK_THROWS_AS(rmsfold::io::write_text_file(dir / "a", "new"), IoError);
  CHECK_THROWS_AS(rmsfold::io::copy_file(dir / "a", dir / "a"), IoError);
  CHECK(rmsfold::io::read_text_file(dir / "a") == "old");
  CHECK_THROWS_WITH(File::create(dir / "no" / "a"), has_text("No such file"));
}

TEST_CASE("file: moves leave one owner", "[io]") {
  const TempDir dir;
  rmsfold::test::write_bytes(dir / "a", "aaaa");
  rmsfold::test::write_bytes(dir / "b", "bbbb");
  File file = File::open(dir / "a");
  file = File::open(dir / "b");
  const File moved = std::move(file);
  CHECK(read(moved, 0, 4) == "bbbb");
  CHECK(moved.path().filename() == "b");
}

TEST_CASE("file: a write that the system cuts short is an exception", "[io]") {
  const TempDir dir;
  File file = File::create(dir / "a");
  ::rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ::rlimit tight = old;
  tight.rlim_cur = 100;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &tight) == 0);
  std::string message;
  try {
    file.write_exact(0, rmsfold::io::bytes_of(rmsfold::test::pattern(200)));  // 100 bytes fit, the rest does not
  } catch (const IoError& error) {
    message = error.what();
  }
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &old) == 0);
  std::signal(SIGXFSZ, handler);
  CHECK_THAT(message, has_text("cannot write " + (dir / "a").native()));
  CHECK(file.size() == 100);
}

TEST_CASE("file: copies are regular files with the same bytes", "[io]") {
  const TempDir dir;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{1} << 20, (std::size_t{1} << 20) + 1}) {
    const std::string name = std::to_string(size);
    rmsfold::test::write_bytes(dir / name, rmsfold::test::pattern(size));
    std::filesystem::create_symlink(name, dir / (name + ".link"));
    rmsfold::io::copy_file(dir / (name + ".link"), dir / (name + ".copy"));
    CHECK(std::filesystem::is_regular_file(std::filesystem::symlink_status(dir / (name + ".copy"))));
    CHECK((rmsfold::test::read_bytes(dir / (name + ".copy")) == rmsfold::test::pattern(size)));
  }
  std::filesystem::permissions(dir / "1", std::filesystem::perms(0444));
  rmsfold::io::copy_file(dir / "1", dir / "writable");
  CHECK((std::filesystem::status(dir / "writable").permissions() & std::filesystem::perms::owner_write) !=
        std::filesystem::perms::none);
  CHECK_THROWS_AS(rmsfold::io::copy_file(dir.path(), dir / "x"), FormatError);
  CHECK(!std::filesystem::exists(dir / "x"));
}

TEST_CASE("file: names in messages cannot steer a terminal", "[io]") {
  CHECK(printable("model.layers.0") == "model.layers.0");
  CHECK(printable("größe") == "größe");
  CHECK(printable("a\x1b[2J\nb\x7f") == "a\\x1b[2J\\x0ab\\x7f");
  CHECK(printable("\xc2\x9b"
                  "2J \xc2\xa9") == "\\xc2\\x9b2J \xc2\xa9");
  CHECK(printable(std::string(500, 'x')) == std::string(200, 'x') + "...");
  CHECK(printable("ab\xc3\xa4xyz", 3) == "ab\xc3\xa4...");  // never half a character
  CHECK(printable(std::filesystem::path("/tmp/a\nb")) == "/tmp/a\\x0ab");
}
