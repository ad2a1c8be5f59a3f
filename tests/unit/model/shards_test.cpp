// SPDX-License-Identifier: MIT
// Who writes which shard, who may write at the same time, what is checked before, and how long it will take.
#include <rmsfold/model/shards.hpp>

#include <cmath>
#include <map>

#include "../tools/time_left.hpp"
#include "support/bytes.hpp"
#include "support/catch.hpp"
#include "support/model_run.hpp"
#include "support/temp_dir.hpp"
#include "support/tiny_model.hpp"

namespace {

namespace fs = std::filesystem;
using namespace rmsfold;
using namespace rmsfold::test;
using Sizes = std::vector<std::uint64_t>;

/// Bytes of the fullest part.
std::uint64_t fullest(const Sizes& sizes, const std::vector<std::size_t>& part_of) {
  std::map<std::size_t, std::uint64_t> loads;
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) most = (std::max)(most, loads[part_of[i]] += sizes[i]);
  return most;
}

/// The same of the best assignment there is, found by trying all.
std::uint64_t best(const Sizes& sizes, std::size_t parts) {
  std::vector<std::size_t> part_of(sizes.size(), 1);
  std::uint64_t least = fullest(sizes, part_of);
  for (std::size_t digit = 0; digit < sizes.size();) {
    if (part_of[digit] < parts) {
      ++part_of[digit];
      least = (std::min)(least, fullest(sizes, part_of));
      digit = 0;
    } else {
      part_of[digit++] = 1;
    }
  }
  return least;
}

/// Median relative error of the time left, after the first fifth of a run whose speed at a time is given.
template <class Speed>
double median_error(double seconds, const Speed& speed) {
  constexpr double step = 0.25;
  const auto steps = static_cast<std::size_t>(seconds / step);
  std::vector<double> done{0};
  for (std::size_t i = 0; i < steps; ++i) done.push_back(done.back() + step * speed(static_cast<double>(i) * step));
  tool::TimeLeft time_left;
  std::vector<double> errors;
  for (std::size_t i = 1; i < steps; ++i) {
    const double now = static_cast<double>(i) * step;
    time_left.add(now, static_cast<std::uint64_t>(done[i]));
    const std::optional<double> estimate = time_left.estimate(static_cast<std::uint64_t>(done.back()));
    if (now < 0.2 * seconds) continue;
    const double left = seconds - now;
    errors.push_back(estimate ? std::abs(*estimate - left) / left : 1);
  }
  std::nth_element(errors.begin(), errors.begin() + static_cast<std::ptrdiff_t>(errors.size() / 2), errors.end());
  return errors[errors.size() / 2];
}

}  // namespace

TEST_CASE("parts: shards are balanced by bytes, as anybody else would do it", "[model]") {
  CHECK(model::assign_shards({5, 5, 9, 1}, 2) == std::vector<std::size_t>{2, 2, 1, 1});
  CHECK(model::assign_shards({3, 3, 3}, 5) == std::vector<std::size_t>{1, 2, 3});  // parts 4 and 5 have nothing to do
  CHECK(model::assign_shards({}, 4).empty());
  CHECK(model::assign_shards({0, 0}, 1) == std::vector<std::size_t>{1, 1});
  CHECK(model::assign_shards(Sizes(3, 7), 1'000'000'000'000).size() == 3);  // costs nothing
  Random random(5);
  for (int trial = 0; trial < 40; ++trial) {
    Sizes sizes;
    for (int i = 0; i < 7; ++i) sizes.push_back(1 + random.below(1000));
    const std::size_t parts = 2 + random.below(2);
    const std::uint64_t load = fullest(sizes, model::assign_shards(sizes, parts));
    CHECK(3 * load <= 4 * best(sizes, parts));
  }
}

TEST_CASE("parts: the bytes are those of one process", "[model]") {
  const TempDir temp;
  TinyModel spec = tiny("llama");
  spec.dtype = "BF16";
  spec.tied = true;  // the head is made in the embedding's shard
  spec.shards = 3;
  const fs::path a = write_model(temp / "a", spec);
  const model::Step step = test::step("hadamard --heads");
  run_step(a, temp / "whole", step);
  std::size_t shards = 0, transformed = 0;
  for (const std::size_t number : {2u, 4u, 1u, 3u}) {
    CHECK_THROWS_AS(model::finish(temp / "out"), RefusedError);  // not all are there
    model::RunOptions options;
    options.part = model::Part{number, 4};
    options.threads = static_cast<unsigned>(number);
    const model::RunSummary summary = run_step(a, temp / "out", step, options);
    shards += summary.shards;
    transformed += summary.transformed;
    CHECK_FALSE(fs::exists(temp / "out"));
  }
  const model::RunSummary all = model::finish(temp / "out");
  CHECK(shards == 3);
  CHECK(all.shards == 3);
  CHECK(all.transformed == transformed);
  CHECK(all_files(temp / "out") == all_files(temp / "whole"));

  model::RunOptions wrong;
  wrong.part = model::Part{3, 2};
  CHECK_THROWS_AS(run_step(a, temp / "none", step, wrong), RefusedError);
}

TEST_CASE("output directory: shared by those who agree", "[io]") {
  const TempDir place;
  fs::create_directory(place / "model");
  int set_up = 0;
  io::OutputOptions shared;
  shared.shared = true;
  shared.keep = [](const fs::path& partial) { return fs::exists(partial / "job"); };
  shared.set_up = [&](const fs::path& partial) {
    ++set_up;
    write_bytes(partial / "job", "x");
  };
  {
    const io::OutputDirectory first(place / "out", place / "model", shared);
    const io::OutputDirectory second(place / "out", place / "model", shared);
    CHECK_FALSE(first.was_kept());
    CHECK(second.was_kept());
    CHECK(set_up == 1);
    CHECK_THROWS_AS(io::OutputDirectory(place / "out", place / "model", true), IoError);
    io::OutputOptions refusing = shared;
    refusing.keep = [](const fs::path&) -> bool { throw RefusedError("another plan"); };
    CHECK_THROWS_AS(io::OutputDirectory(place / "out", place / "model", refusing), RefusedError);
  }
  CHECK(read_bytes(place / "out.rmsfold-partial" / "job") == "x");  // a part that ends leaves everything
  io::OutputOptions failing = shared;
  failing.set_up = [](const fs::path&) { throw IoError("no room"); };
  CHECK_THROWS_AS(io::OutputDirectory(place / "other", place / "model", failing), IoError);
  CHECK_FALSE(fs::exists(place / "other.rmsfold-partial"));
  CHECK_FALSE(fs::exists(place / "other.rmsfold-partial.lock"));
  io::OutputOptions last;
  last.existing = true;
  io::OutputDirectory out(place / "out", "", last);
  out.commit(false);
  CHECK(fs::exists(place / "out" / "job"));
  CHECK_FALSE(fs::exists(place / "out.rmsfold-partial.lock"));
  CHECK_THROWS_WITH(io::OutputDirectory(place / "new", "", last), has_text("nothing was begun"));
}

TEST_CASE("output directory: room is asked for before", "[io]") {
  const TempDir place;
  fs::create_directory(place / "model");
  const io::OutputDirectory out(place / "out", place / "model", false);
  CHECK_NOTHROW(out.require_space(0));
  CHECK_NOTHROW(out.require_space(io::free_space(place.path()) / 2));
  constexpr std::uint64_t too_much = std::uint64_t{1} << 62;
  CHECK_THROWS_AS(out.require_space(too_much), IoError);
  CHECK_THROWS_WITH(out.require_space(too_much), has_text("needs 4611686018427387904 bytes") && has_text("bytes free"));
}

TEST_CASE("time left: within 30 % of what it takes, in the median", "[tool]") {
  CHECK(median_error(100, [](double) { return 1e9; }) < 1e-6);
  Random random(9);
  CHECK(median_error(100, [&](double) { return 1e9 * (0.5 + random.uniform()); }) < 0.3);                          // unsteady
  CHECK(median_error(120, [](double t) { return t < 12 ? 6e9 : 1e9; }) < 0.3);                                    // a start from caches
  CHECK(median_error(120, [](double t) { return t < 12 ? 1e8 : 1e9; }) < 0.3);                                    // a slow start
  CHECK(median_error(200, [](double t) { return std::fmod(t, 10) < 3 ? 0.0 : 1e9; }) < 0.3);                      // stalls at the end of each shard
  CHECK(median_error(3600, [](double t) { return 1e9 * (1 + 0.5 * std::sin(t / 60)); }) < 0.3);                   // somebody else's load
  // What it is for: the mean speed since the start is off by more in the same run.
  tool::TimeLeft none;
  CHECK_FALSE(none.estimate(10));
  none.add(1, 5);
  none.add(2, 5);
  CHECK_FALSE(none.estimate(10));  // nothing moves
}
