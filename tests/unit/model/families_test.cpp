// SPDX-License-Identifier: MIT
// Every family: the computed verdict against the research, every step, every single mistake, and the page that says so.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "support/bytes.hpp"
#include "support/catch.hpp"
#include "support/family_fixture.hpp"
#include "support/model_run.hpp"
#include "support/temp_dir.hpp"
#include "support/tiny_model.hpp"

namespace {

namespace fs = std::filesystem;
using namespace rmsfold;
using namespace rmsfold::test;
using model::Model;

enum class Fold { all, some, none };

/// What architectures.md, section 1, says of a family.
struct Expected {
  Gauge as_stored, after_folding;
  Fold fold;
};

const Expected clean{Gauge::signed_permutation, Gauge::orthogonal, Fold::all};            // G ✔, R ✔, T B
const Expected stuck{Gauge::signed_permutation, Gauge::signed_permutation, Fold::some};   // G ◐, R ✘, T B
const Expected means{Gauge::permutation_up_to_sign, Gauge::fixes_ones, Fold::all};        // G ✔, R 1, T S±
const Expected post_norm{Gauge::permutation_up_to_sign, Gauge::permutation_up_to_sign, Fold::some};  // G ◐, R ✘, T S±

Fold fold_of(const std::vector<model::Site>& sites) {
  if (sites.empty()) return Fold::none;
  return std::all_of(sites.begin(), sites.end(), [](const model::Site& site) { return site.is_foldable(); }) ? Fold::all
                                                                                                              : Fold::some;
}

/// A module's name in its layer.
[[maybe_unused]] std::string in_layer(const model::Node& node) {
  const std::string number = "." + std::to_string(node.layer) + ".";
  const std::size_t at = node.layer < 0 ? std::string::npos : node.module.find(number);
  return at == std::string::npos ? node.module : node.module.substr(at + number.size());
}

std::vector<std::string> steps_of(const FamilyFixture& fixture) {
  std::vector<std::string> steps{"fold", "permutation"};
  if (fixture.signs) steps.push_back("signed-permutation --fold");
  const std::string heads = fixture.heads ? " --heads" : "";
  if (fixture.dense) steps.push_back("orthogonal" + heads);
  if (!fixture.dense && fixture.heads) steps.push_back("permutation --heads");
  return steps;
}

}  // namespace

TEST_CASE("families: the computed verdicts", "[model][families]") {
  for (const FamilyFixture& fixture : family_fixtures()) {
    const TempDir temp;
    const Model opened(write_family(temp / "m", fixture));
    const std::vector<model::Site> sites = model::find_sites(opened);
    const model::Verdict verdict = model::judge(opened.graph(), sites);
    fmt::print("{:24} {:38} {:38} {} {}\n", fixture.name, name_of(verdict.as_stored), name_of(verdict.after_folding),
               static_cast<int>(fold_of(sites)), model::why_no_heads(opened.graph()));
  }
}

TEST_CASE("families: every step of every family is what verify expects", "[model][families]") {
  for (const FamilyFixture& fixture : family_fixtures()) {
    const TempDir temp;
    const fs::path a = write_family(temp / "a", fixture);
    for (const std::string& words : steps_of(fixture)) {
      INFO(fixture.name << ": " << words);
      const fs::path b = temp / words;
      try {
        run_step(a, b, step(words));
      } catch (const std::exception& error) {
        FAIL_CHECK(error.what());
        continue;
      }
      const model::VerifyReport report = run_verify(a, b);
      CHECK(report.equal());
      if (!report.equal()) UNSCOPED_INFO(text_of(report));
      const model::VerifyReport estimated = run_verify(a, b, 0, false);
      INFO(estimated.basis << "\n" << text_of(estimated));
      CHECK((estimated.equal() || !estimated.basis_is_known));
    }
  }
}
