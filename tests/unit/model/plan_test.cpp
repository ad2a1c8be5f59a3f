// SPDX-License-Identifier: MIT
// The plan: what it says of every tensor, what is refused, and that its checker accepts nothing else.
#include <algorithm>

#include <rmsfold/model/plan.hpp>

#include "support/catch.hpp"
#include "support/model_run.hpp"
#include "support/temp_dir.hpp"
#include "support/tiny_model.hpp"

namespace {

namespace fs = std::filesystem;
using namespace rmsfold;
using namespace rmsfold::test;
using model::Factor;
using model::Model;
using model::Plan;
using model::TensorPlan;

std::string formula(const Model& opened, const Plan& plan, const std::string& tensor) {
  const TensorPlan& planned = plan.tensors[static_cast<std::size_t>(opened.param_index(tensor))];
  return model::detail::formula(planned, opened.info(tensor).shape.size());
}

/// Steps of every shape.
const std::vector<std::string>& all_steps() {
  static const std::vector<std::string> steps{"fold",
                                              "hadamard",
                                              "orthogonal",
                                              "signed-permutation",
                                              "permutation",
                                              "hadamard --heads",
                                              "orthogonal --heads",
                                              "signed-permutation --heads",
                                              "signed-permutation --fold"};
  return steps;
}

bool is_accepted(const Model& opened, const Plan& plan) {
  try {
    model::check_plan(opened, plan);
  } catch (const InvariantError&) {
    return false;
  }
  return true;
}

}  // namespace

TEST_CASE("plan: every tensor gets exactly its factors (M5, C7, G6)", "[model]") {
  const TempDir temp;
  const Model opened(write_model(temp / "m", tiny("llama")));
  using Expected = std::vector<std::pair<std::string, std::string>>;
  const auto check = [&](const std::string& words, const Expected& expected) {
    const Plan plan = model::make_plan(opened, step(words));
    for (const auto& [tensor, wanted] : expected) {
      const bool is_layered = tensor.find("model.") == std::string::npos && tensor.find("lm_head") == std::string::npos;
      for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
        const std::string name = is_layered ? layer + tensor : tensor;
        INFO(words << ": " << name);
        CHECK(formula(opened, plan, name) == wanted);
      }
    }
    CHECK(expected.size() == 19);  // all of them
    for (const TensorPlan& planned : plan.tensors) CHECK_FALSE(planned.why.empty());
  };
  check("hadamard --heads", {{"model.embed_tokens.weight", "W·Q"},
                             {"input_layernorm.weight", "1"},
                             {"post_attention_layernorm.weight", "1"},
                             {"self_attn.q_proj.weight", "W·diag(g)·Q"},
                             {"self_attn.q_proj.bias", "unchanged"},
                             {"self_attn.k_proj.weight", "W·diag(g)·Q"},
                             {"self_attn.k_proj.bias", "unchanged"},
                             {"self_attn.v_proj.weight", "Rᵀ·W·diag(g)·Q"},
                             {"self_attn.v_proj.bias", "b·R"},
                             {"self_attn.o_proj.weight", "Qᵀ·W·R"},
                             {"self_attn.o_proj.bias", "b·Q"},
                             {"mlp.gate_proj.weight", "W·diag(g)·Q"},
                             {"mlp.gate_proj.bias", "unchanged"},
                             {"mlp.up_proj.weight", "W·diag(g)·Q"},
                             {"mlp.up_proj.bias", "unchanged"},
                             {"mlp.down_proj.weight", "Qᵀ·W"},
                             {"mlp.down_proj.bias", "b·Q"},
                             {"model.norm.weight", "1"},
                             {"lm_head.weight", "W·diag(g)·Q"}});
  check("signed-permutation", {{"model.embed_tokens.weight", "W·Q"},
                               {"input_layernorm.weight", "g·|Q|"},
                               {"post_attention_layernorm.weight", "g·|Q|"},
                               {"self_attn.q_proj.weight", "W·Q"},
                               {"self_attn.q_proj.bias", "unchanged"},
                               {"self_attn.k_proj.weight", "W·Q"},
                               {"self_attn.k_proj.bias", "unchanged"},
                               {"self_attn.v_proj.weight", "W·Q"},
                               {"self_attn.v_proj.bias", "unchanged"},
                               {"self_attn.o_proj.weight", "Qᵀ·W"},
                               {"self_attn.o_proj.bias", "b·Q"},
                               {"mlp.gate_proj.weight", "W·Q"},
                               {"mlp.gate_proj.bias", "unchanged"},
                               {"mlp.up_proj.weight", "W·Q"},
                               {"mlp.up_proj.bias", "unchanged"},
                               {"mlp.down_proj.weight", "Qᵀ·W"},
                               {"mlp.down_proj.bias", "b·Q"},
                               {"model.norm.weight", "g·|Q|"},
                               {"lm_head.weight", "W·Q"}});
  check("fold", {{"model.embed_tokens.weight", "unchanged"},
                 {"input_layernorm.weight", "1"},
                 {"post_attention_layernorm.weight", "1"},
                 {"self_attn.q_proj.weight", "W·diag(g)"},
                 {"self_attn.q_proj.bias", "unchanged"},
                 {"self_attn.k_proj.weight", "W·diag(g)"},
                 {"self_attn.k_proj.bias", "unchanged"},
                 {"self_attn.v_proj.weight", "W·diag(g)"},
                 {"self_attn.v_proj.bias", "unchanged"},
                 {"self_attn.o_proj.weight", "unchanged"},
                 {"self_attn.o_proj.bias", "unchanged"},
                 {"mlp.gate_proj.weight", "W·diag(g)"},
                 {"mlp.gate_proj.bias", "unchanged"},
                 {"mlp.up_proj.weight", "W·diag(g)"},
                 {"mlp.up_proj.bias", "unchanged"},
                 {"mlp.down_proj.weight", "unchanged"},
                 {"mlp.down_proj.bias", "unchanged"},
                 {"model.norm.weight", "1"},
                 {"lm_head.weight", "W·diag(g)"}});
}

TEST_CASE("plan: gains inside heads stay", "[model]") {
  const TempDir temp;
  const Model opened(write_model(temp / "m", tiny("qwen3")));
  for (const std::string& words : all_steps()) {
    const Plan plan = model::make_plan(opened, step(words));
    CHECK(formula(opened, plan, "model.layers.0.self_attn.q_norm.weight") == "unchanged");
    CHECK(formula(opened, plan, "model.layers.1.self_attn.k_norm.weight") == "unchanged");
  }
}

TEST_CASE("plan: values are rotated per kv head of head_dim, whatever hidden / heads is (C4)", "[model]") {
  for (const std::string& family : tiny_families()) {
    const TempDir temp;
    const Model opened(write_model(temp / "m", tiny(family)));
    for (const char* words : {"hadamard --heads", "orthogonal --heads", "signed-permutation --heads"}) {
      INFO(family << " " << words);
      const Plan plan = model::make_plan(opened, step(words));
      REQUIRE(plan.basis.heads.size() == static_cast<std::size_t>(opened.graph().size.layers));
      for (const auto& [space, heads] : plan.basis.heads) {
        CHECK(heads.block_dim() == opened.graph().size.head_dim);
        CHECK(static_cast<Index>(heads.blocks().size()) == opened.graph().size.kv_heads);
      }
    }
  }
}

TEST_CASE("plan: the checker rejects every single deviation", "[model]") {
  for (const std::string& family : tiny_families()) {
    for (const bool tied : {false, true}) {
      const TempDir temp;
      TinyModel spec = tiny(family);
      spec.tied = tied;
      const Model opened(write_model(temp / "m", spec));
      for (const std::string& words : all_steps()) {
        const Plan plan = model::make_plan(opened, step(words));
        CHECK(is_accepted(opened, plan));
        std::size_t deviations = 0;
        const auto rejects = [&](const std::string& what, const std::function<void(Plan&)>& deviate) {
          Plan other = plan;
          deviate(other);
          ++deviations;
          INFO(family << (tied ? ", tied, " : ", ") << words << ": " << what);
          CHECK_FALSE(is_accepted(opened, other));
        };
        for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
          const TensorPlan& planned = plan.tensors[t];
          for (std::size_t f = 0; f < planned.factors.size(); ++f) {
            const auto at = static_cast<std::ptrdiff_t>(f);
            rejects(planned.name + ", a factor dropped",
                    [&](Plan& p) { p.tensors[t].factors.erase(p.tensors[t].factors.begin() + at); });
            rejects(planned.name + ", a factor doubled", [&](Plan& p) {
              p.tensors[t].factors.insert(p.tensors[t].factors.begin() + at, planned.factors[f]);
            });
            rejects(planned.name + ", a factor on the other axis",
                    [&](Plan& p) { p.tensors[t].factors[f].axis = 1 - planned.factors[f].axis; });
            rejects(planned.name + ", a factor of something else",
                    [&](Plan& p) { p.tensors[t].factors[f].of = "model.layers.0.nothing"; });
            rejects(planned.name + ", a factor of another kind", [&](Plan& p) {
              p.tensors[t].factors[f].kind =
                  planned.factors[f].kind == Factor::Kind::gain ? Factor::Kind::rotation : Factor::Kind::gain;
            });
            if (f + 1 < planned.factors.size() && planned.factors[f + 1].axis == planned.factors[f].axis) {
              rejects(planned.name + ", factors swapped",
                      [&](Plan& p) { std::swap(p.tensors[t].factors[f], p.tensors[t].factors[f + 1]); });
            }
          }
          if (planned.action == TensorPlan::Action::neutralise) {
            rejects(planned.name + " not neutralised",
                    [&](Plan& p) { p.tensors[t].action = TensorPlan::Action::copy; });
          } else if (planned.name.find("norm.weight") != std::string::npos) {
            rejects(planned.name + " neutralised", [&](Plan& p) {
              p.tensors[t].action = TensorPlan::Action::neutralise;
              p.tensors[t].factors.clear();
            });
          }
          rejects(planned.name + " not planned", [&](Plan& p) { p.tensors[t].name = "model.layers.0.nothing"; });
        }
        const bool head_differs = plan.tensors.back().factors != plan.tensors.front().factors;
        if (head_differs) rejects("head kept tied", [](Plan& p) { p.output_is_tied = true; });
        CHECK(deviations > plan.tensors.size());
      }
    }
  }
}

TEST_CASE("plan: the checker rejects an action that contradicts the factors, and a head that is nowhere", "[model]") {
  const TempDir temp;
  const Model opened(write_model(temp / "m", tiny("llama")));
  for (const std::string& words : all_steps()) {
    const Plan plan = model::make_plan(opened, step(words));
    std::string accepted;
    const auto try_out = [&](const std::string& what, const std::function<void(Plan&)>& deviate) {
      Plan other = plan;
      deviate(other);
      if (is_accepted(opened, other)) accepted += what + "; ";
    };
    for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
      const std::string& name = plan.tensors[t].name;
      if (plan.tensors[t].action == TensorPlan::Action::transform) {
        try_out(name + " copied", [&](Plan& p) { p.tensors[t].action = TensorPlan::Action::copy; });
        try_out(name + " neutralised", [&](Plan& p) { p.tensors[t].action = TensorPlan::Action::neutralise; });
      }
      try_out(name + " made from another", [&](Plan& p) { p.tensors[t].source = plan.tensors[t == 0 ? 1 : 0].name; });
    }
    try_out("no head", [](Plan& p) { p.head_is_written = false; });
    INFO(words << ": accepted: " << accepted);
    CHECK(accepted.empty());
  }
}

TEST_CASE("plan: a dense rotation without the fold is refused unless every gain is constant (A4, G7)", "[model]") {
  const TempDir temp;
  const Model opened(write_model(temp / "m", tiny("llama")));
  for (const char* words : {"hadamard --no-fold", "orthogonal --no-fold"}) {
    CHECK_THROWS_AS(model::make_plan(opened, step(words)), RefusedError);
    CHECK_THROWS_WITH(model::make_plan(opened, step(words)), has_text("model.layers.0.input_layernorm") &&
                                                                 has_text("--no-fold") &&
                                                                 has_text("signed-permutation"));
  }
  CHECK_NOTHROW(model::make_plan(opened, step("signed-permutation --no-fold")));

  TinyModel spec = tiny("llama");
  spec.gain = 0.75;
  const fs::path directory = write_model(temp / "constant", spec);
  const Model constant(directory);
  const Plan plan = model::make_plan(constant, step("hadamard --no-fold"));
  CHECK(formula(constant, plan, "model.norm.weight") == "unchanged");
  CHECK(formula(constant, plan, "lm_head.weight") == "W·Q");

  // G7: all constant but the last.
  std::vector<double> gain = tensor_values(directory, "model.norm.weight");
  gain[0] = 2;
  set_tensor_values(directory, "model.norm.weight", gain);
  CHECK_THROWS_WITH(model::make_plan(constant, step("hadamard --no-fold")), has_text("model.norm carries a gain"));
}

TEST_CASE("plan: what cannot be made is refused with the way out", "[model]") {
  const TempDir temp;
  TinyModel spec = tiny("llama");
  spec.head_dim = 6;  // no Hadamard matrix
  const Model opened(write_model(temp / "six", spec));
  CHECK_THROWS_WITH(model::make_plan(opened, step("hadamard --heads")),
                    has_text("head_dim = 6") && has_text("--rotation orthogonal"));
  CHECK_NOTHROW(model::make_plan(opened, step("hadamard")));
  CHECK_NOTHROW(model::make_plan(opened, step("orthogonal --heads")));
  CHECK_THROWS_WITH(model::make_plan(opened, step("fold --heads")), has_text("--heads") && has_text("--rotation"));

  spec = tiny("llama");
  spec.hidden = 50;
  const Model odd(write_model(temp / "fifty", spec));
  CHECK_THROWS_AS(model::make_plan(odd, step("hadamard")), RefusedError);
  CHECK_THROWS_WITH(model::make_plan(odd, step("hadamard")), has_text("50"));
  CHECK_NOTHROW(model::make_plan(odd, step("orthogonal")));
}

TEST_CASE("plan: a tie is kept by permutations and given up only when the tensors differ (B1, B5)", "[model]") {
  const TempDir temp;
  TinyModel spec = tiny("llama");
  spec.tied = true;
  const Model opened(write_model(temp / "m", spec));
  for (const std::string& words : all_steps()) {
    INFO(words);
    const bool folds = step(words).fold;
    const Plan plan = model::make_plan(opened, step(words));
    CHECK(plan.output_is_tied == !folds);
    CHECK(plan.head_is_written == folds);
  }
  spec.gain = 1;
  const Model neutral(write_model(temp / "neutral", spec));
  CHECK(model::make_plan(neutral, step("hadamard")).output_is_tied);
  const Plan nothing = model::make_plan(neutral, step("fold"));
  CHECK_FALSE(nothing.changes_something());
  REQUIRE(nothing.notes.size() == 1);
  CHECK_THAT(nothing.notes[0], has_text("nothing to fold"));
}
