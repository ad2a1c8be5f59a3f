// SPDX-License-Identifier: MIT
#include <rmsfold/io/output_directory.hpp>

#include <csignal>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "support/bytes.hpp"
#include "support/catch.hpp"
#include "support/temp_dir.hpp"

namespace {

namespace fs = std::filesystem;
using rmsfold::IoError;
using rmsfold::RefusedError;
using rmsfold::io::OutputDirectory;
using rmsfold::test::has_text;
using rmsfold::test::read_bytes;
using rmsfold::test::TempDir;
using rmsfold::test::write_bytes;

/// Names in a directory, sorted.
std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory))
    names.push_back(entry.path().filename().native());
  std::sort(names.begin(), names.end());
  return names;
}
using Names = std::vector<std::string>;

/// A directory with a model beside which outputs can be made.
struct Place : TempDir {
  Place() {
    fs::create_directory(*this / "model");
    write_bytes(*this / "model" / "config.json", "{}");
  }
  [[nodiscard]] fs::path model() const { return *this / "model"; }
};

/// Runs `body` in another process, which is then killed; returns after `body` has run.
template <class Body>
void run_and_kill(const Body& body, bool while_alive(const fs::path&), const fs::path& path) {
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const ::pid_t child = ::fork();
  REQUIRE(child != -1);
  if (child == 0) {
    char result = 'x';
    try {
      body([&] {
        result = '.';
        [[maybe_unused]] const auto told = ::write(ready[1], &result, 1);
        for (;;) ::pause();
      });
    } catch (...) {
      [[maybe_unused]] const auto told = ::write(ready[1], &result, 1);
    }
    ::_exit(1);
  }
  char result = '?';
  CHECK(::read(ready[0], &result, 1) == 1);
  CHECK(result == '.');
  CHECK(while_alive(path));
  CHECK(::kill(child, SIGKILL) == 0);
  CHECK(::waitpid(child, nullptr, 0) == child);
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace

static_assert(!std::is_copy_constructible_v<OutputDirectory> && !std::is_move_constructible_v<OutputDirectory>);

TEST_CASE("output directory: appears when it is complete", "[io]") {
  const Place place;
  const bool fsync = GENERATE(false, true);
  {
    OutputDirectory out(place / "out", place.model(), false);
    CHECK(out.path() == place / "out.rmsfold-partial");
    write_bytes(out.path() / "a", "1");
    fs::create_directory(out.path() / "sub");
    write_bytes(out.path() / "sub" / "b", "2");
    CHECK_FALSE(fs::exists(place / "out"));
    out.commit(fsync);
    CHECK(out.notes().empty());
    CHECK(names_in(place.path()) == Names{"model", "out"});
    out.commit(fsync);  // nothing is left to do
  }
  CHECK(names_in(place.path()) == Names{"model", "out"});
  CHECK(names_in(place / "out") == Names{"a", "sub"});
  CHECK(read_bytes(place / "out" / "sub" / "b") == "2");
}

TEST_CASE("output directory: H4 without commit nothing is left", "[io]") {
  const Place place;
  try {
    OutputDirectory out(place / "out", place.model(), false);
    write_bytes(out.path() / "a", "1");
    throw std::runtime_error("late");
  } catch (const std::runtime_error&) {
  }
  CHECK(names_in(place.path()) == Names{"model"});
}

TEST_CASE("output directory: one that exists", "[io]") {
  const Place place;
  fs::create_directory(place / "out");
  write_bytes(place / "out" / "old", "old");
  SECTION("is refused") {
    CHECK_THROWS_AS(OutputDirectory(place / "out", place.model(), false), RefusedError);
    CHECK_THROWS_WITH(OutputDirectory(place / "out/", place.model(), false), has_text("exists already"));
  }
  SECTION("is replaced with force") {
    OutputDirectory out(place / "out", place.model(), true);
    write_bytes(out.path() / "new", "new");
    CHECK(read_bytes(place / "out" / "old") == "old");
    out.commit(true);
    CHECK(names_in(place / "out") == Names{"new"});
    CHECK(names_in(place.path()) == Names{"model", "out"});
    return;
  }
  SECTION("stays when there is no commit") { OutputDirectory out(place / "out", place.model(), true); }
  SECTION("is a file: refused even with force") {
    write_bytes(place / "file", "x");
    CHECK_THROWS_WITH(OutputDirectory(place / "file", place.model(), true), has_text("not a directory"));
    CHECK_THROWS_AS(OutputDirectory(place / "file", place.model(), true), RefusedError);
    CHECK(read_bytes(place / "file") == "x");
    fs::remove(place / "file");
  }
  SECTION("comes into being meanwhile: it is left alone") {
    OutputDirectory out(place / "late", place.model(), false);
    fs::create_directory(place / "late");
    write_bytes(place / "late" / "theirs", "x");
    CHECK_THROWS_AS(out.commit(false), RefusedError);
    CHECK(read_bytes(place / "late" / "theirs") == "x");
    fs::remove_all(place / "late");
  }
  CHECK(names_in(place / "out") == Names{"old"});
}

TEST_CASE("output directory: force without anything to replace", "[io]") {
  const Place place;
  OutputDirectory out(place / "out", place.model(), true);
  write_bytes(out.path() / "new", "new");
  out.commit(false);
  CHECK(names_in(place.path()) == Names{"model", "out"});
}

TEST_CASE("output directory: the model is safe", "[io]") {
  const Place place;
  const bool force = GENERATE(false, true);
  fs::create_directory(place / "elsewhere");
  const auto refused = [&](const fs::path& out, const fs::path& model) {
    INFO(out << " for " << model);
    CHECK_THROWS_AS(OutputDirectory(out, model, force), RefusedError);
    CHECK_THROWS_WITH(OutputDirectory(out, model, force), has_text("an input is never written"));
  };
  SECTION("equal") { refused(place.model(), place.model()); }
  SECTION("equal, with a slash") { refused(place / "model/", place.model()); }
  SECTION("equal, by another name") { refused(place / "elsewhere/../model/.", place.model()); }
  SECTION("inside") { refused(place.model() / "out", place.model()); }
  SECTION("deep inside") {
    fs::create_directory(place.model() / "sub");
    refused(place.model() / "sub" / "out", place.model());
  }
  SECTION("containing") { refused(place.path(), place.model()); }
  SECTION("equal through a link") {
    fs::create_symlink(place.model(), place / "link");
    refused(place / "link", place.model());
    refused(place.model(), place / "link");
    refused(place / "link" / "out", place.model());
  }
  SECTION("containing through a link") {
    fs::create_symlink(place.path(), place / "elsewhere" / "link");
    refused(place / "elsewhere" / "link", place.model());
  }
  SECTION("the partial directory is the model") {
    fs::rename(place.model(), place / "out.rmsfold-partial");
    write_bytes(place / "out.rmsfold-partial.lock", "");
    refused(place / "out", place / "out.rmsfold-partial");
    CHECK(fs::exists(place / "out.rmsfold-partial" / "config.json"));
  }
  SECTION("files of the model are links into it") {
    fs::create_directory(place / "blobs");
    write_bytes(place / "blobs" / "1", "weights");
    fs::create_symlink(place / "blobs" / "1", place.model() / "model.safetensors");
    refused(place / "blobs", place.model());
  }
  SECTION("control: beside it") { CHECK_NOTHROW(OutputDirectory(place / "model2", place.model(), force)); }
  SECTION("control: beside it, with a name that begins alike") {
    CHECK_NOTHROW(OutputDirectory(place / "mode", place.model(), force));
  }
  CHECK((fs::exists(place.model() / "config.json") || fs::exists(place / "out.rmsfold-partial" / "config.json")));
}

TEST_CASE("output directory: links and relative names", "[io]") {
  const Place place;
  fs::create_directory(place / "disk");
  SECTION("to a directory: that one is replaced, the link stays") {
    fs::create_directory(place / "disk" / "real");
    fs::create_symlink(place / "disk" / "real", place / "out");
    CHECK_THROWS_AS(OutputDirectory(place / "out", place.model(), false), RefusedError);
    OutputDirectory out(place / "out", place.model(), true);
    CHECK(out.path() == place / "disk" / "real.rmsfold-partial");
    write_bytes(out.path() / "new", "x");
    out.commit(false);
    CHECK(fs::is_symlink(place / "out"));
    CHECK(names_in(place / "disk" / "real") == Names{"new"});
  }
  SECTION("to nothing") {
    fs::create_symlink(place / "nothing", place / "out");
    CHECK_THROWS_AS(OutputDirectory(place / "out", place.model(), true), RefusedError);
  }
  SECTION("the parent is a link") {
    fs::create_symlink(place / "disk", place / "link");
    OutputDirectory out(place / "link" / "out", place.model(), false);
    out.commit(false);
    CHECK(fs::is_directory(place / "disk" / "out"));
  }
  SECTION("relative") {
    const fs::path before = fs::current_path();
    fs::current_path(place.path());
    {
      OutputDirectory out("out", "model", false);
      out.commit(true);
      OutputDirectory slash("./out2/", "model", false);
      slash.commit(false);
    }
    fs::current_path(before);
    CHECK(fs::is_directory(place / "out"));
    CHECK(fs::is_directory(place / "out2"));
  }
  SECTION("no name") { CHECK_THROWS_AS(OutputDirectory("", place.model(), true), RefusedError); }
}

TEST_CASE("output directory: where nothing can be made", "[io]") {
  const Place place;
  CHECK_THROWS_AS(OutputDirectory(place / "no" / "out", place.model(), false), IoError);
  CHECK_THROWS_WITH(OutputDirectory(place / "no" / "out", place.model(), false),
                    has_text((place / "no").native()) && has_text("No such file"));
  CHECK_THROWS_AS(OutputDirectory(place / "out", place / "none", false), IoError);
  CHECK_THROWS_AS(OutputDirectory(place / std::string(300, 'x'), place.model(), false), IoError);
  write_bytes(place / "file", "");
  CHECK_THROWS_AS(OutputDirectory(place / "file" / "out", place.model(), false), IoError);
  if (::geteuid() != 0) {  // root may write anywhere
    fs::create_directory(place / "closed");
    fs::permissions(place / "closed", fs::perms(0500));
    CHECK_THROWS_WITH(OutputDirectory(place / "closed" / "out", place.model(), false),
                      has_text("closed/out.rmsfold-partial") && has_text("Permission denied"));
    fs::permissions(place / "closed", fs::perms(0700));
  } else {
    CHECK_THROWS_AS(OutputDirectory("/proc/rmsfold-out", place.model(), false), IoError);
  }
}

TEST_CASE("output directory: two at once", "[io]") {
  const Place place;
  {
    OutputDirectory out(place / "out", place.model(), false);
    write_bytes(out.path() / "a", "1");
    for (const bool force : {false, true}) {
      CHECK_THROWS_AS(OutputDirectory(place / "out", place.model(), force), IoError);
      CHECK_THROWS_WITH(OutputDirectory(place / "out", place.model(), force), has_text("another rmsfold is writing"));
    }
    CHECK(read_bytes(out.path() / "a") == "1");
    CHECK_NOTHROW(OutputDirectory(place / "out2", place.model(), false));
    out.commit(false);
  }
  CHECK(names_in(place.path()) == Names{"model", "out"});
}

TEST_CASE("output directory: another process is respected while it lives, and cleaned up after", "[io]") {
  static Place* place = nullptr;
  Place here;
  place = &here;
  run_and_kill(
      [](const auto& wait) {
        const OutputDirectory out(*place / "out", place->model(), false);
        write_bytes(out.path() / "half", "1");
        wait();
      },
      [](const fs::path& out) {
        try {
          const OutputDirectory second(out, place->model(), true);
          return false;
        } catch (const IoError& error) {
          return std::string(error.what()).find("another rmsfold is writing") != std::string::npos;
        }
      },
      here / "out");
  CHECK(names_in(here.path()) == Names{"model", "out.rmsfold-partial", "out.rmsfold-partial.lock"});
  CHECK(fs::exists(here / "out.rmsfold-partial" / "half"));
  {
    OutputDirectory out(here / "out", here.model(), false);
    REQUIRE(out.notes().size() == 1);
    CHECK_THAT(out.notes()[0], has_text("removed") && has_text("out.rmsfold-partial") && has_text("killed"));
    CHECK(names_in(out.path()).empty());
    out.commit(false);
  }
  CHECK(names_in(here.path()) == Names{"model", "out"});
}

TEST_CASE("output directory: what somebody else put there is not removed", "[io]") {
  const Place place;
  fs::create_directory(place / "out.rmsfold-partial");
  write_bytes(place / "out.rmsfold-partial" / "theirs", "x");
  for (const bool force : {false, true}) {
    CHECK_THROWS_AS(OutputDirectory(place / "out", place.model(), force), RefusedError);
    CHECK_THROWS_WITH(OutputDirectory(place / "out", place.model(), force), has_text("move it away"));
  }
  CHECK(names_in(place.path()) == Names{"model", "out.rmsfold-partial"});
  CHECK(read_bytes(place / "out.rmsfold-partial" / "theirs") == "x");
}

TEST_CASE("output directory: a lock file alone is no obstacle", "[io]") {
  const Place place;
  write_bytes(place / "out.rmsfold-partial.lock", "");
  OutputDirectory out(place / "out", place.model(), false);
  CHECK(out.notes().empty());
  out.commit(false);
  CHECK(names_in(place.path()) == Names{"model", "out"});
}
