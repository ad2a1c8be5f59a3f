// SPDX-License-Identifier: MIT
// Every family: the computed verdict against the research, every step, every single mistake, and the page that says so.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
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

/// What architectures.md, section 1, says of a family: T, R, G.
struct Expected {
  Gauge as_stored, after_folding;
  Fold fold;
};
bool operator==(const Expected& a, const Expected& b) {
  return a.as_stored == b.as_stored && a.after_folding == b.after_folding && a.fold == b.fold;
}

const Expected clean{Gauge::signed_permutation, Gauge::orthogonal, Fold::all};           // T B, R yes, G yes
const Expected stuck{Gauge::signed_permutation, Gauge::signed_permutation, Fold::some};  // T B, R no, G in part
const Expected means{Gauge::permutation_up_to_sign, Gauge::fixes_ones, Fold::all};       // T S±, R 1, G yes
const Expected means_stuck{Gauge::permutation_up_to_sign, Gauge::permutation_up_to_sign, Fold::some};
const Expected no_gains{Gauge::fixes_ones, Gauge::fixes_ones, Fold::none};  // olmo: nothing to fold
// The research allows a global sign as well, which the gain behind the GELU of the head would have to take over.
const Expected pointwise_head{Gauge::permutation, Gauge::permutation, Fold::some};
const Expected output{Gauge::identity, Gauge::identity, Fold::some};        // the last hidden state is the output

Expected expected(const std::string& name) {
  static const std::map<std::string, Expected> others{
      {"gemma2", stuck}, {"gemma3_text", stuck}, {"gemma3_vision", stuck}, {"glm4", stuck}, {"olmo2", stuck},
      {"olmo3", stuck}, {"exaone4", stuck}, {"minimax", stuck}, {"umt5", stuck},
      {"gpt2", means}, {"gpt2-untied", means}, {"gpt_neox", means}, {"gpt_neox-sequential", means}, {"gptj", means},
      {"opt", means}, {"opt-no-bias", means}, {"falcon-7b", means}, {"falcon-40b", means}, {"falcon-rw", means},
      {"phi", means}, {"stablelm", means}, {"stablelm-parallel", means}, {"starcoder2", means}, {"mpt", means},
      {"cohere", means}, {"cohere2", means}, {"nemotron", means}, {"nemotron-no-bias", means}, {"persimmon", means},
      {"whisper", means}, {"vit", means},
      {"olmo", no_gains}, {"olmo-clipped", no_gains},
      {"bloom", means_stuck}, {"modernbert", pointwise_head}, {"bert", pointwise_head}, {"roberta", pointwise_head},
      {"vit_base", output}, {"bert_base", output}, {"roberta_base", output}};
  const auto found = others.find(name);
  return found == others.end() ? clean : found->second;
}

Fold fold_of(const std::vector<model::Site>& sites) {
  if (sites.empty()) return Fold::none;
  return std::all_of(sites.begin(), sites.end(), [](const model::Site& site) { return site.is_foldable(); }) ? Fold::all
                                                                                                              : Fold::some;
}

std::vector<std::string> steps_of(const FamilyFixture& fixture) {
  std::vector<std::string> steps{"fold"};
  const std::string heads = fixture.heads ? " --heads" : "";
  if (fixture.moves) steps.push_back("permutation" + (fixture.dense ? "" : heads));
  if (fixture.signs) steps.push_back("signed-permutation --fold");
  if (fixture.dense) steps.push_back("orthogonal" + heads);
  return steps;
}

/// A module's name with * for numbers.
std::string without_numbers(const std::string& module) {
  std::string name;
  for (std::size_t i = 0; i < module.size(); ++i) {
    const bool is_digit = module[i] >= '0' && module[i] <= '9' && i > 0 && (module[i - 1] == '.' || name.back() == '*');
    if (!is_digit) name += module[i];
    if (is_digit && name.back() != '*') name += '*';
  }
  return name;
}

}  // namespace

TEST_CASE("families: the computed verdict is that of the research", "[model][families]") {
  REQUIRE(family_fixtures().size() > 60);
  for (const FamilyFixture& fixture : family_fixtures()) {
    INFO(fixture.name);
    const TempDir temp;
    const Model opened(write_family(temp / "m", fixture));
    const std::vector<model::Site> sites = model::find_sites(opened);
    const model::Verdict verdict = model::judge(opened.graph(), sites);
    INFO(name_of(verdict.as_stored) << "; " << name_of(verdict.after_folding));
    CHECK((Expected{verdict.as_stored, verdict.after_folding, fold_of(sites)} == expected(fixture.name)));
    CHECK((fixture.moves && model::why_no_heads(opened.graph()).empty()) == fixture.heads);
    CHECK(contains(verdict.after_folding, Gauge::fixes_ones) == fixture.dense);
    CHECK(contains(verdict.as_stored, Gauge::signed_permutation) == fixture.signs);
  }
}

TEST_CASE("families: every step is what verify expects, with and without the manifest", "[model][families]") {
  for (const FamilyFixture& fixture : family_fixtures()) {
    const TempDir temp;
    const fs::path a = write_family(temp / "a", fixture);
    for (const std::string& words : steps_of(fixture)) {
      INFO(fixture.name << ": " << words);
      const fs::path b = temp / words;
      run_step(a, b, step(words));
      const model::VerifyReport report = run_verify(a, b);
      INFO(text_of(report));
      CHECK(report.equal());
      const model::VerifyReport estimated = run_verify(a, b, 0, false);
      INFO(estimated.basis << "\n" << text_of(estimated));
      CHECK((estimated.equal() || !estimated.basis_is_known));
    }
  }
}

TEST_CASE("families: a second fold finds nothing to do", "[model][families]") {
  for (const char* name : {"gpt2", "gptj", "gemma2", "qwen3_next", "deepseek_v3", "t5", "nemotron", "bloom", "falcon-40b"}) {
    INFO(name);
    const TempDir temp;
    run_step(write_family(temp / "a", family_fixture(name)), temp / "b", step("fold"));
    const Model folded(temp / "b");
    CHECK_FALSE(model::make_plan(folded, step("fold")).changes_something());
  }
}

TEST_CASE("families: signed permutations come back bit for bit", "[model][families]") {
  for (const char* name : {"mixtral", "deepseek_v3", "gpt_oss", "mamba2", "gemma2", "t5", "gemma3_vision", "granitemoe"}) {
    INFO(name);
    const TempDir temp;
    const fs::path a = write_family(temp / "a", family_fixture(name), "BF16");
    run_step(a, temp / "b", step("signed-permutation"));
    model::RunOptions again;
    again.again = true;
    run_step(temp / "b", temp / "c", step("signed-permutation --inverse"), again);
    for (const std::string& tensor : tensor_names(a)) CHECK(tensor_bytes(temp / "c", tensor) == tensor_bytes(a, tensor));
  }
}

TEST_CASE("families: what the algebra forbids is refused with the norm and the alternative", "[model][families]") {
  const auto refusal = [](const std::string& name, const std::string& words) {
    const TempDir temp;
    const fs::path a = write_family(temp / "a", family_fixture(name));
    try {
      run_step(a, temp / "b", step(words));
    } catch (const RefusedError& error) {
      CHECK_FALSE(fs::exists(temp / "b"));
      return std::string(error.what());
    }
    FAIL_CHECK(name << " " << words << " was accepted");
    return std::string();
  };
  CHECK_THAT(refusal("gemma2", "hadamard"), has_text("layers.0.post_attention_layernorm") && has_text("added to the residual stream") &&
                                                has_text("signed-permutation, which is exact"));
  CHECK_THAT(refusal("minimax", "orthogonal"), has_text("layers.0.input_layernorm") && has_text("cannot be folded"));
  CHECK_THAT(refusal("gpt2", "signed-permutation"), has_text("h.0.ln_1") && has_text("signs") && has_text("--rotation permutation, which is exact"));
  CHECK_THAT(refusal("gpt2", "signed-permutation --fold"), has_text("subtracts the mean") && has_text("fix the ones vector"));
  CHECK_THAT(refusal("bloom", "orthogonal"), has_text("word_embeddings_layernorm"));
  CHECK_THAT(refusal("qwen3_next", "orthogonal --heads"), has_text("--heads") && has_text("acts on the values"));
  CHECK_THAT(refusal("deepseek_v3", "orthogonal --heads"), has_text("no attention of this model keeps its values per head"));
  CHECK_THAT(refusal("bert_base", "permutation"), has_text("last_hidden_state"));
}

TEST_CASE("families: a rotation from a file must fix the ones vector where LayerNorms read the stream", "[model][families]") {
  const TempDir temp;
  const fs::path a = write_family(temp / "a", family_fixture("gpt2"));
  Random random(3);
  const auto write = [&](const fs::path& path, const Matrix<double>& q) {
    io::SafetensorsWriter file(path, {io::make_tensor("rotation", "F64", {48, 48})});
    file.write(std::size_t{0}, 0, std::as_bytes(std::span(q.data(), static_cast<std::size_t>(q.size()))));
    file.finish(false);
    return path;
  };
  CHECK_THROWS_WITH(run_step(a, temp / "b", step_from_file(write(temp / "q", haar_orthogonal<double>(48, random).matrix()))),
                    has_text("subtracts the mean") || has_text("ln_1"));
  run_step(a, temp / "b", step_from_file(write(temp / "r", haar_fixing_ones<double>(48, random).rotation().matrix())));
  CHECK(run_verify(a, temp / "b").equal());
}

TEST_CASE("families: each tensor that a step changes is missed when it is not changed", "[model][families]") {
  for (const auto& [name, words] : std::map<std::string, std::string>{{"granite", "orthogonal --heads"}, {"phi3", "orthogonal --heads"},
                                                                      {"qwen2_moe", "orthogonal --heads"}, {"deepseek_v3", "orthogonal"},
                                                                      {"gpt_oss", "orthogonal --heads"}, {"mamba2", "orthogonal"},
                                                                      {"gemma2", "signed-permutation --fold"}, {"gpt2", "orthogonal --heads"},
                                                                      {"gptj", "orthogonal"}, {"t5", "orthogonal"}, {"gemma3_vision", "signed-permutation"}}) {
    const TempDir temp;
    const fs::path a = write_family(temp / "a", family_fixture(name));
    run_step(a, temp / "b", step(words));
    REQUIRE(run_verify(a, temp / "b").equal());
    std::set<std::string> seen;
    for (const std::string& tensor : tensor_names(a)) {
      const std::string right = tensor_bytes(temp / "b", tensor);
      if (right == tensor_bytes(a, tensor) || !seen.insert(without_numbers(tensor)).second) continue;
      INFO(name << ": " << tensor);
      set_tensor_bytes(temp / "b", tensor, tensor_bytes(a, tensor));
      const model::VerifyReport report = run_verify(a, temp / "b");
      CHECK_FALSE(report.equal());
      CHECK(std::any_of(report.findings.begin(), report.findings.end(), [&](const model::Finding& finding) { return finding.where == tensor; }));
      set_tensor_bytes(temp / "b", tensor, right);
    }
    CHECK(seen.size() > 5);
  }
}

TEST_CASE("families: blocks that draft further tokens (G2)", "[model][families]") {
  FamilyFixture fixture = family_fixture("deepseek_v3");
  const io::Json stored = fixture.tensors;
  const std::string last = "model.layers.1.", draft = "model.layers.2.";
  for (const auto& [name, shape] : stored.items()) {
    if (name.rfind(last, 0) == 0) fixture.tensors[draft + name.substr(last.size())] = shape;
  }
  fixture.tensors[draft + "embed_tokens.weight"] = {96, 48};
  fixture.tensors[draft + "shared_head.head.weight"] = {96, 48};
  fixture.tensors[draft + "eh_proj.weight"] = {48, 96};
  for (const char* norm : {"enorm.weight", "hnorm.weight", "shared_head.norm.weight"}) fixture.tensors[draft + norm] = {48};
  fixture.config["num_nextn_predict_layers"] = 1;
  const TempDir temp;
  const fs::path a = write_family(temp / "a", fixture);

  run_step(a, temp / "moved", step("signed-permutation"));
  CHECK(run_verify(a, temp / "moved").equal());
  CHECK(run_verify(a, temp / "moved", 0, false).equal());
  const Model permuted(temp / "moved");
  const SignedPermutation p = *model::make_basis(step("signed-permutation"), permuted.graph()).stream->as_signed_permutation();
  Matrix<double> joined = tensor_matrix(a, draft + "eh_proj.weight");
  p.apply(joined.data(), 96, 1);  // two states in each row of 96
  p.apply(joined.data(), 1, 96);  // and each column writes a state
  CHECK((tensor_matrix(temp / "moved", draft + "eh_proj.weight").array() == joined.array()).all());

  run_step(a, temp / "folded", step("fold"));  // all but the gains that the block needs
  CHECK(run_verify(a, temp / "folded").equal());
  CHECK(tensor_bytes(temp / "folded", "model.norm.weight") == tensor_bytes(a, "model.norm.weight"));
  CHECK_THROWS_WITH(run_step(a, temp / "x", step("orthogonal")), has_text("model.norm") && has_text("--drop-mtp"));

  model::OpenOptions drop;
  drop.drop_mtp = true;
  run_step(a, temp / "dropped", step("orthogonal"), {}, drop);
  CHECK_FALSE(has_tensor(temp / "dropped", draft + "eh_proj.weight"));
  for (const std::string& tensor : tensor_names(temp / "dropped")) CHECK(tensor.rfind(draft, 0) != 0);
  CHECK(io::read_json_file(temp / "dropped" / "config.json").at("num_nextn_predict_layers") == 0);
  CHECK(run_verify(a, temp / "dropped", 0, true, drop).equal());
}

TEST_CASE("families: the last hidden state can be kept", "[model][families]") {
  const TempDir temp;
  const fs::path a = write_family(temp / "a", family_fixture("granite"));
  model::Step keep = step("fold");
  keep.keep_final_norm = true;
  const model::RunSummary summary = run_step(a, temp / "b", keep);
  CHECK(tensor_bytes(temp / "b", "model.norm.weight") == tensor_bytes(a, "model.norm.weight"));
  CHECK(tensor_bytes(temp / "b", "lm_head.weight") == tensor_bytes(a, "lm_head.weight"));
  CHECK(tensor_bytes(temp / "b", "model.layers.0.input_layernorm.weight") != tensor_bytes(a, "model.layers.0.input_layernorm.weight"));
  CHECK(std::any_of(summary.notes.begin(), summary.notes.end(), [](const std::string& note) { return note.find("--keep-final-norm") != std::string::npos; }));
  CHECK(run_verify(a, temp / "b").equal());
  for (const char* words : {"orthogonal", "signed-permutation"}) {
    keep = step(words);
    keep.keep_final_norm = true;
    CHECK_THROWS_WITH(run_step(a, temp / "c", keep), has_text("--keep-final-norm"));
  }
}

TEST_CASE("families: a model of which a part is missing is no other model (K13)", "[model][families]") {
  // What a stock class may lack, too: tables that are stored twice, heads beside the main one.
  const std::set<std::string> optional{"vit.pooler", "vit.pooler.dense", "pooler", "pooler.dense", "bert.pooler", "bert.pooler.dense", "classifier", "cls.seq_relationship",
                                       "mtp"};
  for (const FamilyFixture& fixture : family_fixtures()) {
    const TempDir temp;
    const Model opened(write_family(temp / "m", fixture));
    const auto opens_without = [&](const std::string& part) {
      std::map<std::string, Shape> stored;
      for (const auto& [name, shape] : fixture.tensors.items()) {
        if (name.rfind(part + ".", 0) != 0 && name != part) stored[name] = shape.get<Shape>();
      }
      const model::FindShape find = [&](const std::string& name) {
        const auto found = stored.find(name);
        return found == stored.end() ? nullptr : &found->second;
      };
      try {
        const model::Graph graph = model::build_graph(opened.config(), find);
        std::set<std::string> params;
        for (const model::Param& param : graph.params) params.insert(param.name);
        const std::string head = graph.naming.head + ".weight";
        const bool all_there = std::all_of(params.begin(), params.end(), [&](const std::string& name) { return stored.contains(name) || (graph.tied && name == head); });
        const bool all_known = std::all_of(stored.begin(), stored.end(), [&](const auto& entry) {
          return params.contains(entry.first) || std::any_of(graph.family->leave_alone.begin(), graph.family->leave_alone.end(), [&](const std::string& pattern) {
                   return model::detail::matches(graph.spelled(pattern), entry.first, graph.size.layers);
                 });
        });
        return all_there && all_known;
      } catch (const Error&) {
        return false;
      }
    };
    REQUIRE(opens_without("nothing"));
    std::set<std::string> parts;
    for (const model::Param& param : opened.graph().params) {
      if (opened.head_is_tied() && param.name == opened.head_tensor()) continue;
      for (std::size_t dot = param.name.rfind('.'); dot != std::string::npos && dot > 0; dot = param.name.rfind('.', dot - 1)) parts.insert(param.name.substr(0, dot));
      parts.insert(param.name);
    }
    for (const std::string& part : parts) {
      INFO(fixture.name << ": " << part);
      if (!optional.contains(part) && !optional.contains(part.substr(0, part.rfind('.')))) CHECK_FALSE(opens_without(part));
    }
  }
}

TEST_CASE("families: a count that no model has is refused at once", "[model][families]") {
  for (const auto& [name, key] : std::map<std::string, std::string>{{"mixtral", "num_local_experts"}, {"deepseek_v3", "n_routed_experts"}, {"jamba", "num_experts"}}) {
    for (const std::int64_t count : {std::int64_t{90000}, std::int64_t{1} << 39}) {
      INFO(name << " " << count);
      FamilyFixture fixture = family_fixture(name);
      fixture.config[key] = count;
      const TempDir temp;
      const fs::path directory = write_family(temp / "m", fixture);
      CHECK_THROWS_WITH(Model(directory), has_text("are missing") || has_text(key));
    }
  }
}

TEST_CASE("families: refused ones are refused by name and reason", "[model][families]") {
  REQUIRE_FALSE(model::refused_families().empty());
  for (const auto& [type, reason] : model::refused_families()) {
    CHECK_THROWS_WITH(model::build_graph(model::Config({{"model_type", type}}, "config.json")), has_text(type) && has_text(reason));
  }
}

namespace {

/// docs/families.md, from the tables.
std::string page() {
  const fs::path summary = fs::path(RMSFOLD_SOURCE_DIR) / "tests/data/families/oracle.json";
  const io::Json oracle = fs::exists(summary) ? io::read_json_file(summary) : io::Json::object();
  std::string text =
      "# Families\n\n"
      "Made from the tables by a test (`RMSFOLD_WRITE_DOCS=1 build/release/tests/unit_model \"families: the page*\"` writes it, without that it checks it); do not edit.\n\n"
      "*fold*: which gains fold; *rotate*: which dense rotations of the residual stream are exact after that; *permute*: which permutations are exact as stored; *heads*: "
      "whether `--heads` may rotate values per head. *transformers*: the largest difference of the outputs of the stock class, all in double, over a fold, a permutation and, "
      "where allowed, a rotation with `--heads`, relative to their root mean square, on a tiny model with random gains and biases (`tests/oracle/zoo.py`). "
      "Tiny models with a suffix are variants of a family. Gains are generic; one that is constant needs no fold.\n\n"
      "| tiny model | family | fold | rotate | permute | heads | transformers | what stands in the way |\n| --- | --- | --- | --- | --- | --- | ---: | --- |\n";
  for (const FamilyFixture& fixture : family_fixtures()) {
    const TempDir temp;
    const Model opened(write_family(temp / "m", fixture));
    const std::vector<model::Site> sites = model::find_sites(opened);
    const model::Verdict verdict = model::judge(opened.graph(), sites);
    const Fold fold = fold_of(sites);
    std::set<std::string> kept;
    for (const model::Site& site : sites) {
      if (!site.is_foldable()) kept.insert(without_numbers(site.norm->module));
    }
    const bool none_folds = kept.size() > 0 && std::none_of(sites.begin(), sites.end(), [](const model::Site& site) { return site.is_foldable(); });
    std::string reasons;
    for (const std::string& module : kept) reasons += (reasons.empty() ? "" : ", ") + std::string("`") + module + "`";
    if (!reasons.empty()) reasons += fmt::format(" {} in the stream", kept.size() == 1 ? "lies" : "lie");
    const auto obstacle = std::find_if(verdict.restrictions.begin(), verdict.restrictions.end(), [](const model::Restriction& r) { return r.after_folding == Gauge::identity; });
    if (obstacle != verdict.restrictions.end()) reasons = fmt::format("`{}` {}", without_numbers(obstacle->node), obstacle->why);
    if (reasons.empty() && verdict.after_folding == Gauge::fixes_ones) reasons = "LayerNorms subtract the mean";
    const std::string no_heads = model::why_no_heads(opened.graph());
    const bool is_known = oracle.contains(fixture.name);
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", fixture.name, opened.graph().family->model_type,
                        fold == Fold::all ? "all" : fold == Fold::none ? "no gains" : none_folds ? "none" : "some",
                        verdict.after_folding == Gauge::orthogonal ? "any" : verdict.after_folding == Gauge::fixes_ones ? "fixing the ones vector" : "–",
                        contains(verdict.as_stored, Gauge::signed_permutation) ? "signed" : contains(verdict.as_stored, Gauge::permutation) ? "unsigned" : "–",
                        no_heads.empty() && fixture.moves ? "yes" : "–", is_known ? fmt::format("{:.0e}", oracle.at(fixture.name).at("double").get<double>()) : "untested", reasons);
  }
  text += "\n## Refused by name\n\n| family | reason |\n| --- | --- |\n";
  for (const auto& [type, reason] : model::refused_families()) text += fmt::format("| {} | {} |\n", type, reason);
  return text;
}

}  // namespace

TEST_CASE("families: the page says what the tables say", "[model][families]") {
  const fs::path path = fs::path(RMSFOLD_SOURCE_DIR) / "docs/families.md";
  const std::string wanted = page();
  if (std::getenv("RMSFOLD_WRITE_DOCS") != nullptr) write_bytes(path, wanted);
  CHECK(read_bytes(path) == wanted);
}
